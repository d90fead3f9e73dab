"""Train the second organism: ``python -m recipes.second_organism.train --seed 1``

Started again on the same folder, it goes on from the last checkpoint and ends at the same weights, bit for bit on the
same machine and thread count. Each aid can be left out, and encoder attention can be switched off or held uniform from
the first step to the last:

    --no-tagging  --no-curriculum  --no-initialisation  --no-composed  --no-shift  --attention none | uniform

The finished model goes to ``RUN/model``; with ``--assets FOLDER`` also there, in half precision.
"""

import json
from collections.abc import Collection
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import torch
import typer
from tqdm import tqdm

from headtools.organism import snapshots
from headtools.organism.second.language import sentences
from recipes import _training_state
from recipes._publish import publish
from recipes._training_model import training_batch
from recipes.second_organism._training_model import TrainingModel, encoder_attention, first_positions
from recipes.second_organism.batches import training_sentences, word_ids
from recipes.train import Recipe as FirstRecipe
from recipes.train import keep_snapshot


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


@torch.no_grad()
def validate(training_model: TrainingModel, n: int) -> dict[str, float]:
    """Return loss and token accuracy on the first ``n`` validation sentences, given the right words so far."""
    sampled = sorted(islice(sentences("validation"), n), key=lambda sentence: len(sentence.words))
    groups = [sampled[i : i + 32] for i in range(0, n, 32)]
    parts = [training_model(training_batch(group, word_ids()), 0.0, 0.5)[1] for group in groups]
    return {key: round(sum(part[key] for part in parts) / len(parts), 4) for key in parts[0]}


def train(
    recipe: Recipe, run: Path, stop: int | None = None, progress: bool = True, keep: Collection[int] = ()
) -> TrainingModel:
    """Train by a recipe in the folder ``run``, going on from its checkpoint; ``stop`` ends early.

    After the steps in ``keep`` the weights are put into ``run/snapshots``, in half precision. Raises ValueError if
    ``run`` holds a run of another recipe.
    """
    torch.manual_seed(recipe.seed)
    training_model = TrainingModel(recipe.composed, recipe.initialisation)
    optimizer = torch.optim.AdamW(
        [p for p in training_model.parameters() if p.requires_grad],
        lr=recipe.rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        fused=True,
    )
    settings = asdict(recipe) | {"without": list(recipe.without)}  # as JSON gives it back
    state = {"step": 0, "chunk": 0, "within": 0, "short": recipe.short > 0, "recipe": settings, "log": []}
    saved = _training_state.restore(run, training_model, optimizer)
    if saved:
        if saved["recipe"] != settings:
            raise ValueError(f"{run} holds a run of another recipe; use another folder: --run elsewhere")
        state = saved

    def groups() -> list:
        return training_sentences(recipe.seed, state["chunk"], recipe.tokens, recipe.chunk, state["short"])

    pending = groups()[state["within"] :]
    last = min(recipe.steps, stop or recipe.steps)
    if state["step"] == 0 and 0 in keep:
        keep_snapshot(training_model.export(), 0, run / "snapshots")
    bar = tqdm(total=recipe.steps, initial=state["step"], disable=not progress, mininterval=5.0)
    with bar, encoder_attention(training_model.model, recipe.attention):
        while state["step"] < last:
            if not pending:
                short = state["step"] < recipe.short
                state |= {"chunk": state["chunk"] + 1, "within": 0, "short": short}
                pending = groups()
            step = state["step"]
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(step)
            batch = training_batch(pending.pop(0), word_ids())
            first = first_positions(recipe.seed, step, len(batch["labels"]), recipe.shift)
            with training_model.positions_from(first):
                loss, parts = training_model(batch, 0.0, recipe.tag if step < recipe.tag_until * recipe.steps else 0.0)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(training_model.parameters(), 1.0)
            optimizer.step()
            state |= {"step": step + 1, "within": state["within"] + 1}
            if state["step"] in keep:
                keep_snapshot(training_model.export(), state["step"], run / "snapshots")
            if bar.update():
                bar.set_postfix(loss=f"{parts['loss']:.3f}", accuracy=f"{parts['accuracy']:.3f}")
            if state["step"] % recipe.save_every == 0 or state["step"] == last:
                state["log"].append({"step": state["step"], **validate(training_model, recipe.validate_on)})
                _training_state.save(run, training_model, optimizer, state)
                if progress:
                    tqdm.write(json.dumps(state["log"][-1]))
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
    aids = {
        "tagging": tagging,
        "curriculum": curriculum,
        "initialisation": initialisation,
        "composed": composed,
        "shift": shift,
    }
    without = {
        "tagging": {"tag": 0.0},
        "curriculum": {"short": 0},
        "initialisation": {"initialisation": False},
        "composed": {"composed": False},
        "shift": {"shift": 0},
    }
    missing = [name for name, used in aids.items() if not used]
    changes = {key: value for name in missing for key, value in without[name].items()}
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
