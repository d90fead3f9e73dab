"""The organism as it was on the way: half-precision weights of some steps of a training.

The training is that of the shipped model, command and seed, run once more on another machine. Machines round
differently, so it ends near the shipped model but not at its weights: the snapshot of step 9,000 is a model of its own.

>>> steps()[:3], steps()[-1]
([0, 250, 500], 9000)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save
from torch import Tensor

from headtools.heads.whole import written_bytes
from headtools.organism.publish import ASSETS, exchanged, listed, standing, verify

if TYPE_CHECKING:
    from transformers import MarianMTModel

SNAPSHOTS = ASSETS / "snapshots"
KEPT = (0, 250, 500, 1000, 1500, 2000, 3000, 4500, 6500, 9000)
# Not stored: weights that are tied to the word vectors, and the fixed table of positions.
DERIVED = {"lm_head.weight"} | {
    f"model.{side}.{table}.weight" for side in ("encoder", "decoder") for table in ("embed_tokens", "embed_positions")
}


def steps() -> list[int]:
    """Training steps after which the organism was kept, first to last: ``load(step=...)`` takes each of them."""
    return list(KEPT)


def path(step: int, folder: Path | None = None) -> Path:
    """The file of a step's weights."""
    return (folder or SNAPSHOTS) / f"step-{step:05d}.safetensors"


def keep(model: "MarianMTModel", step: int, folder: Path) -> None:
    """Write a model's weights to ``folder`` in half precision, whole or not at all; tied weights once."""
    kept = {name: w.half().contiguous() for name, w in model.state_dict().items() if name not in DERIVED}
    written_bytes(path(step, folder), save(kept, metadata={"step": str(step)}))


def ship(source: Path, folder: Path | None = None, kept: Sequence[int] = KEPT) -> None:
    """Copy the kept steps of a training run from ``source`` to the package with their checksums, all or none."""
    with exchanged(folder or SNAPSHOTS) as part:
        for step in kept:
            path(step, part).write_bytes(path(step, source).read_bytes())


def weights(step: int, folder: Path | None = None) -> dict[str, Tensor]:
    """The weights of a kept step in float32, by name, the tied ones once.

    Raises ValueError for a step that is not kept or a file that is not the one that was written, FileNotFoundError for
    a file that is not there.
    """
    if step not in KEPT:
        raise ValueError(f"no snapshot of step {step!r}; there are {', '.join(map(str, steps()))}: load(step=3000)")
    folder = standing(folder or SNAPSHOTS)
    file = path(step, folder)
    verify(folder, file.name, listed(folder).get(file.name))
    return {name: weight.float() for name, weight in load_file(file).items()}
