"""How many encoder heads does the organism need? ``python -m recipes.gates``

Two answers: a pruning curve, with heads ablated in the order of their gradient importance and no training, and Hard
Concrete gates, with which the model is trained further while gates close. Results: ``pruning.json``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from scipy.stats import hypergeom
from torch import nn

import headtools as ht
from headtools.organism.batches import TrainingBatches, batches
from headtools.organism.evaluate import bleu, token_accuracy
from headtools.organism.shipped import heads_with_role
from headtools.roles.sentence import Sentence
from recipes._results import ASSETS, replace_row, update

FILE = ASSETS / "pruning.json"
FRACTIONS = (1.0, 0.875, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0)  # of the encoder's heads that are kept
RANDOM_ORDERS = 5
CURVE_ON = 200  # sentences
DRAWS = 20  # of the validation sentences: of another, 19 in 21 lie within the spread of these
PENALTIES = [0.0, 0.02, 0.05]  # nats for one open gate; 0 is the control: as many steps without a penalty
STEPS, DECAY = 1_000, 0.3  # steps, and the fraction of them at the end in which the learning rates fall to 0
SENTENCES = 500  # of the test split


def encoder_curve(model: nn.Module, validation: Sequence[Sentence], test: Sequence[Sentence]) -> list[dict]:
    """Return token accuracy with encoder heads ablated, those of least gradient importance first.

    Importance is measured on ``validation``, accuracy on ``test``. One dict for each of ``FRACTIONS``: the number of
    heads ``kept``, their fraction ``share``, ``accuracy`` with the ends ``low`` and ``high`` of its 95 % interval over
    test sentences, the least and greatest accuracy of 20 draws of the validation sentences, ``draws_low`` and
    ``draws_high``, and over five random rankings the mean accuracy, ``random``, and the largest, ``best``.

    >>> few = ht.corpus("organism", limit=4)
    >>> [point["kept"] for point in encoder_curve(ht.load()[0], few, few)]
    [48, 42, 36, 24, 18, 12, 6, 0]
    """
    heads = ht.sites(model)["encoder"]
    rankings = {"gradient": ht.gradient(model, batches(validation), sites=["encoder"])}
    rankings |= {str(seed): ht.random_order(heads, seed) for seed in range(RANDOM_ORDERS)}
    frame = ht.curves(model, rankings, lambda model: token_accuracy(model, test), FRACTIONS, draws=DRAWS)
    random = frame[frame.order != "gradient"].groupby("kept").metric
    curve = frame[frame.order == "gradient"].set_index("kept")
    return [
        {
            "kept": int(n_kept),
            "share": round(n_kept / heads.n_heads, 4),
            "accuracy": round(row.metric, 4),
            "low": round(row.low, 4),
            "high": round(row.high, 4),
            "draws_low": round(row.draws_low, 4),
            "draws_high": round(row.draws_high, 4),
            "random": round(random.mean()[n_kept], 4),
            "best": round(random.max()[n_kept], 4),
        }
        for n_kept, row in curve.iterrows()
    ]


def gates_kept(
    model: nn.Module,
    tokenizer: object,
    penalty: float,
    *,
    weights: str = "encoder",
    steps: int = STEPS,
    decay: float = DECAY,
    seed: int = 0,
    sentences: int = SENTENCES,
    run: Path | None = None,
) -> dict:
    """Train gates on the encoder's heads, cut those that closed, and translate: one row of the table.

    ``weights``: which weights learn with the gates; "encoder" freezes the decoder, "all" does not. ``decided``: how
    many gates are 0, or are 1, with a probability of .9 or more. ``with_role``: how many of the kept heads have a role,
    ``chance``: how many of as many random heads would on average, ``p``: how likely they are to have as many or more.

    >>> row = gates_kept(*ht.load(), penalty=0.02, steps=1, sentences=5)
    >>> len(row["kept"]), row["chance"] == row["with_role"]
    (48, True)
    """
    fit = ht.fit_gates(
        model,
        TrainingBatches(seed),
        penalty,
        steps=steps,
        sites="encoder",
        weights=weights,
        decay=decay,
        seed=seed,
        checkpoint=run,
        progress=False,
    )
    score, low, high = bleu(fit.cut().eval(), tokenizer, ht.corpus("organism", "test", sentences))
    kept = [f"{layer}.{head}" for _, layer, head in fit.open_heads]
    roles, n = heads_with_role(), len(fit.gates.heads)
    with_role = len(roles & set(kept))
    return {
        "penalty": penalty,
        "weights": weights,
        "seed": seed,
        "steps": steps,
        "sentences": sentences,
        "kept": kept,
        "bleu": round(score, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "seconds": round(fit.seconds, 1),
        "decided": int(fit.gates.saturated(0.9).sum()),
        "with_role": with_role,
        "chance": round(len(kept) * len(roles) / n, 2),
        "p": round(float(hypergeom.sf(with_role - 1, n, len(roles), len(kept))), 6),
    }


def markdown(results: Mapping[str, list[dict]]) -> str:
    """Return the tables: the curve, and the rows of gates."""
    lines = ["| encoder heads kept | accuracy | 95 % | ranking draws | random: mean, best |", "|" + "---|" * 5]
    lines += [
        f"| {p['kept']} | {p['accuracy']:.3f} | {p['low']:.3f}–{p['high']:.3f} | "
        f"{p['draws_low']:.3f}–{p['draws_high']:.3f} | {p['random']:.3f}, {p['best']:.3f} |"
        for p in results["curve"]
    ]
    header = "what learned | steps | penalty | seed | heads kept | BLEU | 95 % | with a role (chance) | p | kept"
    lines += ["", f"| {header} |", "|" + "---|" * 10]
    for r in results["gates"]:
        learned = "encoder, gates" if r["weights"] == "encoder" else "all, gates"
        kept = " ".join(r["kept"]) if len(r["kept"]) <= 16 else "…"
        lines.append(
            f"| {learned} | {r['steps']:,} | {r['penalty']:g} | {r['seed']} | {len(r['kept'])} | {r['bleu']:.1f} "
            f"| {r['low']:.1f}–{r['high']:.1f} | {r['with_role']} ({r['chance']:.1f}) | {r['p']:.2g} | {kept} |"
        )
    return "\n".join(lines)


def main(
    penalty: list[float] = PENALTIES,
    weights: Annotated[list[str], typer.Option(help="encoder, all, or both")] = ["encoder"],
    seed: list[int] = [0],
    steps: int = STEPS,
    decay: float = DECAY,
    limit: Annotated[int, typer.Option(help="test sentences translated")] = SENTENCES,
    file: Path = FILE,
    run: Annotated[Path | None, typer.Option(help="folder of checkpoints, to go on after a stop")] = None,
) -> None:
    """Measure the curve, then train gates for every penalty, seed and choice of weights."""
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    n = min(limit, CURVE_ON)
    curve = encoder_curve(model, *(ht.corpus("organism", split, n) for split in ("validation", "test")))
    results = update(file, lambda old: {"gates": [], **old, "curve": curve})
    for s in seed:
        for learn in weights:
            for p in penalty:
                folder = run and run / f"{learn}-{p:g}-{s}"
                row = gates_kept(
                    model, tokenizer, p, weights=learn, steps=steps, decay=decay, seed=s, sentences=limit, run=folder
                )
                results = update(file, lambda old, row=row: {**old, "gates": replace_row(old["gates"], row, _order)})
    print(markdown(results))


def _order(row: dict) -> tuple:
    return -len(row["weights"]), row["steps"], row["seed"], row["penalty"]  # "encoder" before "all"


if __name__ == "__main__":
    typer.run(main)
