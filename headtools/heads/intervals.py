"""How far a mean may be from the truth: bootstrap intervals over examples."""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrap(values: Tensor, *, times: int = 1000, level: float = 0.95, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the ends of the interval that holds the mean of ``values`` with probability ``level``.

    ``values``: (n, ...) one row per example, such as a sentence; rows are drawn with replacement ``times`` times and
    the middle ``level`` of the means is kept (Efron 1979, the percentile interval). For two systems on the same
    examples pass the differences: that is the paired bootstrap. Both ends have the shape of one row.

    Raises ``ValueError`` for fewer than two rows, NaN or a level outside (0, 1).

    >>> low, high = bootstrap(torch.tensor([0.0, 1.0] * 50))
    >>> 0.35 < low < 0.45 and 0.55 < high < 0.65
    tensor(True)
    """
    if values.dim() < 1 or len(values) < 2:
        raise ValueError(f"an interval needs two examples or more, got values of shape {tuple(values.shape)}")
    if values.isnan().any():
        raise ValueError("the values hold NaN: leave out the examples that have no value")
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1, got {level}")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(values), (times, len(values)), generator=generator)
    # how often each example was drawn, so that all means are one product
    weights = torch.zeros(times, len(values)).scatter_add_(1, draws, torch.ones_like(draws, dtype=torch.float))
    means = (weights.double() @ values.detach().double().cpu().reshape(len(values), -1)) / len(values)
    ends = means.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.double), dim=0)
    low, high = ends.view(2, *values.shape[1:]).float()
    return low, high
