"""A corpus as batches: which sentences run together, and for how many batches everything is prepared at once."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from headtools.roles.corpus import Sentence
from headtools.roles.tally import Draws

TOGETHER = 256  # sentences that are sorted by length at once, and from which offsets are counted at once
CELLS = 2**18  # of maps between words: batches are prepared together that have no more of them
Numbered = tuple[int, tuple[list[int], Tensor]]


def batches(sentences: Sequence[Sentence], size: int, draws: Draws) -> Iterator[tuple[list[int], Tensor]]:
    """Numbers of the sentences of each batch, and their draws (times, B).

    Of every few hundred sentences those of like length go together, which leaves little padding.
    """
    window = max(TOGETHER, size)
    for first in range(0, len(sentences), window):
        numbers = range(first, min(first + window, len(sentences)))
        drawn = draws(len(numbers))
        order = sorted(numbers, key=lambda i: len(sentences[i].words))
        for start in range(0, len(order), size):
            some = order[start : start + size]
            yield some, drawn[:, torch.tensor(some) - first]


def prepared(items: Iterable[Numbered], sentences: Sequence[Sentence], tokenizer: object) -> Iterator[list[Numbered]]:
    """Put neighbouring batches together, for what costs a small model more by the batch than by the sentence.

    Each batch alone where there is no token to pad with, so that those of equal lengths run without.

    >>> some = [Sentence(("so",), (0,), ("root",), ("ADV",), (0,))] * 4
    >>> items = enumerate(([i], None) for i in range(4))
    >>> [[number for number, _ in group] for group in prepared(items, some, None)]
    [[0], [1], [2], [3]]
    """
    group: list[Numbered] = []
    rows = longest = 0
    for item in items:
        some = item[1][0]
        rows, longest = rows + len(some), max(longest, *(len(sentences[i].words) for i in some))
        many = rows > TOGETHER or rows * longest**2 > CELLS
        if group and (many or getattr(tokenizer, "pad_token", None) is None):
            yield group
            group, rows, longest = [], len(some), max(len(sentences[i].words) for i in some)
        group.append(item)
    if group:
        yield group
