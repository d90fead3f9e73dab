"""The organism during its training: half-precision weights after some of the steps.

The ten files take 52 MB. A clone of the repository has them; what pip installs has only their checksums, and finds the
files in the folder ``snapshots`` of :func:`~headtools.organism.real_models.cache_folder` if you put them there.

They come from a second run of the shipped model's training, with the same command and seed but on another machine.
Machines round differently, so this run ends near the shipped model but not at its weights: the snapshot of step 9,000
is a model of its own.

>>> steps()[:3], steps()[-1]
([0, 250, 500], 9000)
"""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from headtools.organism._checksums import ASSETS, read_checksums, verify
from headtools.organism.real_models import CACHE, cache_folder

SNAPSHOTS = ASSETS / "snapshots"
REPOSITORY = "https://github.com/headtools/headtools"
STEPS = (0, 250, 500, 1000, 1500, 2000, 3000, 4500, 6500, 9000)
# Not stored: weights that are tied to the word vectors, and the fixed sinusoidal positions.
DERIVED = {"lm_head.weight"} | {
    f"model.{stack}.{table}.weight" for stack in ("encoder", "decoder") for table in ("embed_tokens", "embed_positions")
}


def steps() -> list[int]:
    """Return the training steps of which there is a snapshot, for ``load(step=...)``."""
    return list(STEPS)


def path(step: int, folder: Path | None = None) -> Path:
    """Return the path of a step's weights."""
    return (folder or SNAPSHOTS) / f"step-{step:05d}.safetensors"


def weights(step: int, folder: Path | None = None) -> dict[str, Tensor]:
    """Return the weights of a snapshot in float32, {name: weight}, without the tied ones.

    Raises ValueError for a step without a snapshot or a changed file, FileNotFoundError for a missing one.
    """
    if step not in STEPS:
        raise ValueError(f"no snapshot of step {step!r}; there are {', '.join(map(str, steps()))}: load(step=3000)")
    if folder is None:
        folder, listed = _find(step), read_checksums(SNAPSHOTS)
    else:
        listed = read_checksums(folder)
    file = path(step, folder)
    verify(folder, file.name, listed.get(file.name))
    return {name: weight.float() for name, weight in load_file(file).items()}


def _find(step: int) -> Path:
    """Return the folder that has a step's weights: the package's, or the one in the cache."""
    folders = SNAPSHOTS, cache_folder() / "snapshots"
    for folder in folders:
        if path(step, folder).is_file():
            return folder
    raise FileNotFoundError(
        f"the snapshot of step {step} is missing: neither {folders[0]} nor {folders[1]} has {path(step).name}. pip "
        "installs headtools without its snapshots (52 MB); the repository has them. Install from a clone: "
        f"git clone --depth 1 {REPOSITORY} headtools-course, then pip install --no-deps -e ./headtools-course; "
        f"or copy the clone's {'/'.join(SNAPSHOTS.parts[-4:])} to {folders[1]} (${CACHE} names another folder). In a "
        f"clone, restore the files: git checkout -- {'/'.join(SNAPSHOTS.parts[-4:])}"
    )
