"""Could one train the few heads from scratch? ``python -m headtools.organism.scratch`` (``make scratch``).

Takes runs of the sweep with gates on the encoder (``assets/sweep.json``), gives a new model as many heads in the same
places, and trains it from random weights by the organism's recipe, for a third of its steps, as other seeds and sizes
were trained (``assets/growth.json``): so the control, all heads from scratch, is there. After Voita et al. 2019,
table 2. For a fair comparison the pruned model is trained on for as many steps. Each training resumes where it was
stopped; what it finds goes into ``assets/scratch.json``, where other rows stay.

>>> [row["of"]["over"] for row in scratch()][:1]
['encoder']
"""

import argparse
from dataclasses import replace
from pathlib import Path

from torch import nn

import headtools as ht
from headtools.heads.files import read_json
from headtools.heads.progress import say
from headtools.organism.growth import COMPARED
from headtools.organism.jobs import side_by_side
from headtools.organism.pruning import TrainingBatches
from headtools.organism.publish import ASSETS, changed
from headtools.organism.sweep import FILE as SWEEP
from headtools.organism.sweep import SENTENCES, SETTING, fitted, label, quality, sweep
from headtools.organism.train import Recipe, head_of, silent, train
from headtools.sparse.fit import recover

FILE = ASSETS / "scratch.json"
PENALTIES = (0.002, 0.05, 0.5)  # of the sweep's encoder runs: mild, medium and strong sparsity


def scratch(file: Path = FILE) -> list[dict]:
    """Return what the command measured: rows of :func:`one`, by the number of heads, most first."""
    return read_json(file, "runs")["runs"]


def missing(run: dict, model: nn.Module) -> tuple[str, ...]:
    """Return the heads that a run of the sweep closed, by name, in the model's order.

    >>> run = {"over": "encoder", "kept": ["encoder 5.1", "encoder 5.2"]}
    >>> len(missing(run, ht.load()[0]))
    46
    """
    found = ht.sites(model)[run["over"]]
    every = [label((*site.key, head)) for site in found for head in range(site.heads)]
    return tuple(name for name in every if name not in set(run["kept"]))


def trained_on(run: dict, folder: Path, steps: int, quiet: bool = True) -> nn.Module:
    """Return the pruned model of a run of the sweep after ``steps`` more steps in which all weights learn.

    So the pruned model has had as much training with its few heads as the one from scratch. Its gates are trained again
    first, and then exactly the heads that ship are kept. Batches are those of the organism's size, the rate falls from
    that of the sweep to 0; ``folder`` holds the checkpoints.
    """
    model, _ = ht.load()
    pruned = fitted(model, run["penalty"], run["seed"], run["over"], run=folder / "gates", quiet=quiet).model
    ht.prune(pruned, [head_of(name) for name in missing(run, model)])
    learns = [name for name, _ in pruned.named_parameters() if name not in silent(pruned)]
    return recover(
        pruned, TrainingBatches(run["seed"]), steps=steps, weights=learns, rate=SETTING["weight_rate"],
        seed=run["seed"], run=folder / "on", quiet=quiet,
    ).eval()  # fmt: skip


def one(run: dict, folder: Path, recipe: Recipe, sentences: int = SENTENCES, quiet: bool = True) -> dict:
    """Train a model from scratch with the heads that a run of the sweep kept: a row fit for JSON.

    ``of``: over, penalty and seed of the run; ``kept``: its heads. ``pruned``, ``on`` and ``scratch``: ``bleu`` and
    ``accuracy`` of the model that was pruned (from the sweep), of the same after :func:`trained_on` for as many steps,
    and of the one trained from scratch, each with the ends of its 95 % interval, on the first ``sentences`` test
    sentences. ``steps`` and ``seed`` of the training; ``folder`` holds its checkpoints.
    """
    model, tokenizer = ht.load()
    new = train(replace(recipe, without=missing(run, model)), folder, quiet=quiet).graduate().eval()
    test = ht.corpus("organism", "test", sentences)
    told = quality(new, tokenizer, test)
    on = quality(trained_on(run, folder, recipe.steps, quiet), tokenizer, test)
    return {
        "of": {key: run[key] for key in ("over", "penalty", "seed")}, "kept": run["kept"],
        "pruned": {key: run[key] for key in told}, "on": on, "scratch": told,
        "steps": recipe.steps, "seed": recipe.seed, "sentences": sentences,
    }  # fmt: skip


def place(rows: list[dict], row: dict) -> list[dict]:
    """Return rows with one more, or with one replaced, those that kept most heads first."""

    def key(r: dict) -> tuple:
        return -len(r["kept"]), r["of"]["penalty"], r["of"]["seed"], r["steps"], r["seed"]

    return sorted([*(r for r in rows if key(r) != key(row)), row], key=key)


def main(words: list[str] | None = None) -> None:
    """The command: train for each run chosen, measure, keep each row as soon as it is there."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.scratch", description=__doc__)
    parser.add_argument("--penalty", nargs="+", type=float, default=PENALTIES, help="of the sweep's runs")
    parser.add_argument("--of-seed", type=int, default=0, help="of the sweep's runs")
    parser.add_argument("--seed", nargs="+", type=int, default=[Recipe.seed], help="of the training")
    parser.add_argument("--steps", type=int, default=COMPARED)
    parser.add_argument("--limit", type=int, default=SENTENCES, help="test sentences translated")
    parser.add_argument("--runs", type=Path, default=Path("scratch-runs"), help="folder of checkpoints")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core; -1 for all")
    parser.add_argument("--sweep", type=Path, default=SWEEP, help="where the sweep's numbers are")
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    options = parser.parse_args(words)
    runs = {row["penalty"]: row for row in sweep(options.sweep)
            if (row["over"], row["seed"]) == ("encoder", options.of_seed)}  # fmt: skip
    if unknown := sorted(set(options.penalty) - runs.keys()):
        raise SystemExit(f"the sweep has no run of penalty {unknown[0]:g}; it has {', '.join(map(str, sorted(runs)))}")
    todo = []
    for seed in options.seed:
        for penalty in options.penalty:
            recipe = Recipe(seed=seed, steps=options.steps)
            # a whole path: a worker may be started in another folder
            folder = options.runs.resolve() / f"encoder-{penalty:g}-{options.of_seed}-steps{options.steps}-seed{seed}"
            todo.append((runs[penalty], folder, recipe, options.limit, options.jobs != 1))
    for row in side_by_side(one, todo, options.jobs):
        changed(options.file, lambda told, row=row: {"runs": place(told.get("runs", []), row)})
    say(markdown(scratch(options.file) if options.file.is_file() else []))


def markdown(rows: list[dict]) -> str:
    """Return the table of Voita's Table 2 for the rows: heads, pruned, from scratch, what pruning gains."""
    lines = ["| penalty | heads kept | BLEU pruned | trained on | 95 % | from scratch | 95 % | steps | seed |",
             "|" + "---|" * 9]  # fmt: skip
    for row in rows:
        pruned, on, new = (row[key]["bleu"] for key in ("pruned", "on", "scratch"))
        lines.append(
            f"| {row['of']['penalty']:g} | {len(row['kept'])} | {pruned[0]:.1f} "
            f"| {on[0]:.1f} | {on[1]:.1f}–{on[2]:.1f} | {new[0]:.1f} | {new[1]:.1f}–{new[2]:.1f} "
            f"| {row['steps']:,} | {row['seed']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
