"""How far a mean may be from the truth: bootstrap intervals over examples."""

from __future__ import annotations

import numpy as np
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
    means = (weights.double() @ values.detach().cpu().double().reshape(len(values), -1)) / len(values)
    low, high = (end.view(values.shape[1:]).float() for end in percentiles(means.T, level))
    return low, high


def percentiles(replicas: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the middle ``level`` of replicas (..., times), each (...); what is no number is left out.

    Between two replicas the end is interpolated, as torch's and numpy's quantiles are.

    >>> low, high = percentiles(torch.arange(1001.0), 0.9)
    >>> float(low), float(high)
    (50.0, 950.0)
    """
    # numpy sorts short rows several times faster than torch finds their quantiles, and puts what is no number last.
    ordered = torch.from_numpy(np.sort(replicas.contiguous().numpy(), axis=-1))
    last = torch.full((*ordered.shape[:-1], 1), ordered.shape[-1] - 1)
    if ordered[..., -1].isnan().any():
        last = ((~ordered.isnan()).sum(-1, keepdim=True) - 1).clamp_min(0)
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        rank = share * last.double()
        below = rank.floor().long()
        value, above = (ordered.gather(-1, n)[..., 0] for n in (below, (below + 1).minimum(last)))
        ends.append(torch.lerp(value, above, (rank - below)[..., 0].to(value.dtype)))
    return ends[0], ends[1]
