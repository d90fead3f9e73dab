"""A corpus as batches: which sentences run together, and which batches are prepared together.

Sentences of similar length go together, which leaves little padding, but only within windows of the corpus, so that
it can be read as a stream.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headtools.roles._taxonomy.running_sums import ResampleCounts
from headtools.roles.sentence import Sentence

WINDOW = 256  # sentences that are sorted by length together, and at most prepared together
MAX_CELLS = 2**18  # of maps between words: at most so many in batches that are prepared together
Group = list[tuple[int, list[int]]]  # batches that are prepared together: (index of the batch, of its sentences)


def batches(sentences: Sequence[Sentence], batch_size: int) -> Iterator[list[int]]:
    """Yield the indices of the sentences of each batch."""
    for window in _windows(len(sentences), batch_size):
        order = sorted(window, key=lambda i: len(sentences[i].words))
        yield from (order[start : start + batch_size] for start in range(0, len(order), batch_size))


def resample_counts_by_batch(
    sentences: Sequence[Sentence], batch_size: int, resample_counts: ResampleCounts
) -> Iterator[Tensor]:
    """Yield how often each sentence of a batch is drawn, (times, B); it depends on the sentence's index alone."""
    counts, window = torch.empty(0), range(0)
    windows = _windows(len(sentences), batch_size)
    for indices in batches(sentences, batch_size):
        if indices[0] not in window:
            window = next(windows)
            counts = resample_counts(len(window))
        yield counts[:, torch.tensor(indices) - window.start]


def group_batches(
    sentences: Sequence[Sentence], batch_size: int, tokenizer: object, together: bool = True
) -> Iterator[Group]:
    """Group consecutive batches whose tokens and targets are made at once: with a small model that costs most.

    Each group is one batch where the tokenizer has no padding token, so that batches of sentences of equal length run
    without, and where ``together`` is false.

    >>> sentences = [Sentence(("so",), (0,), ("root",), ("ADV",), (0,))] * 4
    >>> list(group_batches(sentences, 1, None))
    [[(0, [0])], [(1, [1])], [(2, [2])], [(3, [3])]]
    """
    group: Group = []
    n_sentences = max_length = 0
    together = together and getattr(tokenizer, "pad_token", None) is not None
    for batch_index, indices in enumerate(batches(sentences, batch_size)):
        length = max(len(sentences[i].words) for i in indices)
        n_sentences, max_length = n_sentences + len(indices), max(max_length, length)
        too_large = n_sentences > WINDOW or n_sentences * max_length**2 > MAX_CELLS
        if group and (too_large or not together):
            yield group
            group, n_sentences, max_length = [], len(indices), length
        group.append((batch_index, indices))
    if group:
        yield group


def _windows(n: int, batch_size: int) -> Iterator[range]:
    width = max(WINDOW, batch_size)
    return (range(first, min(first + width, n)) for first in range(0, n, width))
