"""How costs grow with length, batch, layers and the size of the corpus: ``make bench``.

    python tools/bench/scaling.py [--rounds 5] [--json FILE] [--quick]

Everything at BERT-base's width; 4 layers, 4 rows and 64 tokens unless one of them is what changes. The bounds are
counted in ``counts.py`` for each length and depth. A cost that grew with length, batch or corpus beyond that of a pass
would show here as a ratio that rises; with layers, that of exact ablation must rise as their number does. Exact
ablation tries first what it can rely on (entering in the middle). These few passes are once a
call: much of a single batch through a shallow model, little of a corpus.
"""

from __future__ import annotations

import counts
import gradient
import recording
import subjects
import timing
import torch
from subjects import Subject
from torch import Tensor, nn

import headtools as ht

BASE = {"layers": 4, "rows": 4, "tokens": 64}
LENGTHS, ROWS, LAYERS, BATCHES = (32, 128, 512), (1, 4, 16), (2, 4, 8), (1, 4, 16)
EXACT = "what lies above each head"


def exact(model: nn.Module, batches: object, labels: Tensor) -> dict:
    """The exact rise of every example's loss without each head."""
    score = lambda out, _batch: subjects.loss(out.logits, labels)  # noqa: E731
    return ht.ablation(model, batches, loss=score, progress=False).rows


def ablation(subject: Subject) -> dict:
    """The same of a subject's only batch."""
    return exact(subject.model, subject.batch, subject.labels)


def many(subject: Subject, batches: int, work: str) -> dict[str, object]:
    """A work, "ht.gradient" or "ht.ablation", and its unit over a corpus of so many batches."""
    labels, rows = subject.labels, [dict(subject.batch) for _ in range(batches)]

    def run() -> None:
        with torch.no_grad():
            for batch in rows:
                subject.model(**batch)

    score = lambda out, _batch: subjects.loss(out.logits, labels)  # noqa: E731
    ours = {
        "ht.gradient": lambda: ht.gradient(subject.model, rows, loss=score),
        "ht.ablation": lambda: exact(subject.model, rows, labels),
    }
    return {"plain forward": run, work: ours[work]}


def one(subject: Subject, rounds: int, told: str, ablated: bool) -> list[dict]:
    """Rows of one size: gradient, maps, and, where asked, ablation."""
    works = {name: recording.WORKS[name] for name in ("plain forward", "eager forward", "record maps")}
    works["ht.gradient"] = recording.under("sdpa", gradient.ours)
    if ablated:
        works["ht.ablation"] = recording.under("sdpa", ablation)
    taken = timing.interleaved({name: lambda w=work: w(subject) for name, work in works.items()}, rounds)
    about = {"model": f"BERT-base width, {told}"}
    counted = counts.gradient("bert", subject.size)
    rows = [
        timing.row(taken, "ht.gradient", "plain forward", counted=counted, why=gradient.WHY, **about),
        timing.row(taken, "record maps", "eager forward", counted=1.0, why=recording.WHY, **about),
    ]
    if ablated:
        told = {"counted": counts.ablation("bert", subject.size), "why": EXACT}
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
            rows += one(subject, rounds, f"{value} {what}", ablated=what == "layers")
    subject = subjects.make("bert", subjects.size_of("bert", size, **base))
    for batches in BATCHES if size == "full" else (1, 2):
        taken = timing.interleaved(many(subject, batches, "ht.gradient"), rounds)
        rows.append(
            timing.row(
                taken,
                "ht.gradient",
                "plain forward",
                model=f"BERT-base width, corpus of {batches} batches",
                counted=counts.gradient("bert", subject.size),
                why=gradient.WHY,
            )
        )
    subject = subjects.make("bert", subjects.size_of("bert", size, **{**base, "layers": 2}))
    for batches in BATCHES[:2] if size == "full" else (1, 2):
        taken = timing.interleaved(many(subject, batches, "ht.ablation"), rounds)
        rows.append(
            timing.row(
                taken,
                "ht.ablation",
                "plain forward",
                model=f"BERT-base width, 2 layers, corpus of {batches} batches",
                counted=counts.ablation("bert", subject.size),
                why=EXACT,
            )
        )
    return rows


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=5)
    torch.set_num_threads(1)
    timing.tell(measure("tiny" if given.quick else "full", given.rounds), given.json)


if __name__ == "__main__":
    main()
