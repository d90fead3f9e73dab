"""Train the second organism: ``python -m recipes.second_organism.train --seed 1``

Started again on the same folder, it goes on from the last checkpoint and ends at the same weights, bit for bit on the
same machine and thread count. Each aid can be left out, and encoder attention can be switched off or held uniform from
the first step to the last:

    --no-tagging  --no-curriculum  --no-initialisation  --no-composed  --no-shift  --attention none | uniform

The finished model goes to ``RUN/model``; with ``--assets FOLDER`` also there, in half precision.
"""

from collections.abc import Collection
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from headtools.organism import snapshots
from headtools.organism.second.language import sentences
from headtools.roles.sentence import Sentence
from recipes._publish import publish
from recipes._training_model import training_batch
from recipes.second_organism._training_model import TrainingModel, encoder_attention, first_positions
from recipes.second_organism.batches import training_sentences, word_ids
from recipes.train import Recipe as FirstRecipe
from recipes.train import run_training, validate


@dataclass(frozen=True)
class Recipe(FirstRecipe):
    """One training run of the second organism; all but ``short`` means what it means in the first organism's recipe."""

    steps: int = 3_000
    flat: float = 0.45
    short: int = 600  # steps, not a share: short sentences are learned in as many steps however long the run
    guide: float = 0.0
    guide_late: float = 0.0
    composed: bool = True  # word vectors made of features
    initialisation: bool = True  # Xavier-uniform matrices, encoder queries and keys times 1.5
    shift: int = 20  # half of the sentences begin to count at a random position up to this one
    attention: str = "learned"  # of the encoder: learned, none or uniform


def train(
    recipe: Recipe, run: Path, stop: int | None = None, progress: bool = True, keep: Collection[int] = ()
) -> TrainingModel:
    """Train by a recipe in the folder ``run``, as :func:`recipes.train.run_training` says."""
    torch.manual_seed(recipe.seed)
    training_model = TrainingModel(recipe.composed, recipe.initialisation)

    def loss(group: list[Sentence], step: int) -> tuple[Tensor, dict[str, float]]:
        batch = training_batch(group, word_ids())
        first = first_positions(recipe.seed, step, len(batch["labels"]), recipe.shift)
        with training_model.positions_from(first):
            return training_model(batch, 0.0, recipe.tag if step < recipe.tag_until * recipe.steps else 0.0)

    def valid() -> dict[str, float]:
        return validate(training_model, sentences("validation"), recipe.validate_on, guide=0.0, ids=word_ids())

    drawn = training_sentences, loss, valid, recipe.short
    with encoder_attention(training_model.model, recipe.attention):
        run_training(training_model, recipe, run, *drawn, stop, progress, keep, fused=True)
    return training_model


def main(
    seed: int = Recipe.seed,
    steps: int = Recipe.steps,
    tagging: bool = True,
    curriculum: bool = True,
    initialisation: bool = True,
    composed: bool = True,
    shift: bool = True,
    attention: Annotated[str, typer.Option(help="of the encoder: learned, none or uniform")] = Recipe.attention,
    run: Annotated[Path | None, typer.Option(help="checkpoints (default: named after the options)")] = None,
    assets: Annotated[Path | None, typer.Option(help="a folder for the weights in half precision, too")] = None,
    threads: Annotated[int, typer.Option(help="the numbers of the card come from one")] = 1,
) -> None:
    """Train a model, or go on training it."""
    torch.set_num_threads(threads)
    # Each aid: whether it is used, and what the recipe has without it.
    aids = {
        "tagging": (tagging, {"tag": 0.0}),
        "curriculum": (curriculum, {"short": 0}),
        "initialisation": (initialisation, {"initialisation": False}),
        "composed": (composed, {"composed": False}),
        "shift": (shift, {"shift": 0}),
    }
    missing = [name for name, (used, _) in aids.items() if not used]
    changes = {key: value for name in missing for key, value in aids[name][1].items()}
    recipe = Recipe(seed=seed, steps=steps, attention=attention, **changes)
    names = [f"seed{seed}", f"steps{steps}", *(f"no-{name}" for name in missing)]
    names += [] if attention == Recipe.attention else [f"attention-{attention}"]
    run = run or Path("organism-run2-" + "-".join(names))
    model = train(recipe, run, keep=snapshots.STEPS).export()
    publish(model, run / "model", word_ids())
    print(f"trained {recipe.steps} steps; the model is in {run / 'model'}")
    if assets:
        publish(deepcopy(model).half(), assets, word_ids())
        print(f"and, in half precision, in {assets}")


if __name__ == "__main__":
    typer.run(main)
