"""Sums of a corpus that goes by once, with as many resampled sums, for intervals in constant memory.

Every sentence counts in the totals once, and in each of the ``times`` replicas as often as a draw from the Poisson
distribution with mean 1 says. With many sentences that is the bootstrap (Hanley and MacGibbon 2006; the percentile
interval is Efron's, 1979), and no sentence has to be kept. A sentence's draws depend on the seed and on its number
alone, so that the intervals are the same whatever the size of the batches.

What is held at any time, for R roles and H heads: ``times`` + 2 x R x H numbers, and those of the last sentences,
fewer than ``TOGETHER`` and a batch. Kept sums would be R x H numbers a sentence: more, from ``times`` sentences on.
"""

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast

TOGETHER = 64  # sentences whose draws go into the replicas by one product: one by one the replicas' memory is the cost


class Draws:
    """How often each of the next sentences is drawn: ``draws(B)`` gives (times, B), float32, from one seed."""

    def __init__(self, times: int, seed: int) -> None:
        self.times = times
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, sentences: int) -> Tensor:
        """Draw for the next ``sentences`` sentences."""
        # Sentence by sentence: the first ones get the same draws, however many are drawn at once.
        return torch.poisson(torch.ones(sentences, self.times), generator=self._generator).T


class Tally:
    """Running totals (...), float64, and replicas (times, ...), float32, of what each sentence adds."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self._replicas: Tensor | None = None
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, values: Tensor, draws: Tensor) -> "Tally":
        """Add sentences: values (B, ...) and draws (times, B)."""
        values = values.detach().to("cpu", torch.float32)
        total = values.double().sum(0)
        self.total = total if self.total is None else self.total + total
        self._waiting.append((values.flatten(1), draws))
        if sum(len(some) for some, _ in self._waiting) >= TOGETHER:
            self._fold()
        return self

    @property
    def replicas(self) -> Tensor:
        """The resampled sums so far; in memory those of one number lie side by side, as intervals want them."""
        self._fold()
        return self._replicas.view(*self.total.shape, -1).movedim(-1, 0)

    @without_autocast
    def _fold(self) -> None:
        if not self._waiting:
            return
        values, draws = (torch.cat(some, n) for n, some in enumerate(zip(*self._waiting, strict=True)))
        self._waiting.clear()
        if self._replicas is None:
            self._replicas = values.T @ draws.T
        else:
            self._replicas.addmm_(values.T, draws.T)  # in place: the replicas are by far the largest thing here
