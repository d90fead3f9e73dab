"""What gradient importance of every head costs, against a plain forward pass: ``make bench``.

    python tools/bench/gradient.py [--rounds 7] [--json FILE] [--quick]

The bound, counted in ``counts.py``: forward, and the half of backward that is the activations', down to the lowest
heads. "forward and backward, activations only" is the same in practice: the loss differentiated at the lowest z with
all weights frozen, by hand and without scores. "forward and backward, all weights" is a training step's:
three products for each weight.
"""

from __future__ import annotations

import counts
import subjects
import timing
import torch
from subjects import Subject

import headtools as ht
from headtools.importance._inputs import evaluating

WHY = "forward and the activations' half of backward"


def plain(subject: Subject) -> None:
    """A forward pass."""
    with torch.no_grad():
        subject.model(**subject.batch)


def activations(subject: Subject) -> None:
    """Forward, and backward to the lowest heads with all weights frozen."""
    leaves = []

    def leaf(_module: torch.nn.Module, args: tuple) -> tuple | None:
        if args[0].requires_grad:
            return None
        leaves.append(args[0].detach().requires_grad_())
        return (leaves[-1], *args[1:])

    hooks = [site.out.register_forward_pre_hook(leaf) for site in ht.sites(subject.model)]
    with evaluating(subject.model):
        each = subjects.loss(subject.model(**subject.batch).logits, subject.labels)
        torch.autograd.grad(each.sum(), leaves)
    for hook in hooks:
        hook.remove()


def training(subject: Subject) -> None:
    """Forward and the usual backward, to all weights."""
    subjects.loss(subject.model(**subject.batch).logits, subject.labels).sum().backward()
    subject.model.zero_grad(set_to_none=True)


def ours(subject: Subject) -> ht.HeadScores:
    """``ht.gradient`` with all it does."""
    return ht.gradient(subject.model, subject.batch, loss=lambda out, _batch: subjects.loss(out.logits, subject.labels))


def secant(subject: Subject) -> ht.HeadScores:
    """``ht.gradient`` with the secant of attention's softmax: no further pass, and a softmax in steps."""
    return ht.gradient(
        subject.model, subject.batch, loss=lambda o, _batch: subjects.loss(o.logits, subject.labels), softmax="secant"
    )


WORKS = {
    "plain forward": plain,
    "ht.gradient": ours,
    "ht.gradient by secant": secant,
    "forward and backward, activations only": activations,
    "forward and backward, all weights": training,
}


def organism(sentences: int) -> Subject:
    """The shipped model with test sentences and their translations; so small that calls cost more than operations."""
    model, tokenizer = ht.load()
    some = list(ht.corpus("organism", limit=sentences))
    batch = tokenizer([" ".join(s.words) for s in some], return_tensors="pt", padding=True)
    target = tokenizer([" ".join(s.target) for s in some], return_tensors="pt", padding=True).input_ids
    batch = {**batch, "decoder_input_ids": target, "use_cache": False}
    return Subject(f"organism, {sentences} sentences", model, batch, target, subjects.TINY)


def measure(kind: str, subject: Subject, rounds: int) -> list[dict]:
    """Rows of ``ht.gradient`` and of the two backward passes in plain forward passes, and of the secant in slopes."""
    taken = timing.interleaved({name: lambda w=work: w(subject) for name, work in WORKS.items()}, rounds)
    known = kind in subjects.MAKERS
    row = {
        "model": subject.name,
        "counted": counts.gradient(kind, subject.size) if known else None,
        "why": WHY if known else "calls, not operations",
    }
    rows = [timing.row(taken, name, "plain forward", **row) for name in WORKS if "plain" not in name]
    told = {"model": subject.name, "counted": 1.0, "why": "no further pass"}
    return [*rows, timing.row(taken, "ht.gradient by secant", "ht.gradient", **told)]


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=7)
    torch.set_num_threads(1)
    rows = []
    for kind in subjects.MAKERS:
        rows += measure(
            kind, subjects.make(kind, subjects.size_of(kind, "tiny" if given.quick else "full")), given.rounds
        )
    rows += measure("organism", organism(2 if given.quick else 32), given.rounds)
    timing.tell(rows, given.json)


if __name__ == "__main__":
    main()
