"""The organism during its training: half-precision weights after some of the steps.

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

SNAPSHOTS = ASSETS / "snapshots"
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
    folder = folder or SNAPSHOTS
    file = path(step, folder)
    verify(folder, file.name, read_checksums(folder).get(file.name))
    return {name: weight.float() for name, weight in load_file(file).items()}
