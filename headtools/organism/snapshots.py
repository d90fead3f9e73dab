"""The organism during its training: half-precision weights after some of the steps.

The ten files take 52 MB. A clone of the repository has them; what pip installs has only their checksums, and finds the
files in the folder ``snapshots`` of :func:`~headtools.organism.real_models.cache_folder` if you put them there.

They come from a second run of the shipped model's training, with the same command and seed but on another machine.
Machines round differently, so this run ends near the shipped model but not at its weights: the snapshot of step 9,000
is a model of its own.

>>> STEPS[:3], STEPS[-1]
((0, 250, 500), 9000)
"""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from headtools.organism._checksums import ASSETS, verify
from headtools.organism.real_models import CACHE, cache_folder

SNAPSHOTS = ASSETS / "snapshots"
REPOSITORY = "https://github.com/headtools/headtools"
STEPS = (0, 250, 500, 1000, 1500, 2000, 3000, 4500, 6500, 9000)
# Not stored: weights that are tied to the word vectors, and the fixed sinusoidal positions.
DERIVED = {"lm_head.weight"} | {
    f"model.{stack}.{table}.weight" for stack in ("encoder", "decoder") for table in ("embed_tokens", "embed_positions")
}


def path(step: int, folder: Path | None = None) -> Path:
    """Return the path of a step's weights, in the package's folder unless another is given."""
    return (folder or SNAPSHOTS) / f"step-{step:05d}.safetensors"


def weights(step: int, folder: Path | None = None) -> dict[str, Tensor]:
    """Return the weights of a snapshot in float32, {name: weight}, without the tied ones.

    Without a ``folder`` it is the package's, or else the one in the cache. Raises ValueError for a step without a
    snapshot or a changed file, FileNotFoundError for a missing one.
    """
    if step not in STEPS:
        raise ValueError(f"no snapshot of step {step!r}; there are {', '.join(map(str, STEPS))}: load(step=3000)")
    if folder is None:
        cached = cache_folder() / "snapshots"
        folder = next((place for place in (SNAPSHOTS, cached) if path(step, place).is_file()), None)
        if folder is None:
            assets = "/".join(SNAPSHOTS.parts[-4:])
            raise FileNotFoundError(
                f"the snapshot of step {step} is missing: pip installs headtools without snapshots (52 MB). Install "
                f"from a clone, git clone --depth 1 {REPOSITORY} headtools-course, then pip install --no-deps -e "
                f"./headtools-course; or copy the clone's {assets} to {cached} (${CACHE} names another folder); in a "
                f"clone, restore the files: git checkout -- {assets}"
            )
        verify(folder, path(step).name, listed_in=SNAPSHOTS)  # the cache has no list of its own
    else:
        verify(folder, path(step).name)
    return {name: weight.float() for name, weight in load_file(path(step, folder)).items()}
