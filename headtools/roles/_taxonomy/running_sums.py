"""Sums over a corpus that is read once, with as many resampled sums, for intervals in constant memory.

Every sentence counts in the totals once, and in each of the ``times`` replicas as often as a draw from the Poisson
distribution with mean 1 says. With many sentences that is the bootstrap (Hanley and MacGibbon 2006; the percentile
interval is Efron's, 1979), and no sentence has to be kept.

Required: a sentence's draws depend on the seed and on its index alone, so that the intervals are the same whatever the
size of the batches. Memory, for R roles and H heads, is ``times`` + 2 x R x H numbers, and those of the last sentences,
fewer than ``BUFFER`` and a batch. The sums of single sentences would be R x H numbers each: more, from ``times``
sentences on.
"""

import torch
from torch import Tensor

from headtools.heads._devices import without_autocast

# Sentences that go into the replicas by one product: one by one, the time would go into reading the replicas' memory.
BUFFER = 64


class RunningSums:
    """Totals (...), float64, and replicas (times, ...), float32, of values that each sentence adds."""

    def __init__(self) -> None:
        self.total: Tensor | float = 0.0
        self._replicas: Tensor | None = None  # (values, times), the values flattened
        self._buffer: list[tuple[Tensor, Tensor]] = []

    def add(self, values: Tensor, resample_counts: Tensor) -> None:
        """Add sentences: values (B, ...) and resample counts (times, B)."""
        values = values.float()
        self.total = self.total + values.double().sum(0)
        self._buffer.append((values.flatten(1), resample_counts))
        if sum(len(buffered) for buffered, _ in self._buffer) >= BUFFER:
            self._flush()

    @property
    def replicas(self) -> Tensor:
        """The resampled sums so far; in memory those of one value are contiguous, as intervals want them."""
        self._flush()
        return self._replicas.view(*self.total.shape, -1).movedim(-1, 0)

    @without_autocast
    def _flush(self) -> None:
        if not self._buffer:
            return
        values, counts = (torch.cat(parts, axis) for axis, parts in enumerate(zip(*self._buffer, strict=True)))
        self._buffer.clear()
        if self._replicas is None:
            self._replicas = values.T @ counts.T
        else:
            self._replicas.addmm_(values.T, counts.T)  # in place: the replicas are by far the largest tensor here
