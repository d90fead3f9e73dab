"""Could the few remaining heads be trained from scratch? ``python -m recipes.scratch``

Takes runs of the sweep with gates on the encoder, gives a new model the same heads in the same layers, and trains it
from random weights by the organism's recipe, for a third of its steps. Other seeds and sizes were trained as long, so
the control, all heads from scratch, is in ``growth.json``. After Voita et al. 2019, table 2. For a fair comparison the
pruned model is trained further for as many steps. Each training can be resumed. Result: ``scratch.json``.

The shipped ``scratch.json`` takes its heads from an earlier sweep, made with a gate rate of 0.25, as its rows say; the
trainings were not repeated for the sweep that ships now. The command replaces its rows by those of the present sweep.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

import headtools as ht
from headtools.organism.batches import TrainingBatches
from headtools.organism.shipped import LIVE_GATES, shipped
from recipes._parallel import parallel_map
from recipes._results import ASSETS, head_of, name_of, read, replace_row, update
from recipes.growth import COMPARED
from recipes.sweep import SENTENCES, quality, train_gates
from recipes.train import Recipe, silent, train

FILE = ASSETS / "scratch.json"
PENALTIES = [0.002, 0.05, 0.5]  # of the sweep's encoder runs: mild, medium and strong sparsity


def missing_heads(run: dict, model: nn.Module) -> tuple[str, ...]:
    """Return the heads that a run of the sweep closed, by name, in the model's order.

    >>> run = {"over": "encoder", "kept": ["encoder 5.1", "encoder 5.2"]}
    >>> len(missing_heads(run, ht.load()[0]))
    46
    """
    names = [name_of((*site.key, head)) for site in ht.sites(model)[run["over"]] for head in range(site.heads)]
    return tuple(name for name in names if name not in set(run["kept"]))


def train_on(run: dict, folder: Path, steps: int) -> nn.Module:
    """Return the pruned model of a run of the sweep after ``steps`` more steps in which all weights learn.

    So the pruned model has been trained with its few heads as long as the one from scratch. The sweep stores no
    weights, so its gates are trained again first; the heads kept are those of the shipped run. The learning rate falls
    from that of the sweep to 0; ``folder`` holds the checkpoints.
    """
    model, _ = ht.load()
    pruned = train_gates(model, run["over"], run["penalty"], run["seed"], checkpoint=folder / "gates").model
    if missing := [head_of(name) for name in missing_heads(run, model)]:
        ht.prune(pruned, missing)
    learns = [name for name, _ in pruned.named_parameters() if name not in silent(pruned)]
    return ht.recover(
        pruned,
        TrainingBatches(run["seed"]),
        steps=steps,
        weights=learns,
        rate=LIVE_GATES["weight_rate"],
        seed=run["seed"],
        checkpoint=folder / "on",
        progress=False,
    ).eval()


def compare(run: dict, folder: Path, recipe: Recipe, sentences: int = SENTENCES, on: dict | None = None) -> dict:
    """Train a model from scratch with the heads that a run of the sweep kept; compare it with the pruned model.

    ``of``: over, penalty and seed of the run, and the rate of its gates; ``kept``: its heads. ``pruned``, ``on`` and
    ``scratch``: ``bleu`` and ``accuracy`` of the model that was pruned (from the sweep), of the same after
    :func:`train_on` for as many steps, and of the one trained from scratch, each with its 95 % interval. ``on`` may be
    given where another seed of the training from scratch has measured it, since it does not depend on that seed.
    """
    model, tokenizer = ht.load()
    new = train(replace(recipe, without=missing_heads(run, model)), folder, progress=False).export().eval()
    test = ht.corpus("organism", "test", sentences)
    scratch = quality(new, tokenizer, test)
    return {
        "of": {key: run[key] for key in ("over", "penalty", "seed")} | {"gate_rate": LIVE_GATES["gate_rate"]},
        "kept": run["kept"],
        "pruned": {key: run[key] for key in scratch},
        "on": on or quality(train_on(run, folder, recipe.steps), tokenizer, test),
        "scratch": scratch,
        "steps": recipe.steps,
        "seed": recipe.seed,
        "sentences": sentences,
    }


def markdown(rows: list[dict]) -> str:
    """Return a table like table 2 of Voita et al. 2019: heads, pruned, trained further, from scratch."""
    lines = [
        "| penalty | heads kept | BLEU pruned | trained on | 95 % | from scratch | 95 % | steps | seed |",
        "|" + "---|" * 9,
    ]
    for row in rows:
        pruned, on, new = (row[key]["bleu"] for key in ("pruned", "on", "scratch"))
        lines.append(
            f"| {row['of']['penalty']:g} | {len(row['kept'])} | {pruned[0]:.1f} "
            f"| {on[0]:.1f} | {on[1]:.1f}–{on[2]:.1f} | {new[0]:.1f} | {new[1]:.1f}–{new[2]:.1f} "
            f"| {row['steps']:,} | {row['seed']} |"
        )
    return "\n".join(lines)


def main(
    penalty: Annotated[list[float], typer.Option(help="of the sweep's runs")] = PENALTIES,
    of_seed: Annotated[int, typer.Option(help="of the sweep's runs")] = 0,
    seed: Annotated[list[int], typer.Option(help="of the training")] = [Recipe.seed],
    steps: int = COMPARED,
    limit: Annotated[int, typer.Option(help="test sentences translated")] = SENTENCES,
    runs: Annotated[Path, typer.Option(help="folder of checkpoints")] = Path("scratch-runs"),
    jobs: Annotated[int, typer.Option(help="runs at a time, each on one core; -1 for all")] = 1,
    file: Path = FILE,
) -> None:
    """Train and measure for each selected run of the sweep, and write each row as soon as it is measured."""
    rows = shipped("sweep").query("over == 'encoder' and seed == @of_seed").to_dict("records")
    run_of = {row["penalty"]: row for row in rows}
    if unknown := sorted(set(penalty) - run_of.keys()):
        raise typer.BadParameter(f"the sweep has no run of penalty {unknown[0]:g}; it has {sorted(run_of)}")
    folder = runs.resolve()  # absolute, since a worker may be started in another folder
    finished = {
        row["of"]["penalty"]: row["on"]
        for row in _of_this_sweep(read(file))
        if row["of"]["seed"] == of_seed and row["steps"] == steps and row["sentences"] == limit
    }
    arguments = [
        (
            run_of[p],
            folder / f"encoder-{p:g}-{of_seed}-steps{steps}-seed{s}",
            Recipe(seed=s, steps=steps),
            limit,
            finished.get(p),
        )
        for s in seed
        for p in penalty
    ]
    results = {}
    for row in parallel_map(compare, arguments, jobs):
        results = update(file, lambda old, row=row: {"runs": replace_row(_of_this_sweep(old), row, _order)})
    print(markdown(results["runs"]))


def _of_this_sweep(results: dict) -> list[dict]:
    """Return the rows whose heads come from a sweep with the gate rate of the present one; others are not compared."""
    return [row for row in results.get("runs", []) if row["of"]["gate_rate"] == LIVE_GATES["gate_rate"]]


def _order(row: dict) -> tuple:
    return -len(row["kept"]), row["of"]["penalty"], row["of"]["seed"], row["steps"], row["seed"]


if __name__ == "__main__":
    typer.run(main)
