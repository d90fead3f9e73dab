"""The organism as it was on the way: half-precision weights of some steps of a training.

The training is that of the shipped model, command and seed, run once more on another machine. Machines round
differently, so it ends near the shipped model but not at its weights: the snapshot of step 9,000 is a model of its own.

>>> steps()[:3], steps()[-1]
([0, 250, 500], 9000)
"""

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from headtools.organism._checksums import ASSETS, listed, verify

SNAPSHOTS = ASSETS / "snapshots"
STEPS = (0, 250, 500, 1000, 1500, 2000, 3000, 4500, 6500, 9000)
# Not stored: weights that are tied to the word vectors, and the fixed table of positions.
DERIVED = {"lm_head.weight"} | {
    f"model.{side}.{table}.weight" for side in ("encoder", "decoder") for table in ("embed_tokens", "embed_positions")
}


def steps() -> list[int]:
    """Training steps after which the organism was kept, first to last: ``load(step=...)`` takes each of them."""
    return list(STEPS)


def path(step: int, folder: Path | None = None) -> Path:
    """The file of a step's weights."""
    return (folder or SNAPSHOTS) / f"step-{step:05d}.safetensors"


def weights(step: int, folder: Path | None = None) -> dict[str, Tensor]:
    """The weights of a kept step in float32, by name, the tied ones once.

    Raises ValueError for a step that is not kept or a file that is not the one that was written, FileNotFoundError for
    a file that is not there.
    """
    if step not in STEPS:
        raise ValueError(f"no snapshot of step {step!r}; there are {', '.join(map(str, steps()))}: load(step=3000)")
    folder = folder or SNAPSHOTS
    file = path(step, folder)
    verify(folder, file.name, listed(folder).get(file.name))
    return {name: weight.float() for name, weight in load_file(file).items()}
