"""A corpus as batches: which sentences run together, and for how many batches everything is prepared at once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headtools.roles._taxonomy.running_sums import Draws
from headtools.roles.sentence import Sentence

TOGETHER = 256  # sentences that are sorted by length at once, and from which offsets are counted at once
CELLS = 2**18  # of maps between words: batches are prepared together that have no more of them
Group = list[tuple[int, list[int]]]  # batches that are prepared together: (number of the batch, its sentences)


def batches(sentences: Sequence[Sentence], size: int) -> Iterator[list[int]]:
    """Give the sentences of each batch, by index.

    Of every few hundred sentences those of like length go together, which leaves little padding.
    """
    for window in _windows(len(sentences), size):
        order = sorted(window, key=lambda i: len(sentences[i].words))
        yield from (order[start : start + size] for start in range(0, len(order), size))


def drawn_by_batch(sentences: Sequence[Sentence], size: int, draws: Draws) -> Iterator[Tensor]:
    """Give the draws of each batch's sentences, (times, B); a sentence's draws depend on its index alone."""
    drawn, window = torch.empty(0), range(0)
    windows = _windows(len(sentences), size)
    for indices in batches(sentences, size):
        if indices[0] not in window:
            window = next(windows)
            drawn = draws(len(window))
        yield drawn[:, torch.tensor(indices) - window.start]


def prepared(
    sentences: Sequence[Sentence], size: int, tokenizer: object, together: bool = True
) -> Iterator[Group]:
    """Put neighbouring batches together, for what costs a small model more by the batch than by the sentence.

    Each batch alone where there is no token to pad with, so that those of equal lengths run without, and where
    ``together`` is false.

    >>> some = [Sentence(("so",), (0,), ("root",), ("ADV",), (0,))] * 4
    >>> list(prepared(some, 1, None))
    [[(0, [0])], [(1, [1])], [(2, [2])], [(3, [3])]]
    """
    group: Group = []
    rows = longest = 0
    together = together and getattr(tokenizer, "pad_token", None) is not None
    for number, indices in enumerate(batches(sentences, size)):
        rows, longest = rows + len(indices), max(longest, *(len(sentences[i].words) for i in indices))
        many = rows > TOGETHER or rows * longest**2 > CELLS
        if group and (many or not together):
            yield group
            group, rows, longest = [], len(indices), max(len(sentences[i].words) for i in indices)
        group.append((number, indices))
    if group:
        yield group


def _windows(n: int, size: int) -> Iterator[range]:
    width = max(TOGETHER, size)
    return (range(first, min(first + width, n)) for first in range(0, n, width))
