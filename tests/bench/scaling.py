"""How costs grow with length, batch, layers and the size of the corpus: ``make bench``.

    python tests/bench/scaling.py [--rounds 5] [--json FILE] [--quick]

Everything at BERT-base's width; 4 layers, 4 rows and 64 tokens unless one of them is what changes. The bounds are
counted in ``counts.py`` for each length and depth. A cost that grew with length, batch or corpus beyond that of a pass
would show here as a ratio that rises; with layers, that of exact ablation must rise as their number does.
"""

from __future__ import annotations

import counts
import gradient
import recording
import subjects
import timing
import torch
from subjects import Subject

import headtools as ht

BASE = {"layers": 4, "rows": 4, "tokens": 64}
LENGTHS, ROWS, LAYERS, BATCHES = (32, 128, 512), (1, 4, 16), (2, 4, 8), (1, 4, 16)


def ablation(subject: Subject) -> dict:
    """The exact rise of every example's loss without each head."""
    score = lambda out, _batch: subjects.loss(out.logits, subject.labels)  # noqa: E731
    return ht.ablation_losses(subject.model, subject.batch, loss=score, max_rows=16, quiet=True)


def many(subject: Subject, batches: int) -> dict[str, object]:
    """Works over a corpus of so many batches."""
    labels, rows = subject.labels, [dict(subject.batch) for _ in range(batches)]

    def run() -> None:
        with torch.no_grad():
            for batch in rows:
                subject.model(**batch)

    score = lambda out, _batch: subjects.loss(out.logits, labels)  # noqa: E731
    return {"plain forward": run, "ht.gradient": lambda: ht.gradient(subject.model, rows, loss=score)}


def one(subject: Subject, rounds: int, told: str, exact: bool) -> list[dict]:
    """Rows of one size: gradient, maps, and, where asked, ablation."""
    works = {name: recording.WORKS[name] for name in ("plain forward", "eager forward", "record maps")}
    works["ht.gradient"] = recording.under("sdpa", gradient.ours)
    if exact:
        works["ht.ablation"] = recording.under("sdpa", ablation)
    taken = timing.interleaved({name: lambda w=work: w(subject) for name, work in works.items()}, rounds)
    about = {"model": f"BERT-base width, {told}"}
    counted = counts.gradient("bert", subject.size)
    rows = [
        timing.row(taken, "ht.gradient", "plain forward", counted=counted, why=gradient.WHY, **about),
        timing.row(taken, "record maps", "eager forward", counted=1.0, why=recording.WHY, **about),
    ]
    if exact:
        told = {"counted": counts.ablation("bert", subject.size), "why": "what lies above each head"}
        rows.append(timing.row(taken, "ht.ablation", "plain forward", **told, **about))
    return rows


def measure(size: str, rounds: int) -> list[dict]:
    """Rows of every length, batch, depth and corpus."""
    base = BASE if size == "full" else {}
    rows = []
    changes = [("tokens", LENGTHS), ("rows", ROWS), ("layers", LAYERS)]
    for what, values in changes:
        for value in values if size == "full" else (2, 3):
            subject = subjects.make("bert", subjects.size_of("bert", size, **{**base, what: value}))
            rows += one(subject, rounds, f"{value} {what}", exact=what == "layers")
    subject = subjects.make("bert", subjects.size_of("bert", size, **base))
    for batches in BATCHES if size == "full" else (1, 2):
        taken = timing.interleaved(many(subject, batches), rounds)
        rows.append(timing.row(
            taken, "ht.gradient", "plain forward", model=f"BERT-base width, corpus of {batches} batches",
            counted=counts.gradient("bert", subject.size), why=gradient.WHY,
        ))  # fmt: skip
    return rows


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=5)
    torch.set_num_threads(1)
    timing.tell(measure("tiny" if given.quick else "full", given.rounds), given.json)


if __name__ == "__main__":
    main()
