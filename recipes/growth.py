"""How did the organism develop during training? ``python -m recipes.growth``

Measures the shipped snapshots, and the trained model in each folder named with ``--runs``. Seeds and sizes are compared
after runs of 3,000 steps, a third of the shipped one's (``make organism SEED=2 SIZE=half ARGS="--steps 3000"``).
Result: ``growth.json``; entries that are not measured again are kept.
"""

from functools import reduce
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools.organism import snapshots
from headtools.organism.evaluate import bleu, token_accuracy
from headtools.organism.roles_found import best, roles
from recipes import _training_state
from recipes._results import ASSETS, replace_row, update
from recipes._training_model import HEADS
from recipes.gates import CURVE_ON, encoder_curve

FILE = ASSETS / "growth.json"
ROLES_ON = 500  # sentences
PARTS = {"snapshots": "step", "seeds": "seed", "sizes": "heads"}
SHOWN = {
    "offset -1": "−1",
    "offset +1": "+1",
    "det up": "det",
    "amod up": "amod",
    "nsubj down": "nsubj",
    "obj down": "obj",
    "advmod up": "advmod",
    "topic": "name",
    "coreference": "coref.",
}
COMPARED = 3_000  # steps of the runs whose seeds and sizes are compared
TRANSLATED, RUNS_TRANSLATED = 300, 500  # sentences of a split, by snapshots and by finished runs


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """Return the scores of one model of the organism's language.

    ``bleu`` and ``hard``: BLEU on the test and hard sentences (the first ``limit`` of 1,000) and the ends of its 95 %
    interval. ``accuracy``: fraction of target words right, given the preceding words, on 200 test sentences. ``roles``:
    for each role the encoder head selected on 500 validation sentences, the fraction of its queries that hit in 500
    test sentences with Wilson's 95 % interval, the baseline, and whether it ``passes``. ``carriers``: the roles of each
    head that has one; there are ``with_role`` of them among ``heads_total``. ``curve``: accuracy with encoder heads
    ablated, those of least gradient importance first, without retraining (:func:`recipes.gates.encoder_curve`).
    """
    validation, test = (ht.corpus("organism", split, ROLES_ON) for split in ("validation", "test"))
    frame = roles(model, tokenizer, validation, test)
    carriers = {head: sorted(rows.role) for head, rows in frame[frame.passes].groupby("head")}
    table = best(frame)[["head", "score", "low", "high", "baseline", "passes"]]
    table["baseline"] = table.baseline.astype(object).where(table.baseline.notna(), None)
    return {
        "bleu": _rounded(bleu(model, tokenizer, ht.corpus("organism", "test", limit))),
        "hard": _rounded(bleu(model, tokenizer, ht.corpus("organism", "hard", limit))),
        "accuracy": round(token_accuracy(model, test[:CURVE_ON]).mean().item(), 4),
        "roles": {
            role: {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
            for role, row in table.to_dict("index").items()
        },
        "with_role": len(carriers),
        "heads_total": frame["head"].nunique(),
        "carriers": carriers,
        "curve": encoder_curve(model, validation[:CURVE_ON], test[:CURVE_ON]),
    }


def _rounded(values: tuple) -> list[float]:
    return [round(value, 2) for value in values]


def _trained(run: Path) -> tuple[int, int, Path]:
    """Return the seed, heads per layer and model of a finished run of ``COMPARED`` steps."""
    if not (run / _training_state.FILE).is_file() or not (run / "model").is_dir():
        raise FileNotFoundError(
            f'{run} holds no finished training; make one: make organism SEED=2 ARGS="--steps {COMPARED}"'
        )
    recipe = _training_state.recipe(run)
    if recipe["steps"] != COMPARED:
        raise ValueError(
            f"{run} is a run of {recipe['steps']} steps, and seeds and sizes are compared after {COMPARED}; train one: "
            f'make organism SEED={recipe["seed"]} ARGS="--steps {COMPARED}"'
        )
    return recipe["seed"], recipe["heads"], run / "model"


def markdown(results: dict[str, list[dict]]) -> str:
    """Return the model card's tables: a row for each entry, with the score of the best head for each of ``SHOWN``.

    A star marks a score that reaches its threshold on validation and on test sentences (``roles_found``).
    """
    lines = []
    for part, key in PARTS.items():
        first = "heads a layer" if key == "heads" else key
        header = [first, "BLEU test", "95 %", "BLEU hard", "95 %", "heads with a role", *SHOWN.values()]
        lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        for entry in results.get(part, []):
            scores = [
                f"{row['score']:.2f}{' *' * row['passes']}" if (row := entry["roles"].get(role)) else "–"
                for role in SHOWN
            ]
            bleu = [
                cell
                for score, low, high in (entry["bleu"], entry["hard"])
                for cell in (f"{score:.1f}", f"{low:.1f}–{high:.1f}")
            ]
            cells = [f"{entry[key]:,}", *bleu, f"{entry['with_role']} of {entry['heads_total']}", *scores]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main(
    steps: list[int] = list(snapshots.STEPS),
    runs: Annotated[list[Path], typer.Option(help="folders of runs of make organism")] = [],
    limit: Annotated[int | None, typer.Option(help="sentences translated (default: 300 and 500)")] = None,
    file: Path = FILE,
) -> None:
    """Measure the snapshots, and the trained models of other seeds and sizes."""
    torch.set_num_threads(1)
    todo = [({"step": step}, [("snapshots", {"step": step})], TRANSLATED) for step in steps]
    for run in runs:
        seed, heads, folder = _trained(run)
        # A run of the usual size and seed is an entry of both tables.
        entries = [("seeds", {"seed": seed})] * (heads == HEADS) + [("sizes", {"heads": heads})] * (seed == 1)
        todo.append(({"name": folder}, entries, RUNS_TRANSLATED))
    results = {}
    for load_options, entries, sentences in tqdm(todo, desc="models"):
        entry = measure(*ht.load(**load_options), limit or sentences)

        def add(results: dict, table_and_name: tuple[str, dict], entry: dict = entry) -> dict:
            table, name = table_and_name
            rows = replace_row(results.get(table, []), {**name, **entry}, lambda row: row[PARTS[table]])
            return {**results, table: rows}

        results = update(file, lambda old, entries=entries, add=add: reduce(add, entries, old))
        tqdm.write(
            f"{entries}: BLEU {entry['bleu'][0]}, hard {entry['hard'][0]}, "
            f"{entry['with_role']} of {entry['heads_total']} heads with a role"
        )
    print(markdown(results))


if __name__ == "__main__":
    typer.run(main)
