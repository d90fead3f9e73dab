"""What trying a model costs, against plain forward passes of the same short text: ``make bench``.

    python tools/bench/verify.py [--rounds 9] [--json FILE] [--quick]

The count. A pass over the text and one beside padding, 2. Each attention module is called six times more, alone: as it
was, with another last token, with a head's rows of queries, keys and values changed, and with a gate of 0. Attention
has 4 of a layer's 12 d² weights, which is all that a text of eight tokens costs: 6 / 3 = 2. Together 4; a stack that
has cross-attention as well, with 8 of 16 d², needs 2 + 6 / 2 = 5 there. The promise is less than five
passes for BERT-base.
"""

from __future__ import annotations

from functools import partial

import subjects
import timing
import torch
from gradient import plain

import headtools as ht
from headtools.heads.verify import TOKENS

UNIT, BOUND = "forward, 8 tokens", 5.0
WHY = "two passes, six calls of each attention"
COUNTED = {"bert": 4.0, "gpt2": 4.0}


def measure(subject: subjects.Subject, rounds: int, kind: str = "bert") -> list[dict]:
    """One row: ``ht.verify`` of a model whose sites are known, in passes over the text that it tries."""
    ht.sites(subject.model)
    works = {UNIT: partial(plain, subject), "verify": partial(ht.verify, subject.model, subject.batch)}
    taken = timing.interleaved(works, rounds)
    bound = BOUND if subject.size == subjects.size_of(kind, rows=1, tokens=TOKENS) else None
    return [timing.row(taken, "verify", UNIT, model=subject.name, counted=COUNTED[kind], why=WHY, bound=bound)]


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=9)
    torch.set_num_threads(1)
    size = "tiny" if given.quick else "full"
    made = {kind: subjects.make(kind, subjects.size_of(kind, size, rows=1, tokens=TOKENS)) for kind in COUNTED}
    timing.tell([row for kind, subject in made.items() for row in measure(subject, given.rounds, kind)], given.json)


if __name__ == "__main__":
    main()
