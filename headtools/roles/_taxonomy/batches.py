"""A corpus as batches: which sentences run together, and how often each of them is drawn in the bootstrap.

Sentences of similar length go together, which leaves little padding, but only within windows of the corpus, so that
it can be read as a stream.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headtools.roles.sentence import Sentence

WINDOW = 256  # sentences that are sorted by length together


def batches(sentences: Sequence[Sentence], batch_size: int) -> Iterator[list[int]]:
    """Yield the indices of the sentences of each batch."""
    for _, window_batches in _windows(sentences, batch_size):
        yield from window_batches


def resample_counts(sentences: Sequence[Sentence], batch_size: int, times: int, seed: int) -> Iterator[Tensor]:
    """Yield how often each sentence of a batch is drawn, (times, B); it depends on the seed and its index alone."""
    generator = torch.Generator().manual_seed(seed)
    for window, window_batches in _windows(sentences, batch_size):
        # Sentences are the rows here, so that the first ones get the same draws however many are drawn at once.
        counts = torch.poisson(torch.ones(len(window), times), generator=generator)
        yield from (counts[torch.tensor(indices) - window.start].T for indices in window_batches)


def _windows(sentences: Sequence[Sentence], batch_size: int) -> Iterator[tuple[range, list[list[int]]]]:
    """Yield consecutive sentences, with the batches that they make."""
    width = max(WINDOW, batch_size)
    for first in range(0, len(sentences), width):
        window = range(first, min(first + width, len(sentences)))
        order = sorted(window, key=lambda i: len(sentences[i].words))
        yield window, [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
