"""Sums of a corpus that goes by once, with as many resampled sums, for intervals in constant memory.

Every sentence counts in the totals once, and in each of the ``times`` replicas as often as a draw from the Poisson
distribution with mean 1 says. With many sentences that is the bootstrap (Hanley and MacGibbon 2006; the percentile
interval is Efron's, 1979), and no sentence has to be kept.
"""

import torch
from torch import Tensor


class Draws:
    """How often each of the next sentences is drawn: ``draws(B)`` gives (times, B), float32, from one seed."""

    def __init__(self, times: int, seed: int) -> None:
        self.times = times
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, sentences: int) -> Tensor:
        """Draw for the next ``sentences`` sentences."""
        return torch.poisson(torch.ones(self.times, sentences), generator=self._generator)


class Tally:
    """Running totals (...) and replicas (times, ...) of what each sentence adds."""

    def __init__(self) -> None:
        self.total: Tensor | None = None
        self.replicas: Tensor | None = None

    def add(self, values: Tensor, draws: Tensor) -> "Tally":
        """Add sentences: values (B, ...) and draws (times, B)."""
        values = values.detach().to("cpu", torch.float32)
        total = values.double().sum(0)
        replicas = (draws @ values.flatten(1)).view(len(draws), *values.shape[1:])
        self.total = total if self.total is None else self.total + total
        # In place: the replicas are by far the largest thing here.
        self.replicas = replicas if self.replicas is None else self.replicas.add_(replicas)
        return self


def interval(replicas: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the percentile interval over the first axis; replicas that are no number are left out.

    >>> low, high = interval(torch.arange(1001.0), 0.9)
    >>> float(low), float(high)
    (50.0, 950.0)
    """
    ends = torch.tensor([(1 - level) / 2, (1 + level) / 2])
    low, high = torch.nanquantile(replicas.float(), ends, dim=0)
    return low, high
