"""What a pruned model's forward pass costs, against the pass of the whole model: ``make bench``.

    python tools/bench/pruned.py [--rounds 9] [--json FILE] [--quick]

The bound, counted in ``counts.py``: with a share p of all heads gone a pass needs 1 - p a of the operations, where a is
the share of attention in all of them, a third where the inner width is 4 d. Cutting all heads of BERT-base but one in
twelve saves no more than a third. The organism is decoded greedily besides: that time is for learners and has no count,
because at its size it goes into calls and not into operations.
"""

from __future__ import annotations

import copy

import counts
import subjects
import timing
import torch
from gradient import plain
from subjects import Subject

import headtools as ht

WHY = "operations left"
SHARES = {"bert": (0.25, 0.5, 0.75), "gpt2": (0.5,), "marian": (0.5,)}


def without(subject: Subject, share: float) -> torch.nn.Module:
    """A copy of the model without the first heads of every site."""
    model = copy.deepcopy(subject.model)
    heads = [(*site.key, head) for site in ht.sites(model) for head in range(round(share * site.heads))]
    if heads:
        ht.prune(model, heads)
    return model


def measure(kind: str, subject: Subject, rounds: int) -> list[dict]:
    """A row for each share of heads cut."""
    works = {"plain forward": lambda: plain(subject)}
    for share in SHARES[kind]:
        smaller = Subject(subject.name, without(subject, share), subject.batch, subject.labels, subject.size)
        works[f"forward without {share:.0%} of the heads"] = lambda s=smaller: plain(s)
    taken = timing.interleaved(works, rounds)
    row = {"model": subject.name, "why": WHY}
    return [
        timing.row(taken, name, "plain forward", **row, counted=counts.pruned(kind, subject.size, share))
        for name, share in zip(list(works)[1:], SHARES[kind], strict=True)
    ]


def decoding(rounds: int, sentences: int = 32) -> list[dict]:
    """The organism translating, whole and without half of the heads of every site."""
    model, tokenizer = ht.load()
    words = [" ".join(s.words) for s in ht.corpus("organism", limit=sentences)]
    batch = tokenizer(words, return_tensors="pt", padding=True)
    smaller = copy.deepcopy(model)
    ht.prune(smaller, {site.key: list(range(site.heads // 2)) for site in ht.sites(model)})

    def run(which: torch.nn.Module) -> None:
        with torch.no_grad():  # as many tokens from both, whatever they say
            which.generate(**batch, max_new_tokens=12, min_new_tokens=12, num_beams=1, do_sample=False)

    works = {"plain": lambda: run(model), "decoding without 50% of the heads": lambda: run(smaller)}
    taken = timing.interleaved(works, rounds)
    row = {
        "model": f"organism, {sentences} sentences, 12 tokens each",
        "counted": None,
        "why": "calls, not operations",
    }
    return [timing.row(taken, "decoding without 50% of the heads", "plain", **row)]


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=9)
    torch.set_num_threads(1)
    rows = []
    for kind in SHARES:
        subject = subjects.make(kind, subjects.size_of(kind, "tiny" if given.quick else "full"))
        rows += measure(kind, subject, given.rounds)
    rows += decoding(given.rounds, 2 if given.quick else 32)
    timing.tell(rows, given.json)


if __name__ == "__main__":
    main()
