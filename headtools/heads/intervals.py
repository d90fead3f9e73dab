"""Confidence intervals of means over examples, by bootstrap.

How often a nominal 95 % interval holds the true mean, in % of samples of n (``python -m recipes.coverage``); gradient
and ablation are the organism's 48 encoder heads, on samples of 2,500 sentences:

====================== ===== ===== ===== ===== ===== ===== ===== ===== =====
n                          5    10    20    50    99   100   200   500 2,000
====================== ===== ===== ===== ===== ===== ===== ===== ===== =====
normal                    97    96    96    95    95    95    95    96    96
exponential               93    95    96    96    96    96    95    96    96
lognormal                 88    91    93    95    94    94    95    95    96
|t|, 3 degrees            91    93    94    95    94    94    95    95    96
0 or 1, rate .3           83    97    98    98    96    95    96    96    97
0 or 1, rate .1           42    66    87    99    99    97    96    96    96
95 % zeros                24    36    57    83    93    93    97    97    97
95 % zeros, percentile    23    34    52    73    84    82    89    93    95
gradient                  34    46    65    79    83    83    78    78    77
gradient, flagged         71    63    90    99   100   100   100   100   100
ablation                  49    57    68    71    76    74    72    76    79
ablation, flagged         68    60    81    89    90    90    90    90    90
ablation, where not       32    41    61    86    97    94    93    95    97
====================== ===== ===== ===== ===== ===== ===== ===== ===== =====

"Flagged" are scores of which a tenth of the examples, or fewer, carry half (``HeadScores.few``). No method knows what a
rare, heavy example weighs that a sample does not contain, so their intervals are a lower bound of the uncertainty. With
fewer than 50 examples the flag misses some; a rate of a tenth or less is flagged though its interval covers from 50 on.
Percentiles, bootstrap-t alone and BCa cover no more at any n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

MIN_EXAMPLES = 5  # with fewer no interval has the coverage it promises
_MIN_ERROR_RATIO = 0.25  # a resample's standard error is at least this fraction of the sample's, so that t is bounded
_DRAWS_PER_CHUNK = 2**20  # indices drawn at once
_DRAWS = 1000  # resamples of an interval
_MAX_MEANS = 2**24  # resampled means held in memory at once


def bootstrap(
    values: Tensor, *, statistic: Callable[[Tensor], Tensor] | None = None, level: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return the bounds of a confidence interval of the mean of ``values``, at confidence level ``level``.

    ``values``: (n, ...) with one row per example, of which 1,000 resamples are drawn; both bounds have the shape of
    a row, and may exceed the range of the mean. Each is the outer one of Student's t and of bootstrap-t (Efron and
    Tibshirani 1993, ch. 12), which allows for skewness. Differences of two systems on the same examples are paired.
    ``statistic`` maps resampled means (draws, ...) to a function of them (draws, ...), such as a rank correlation:
    :func:`interval_around`. It is about samples of *n examples*: a rank correlation of noisy means rises with n.

    Raises ``ValueError`` for fewer than five rows, NaN, infinity, or a level that is none.

    >>> low, high = bootstrap(torch.tensor([[1.0, 2.0], [3.0, 8.0]] * 5), statistic=lambda m: m[:, 0] / m[:, 1])
    >>> low < 0.4 < high
    tensor(True)
    """
    if values.dim() < 1 or len(values) < MIN_EXAMPLES:
        raise ValueError(
            f"an interval needs {MIN_EXAMPLES} examples or more, got values of shape {tuple(values.shape)}: fewer do "
            "not show how much they vary; give more, or report the mean alone"
        )
    if not values.isfinite().all():
        raise ValueError("the values hold NaN or infinity: leave out the examples that have no value")
    if not 0 < level < 1:
        raise ValueError(f"level lies between 0 and 1, such as 0.95; got {level}")
    rows = values.detach().cpu().double().reshape(len(values), -1)
    if statistic is not None:
        return _of_statistic(rows, values.shape[1:], statistic, level)
    blocks = rows.split(max(1, _MAX_MEANS // _DRAWS), 1)  # of columns; all blocks have the same draws
    bounds_by_block = zip(*(_studentised(block, level) for block in blocks), strict=True)
    low, high = (torch.cat(bound).view(values.shape[1:]).float() for bound in bounds_by_block)
    return low, high


def bounds(values: Tensor, minimum: float | None = None, maximum: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the bounds of the 95 % interval of the mean of ``values`` (n, ...) in its range: NaN below five rows.

    >>> bounds(torch.tensor([0.0, 1.0]))
    (tensor(nan), tensor(nan))
    """
    if len(values) < MIN_EXAMPLES:
        return (torch.full(values.shape[1:], torch.nan),) * 2
    least, greatest = (-np.inf if minimum is None else minimum), (np.inf if maximum is None else maximum)
    low, high = bootstrap(values)
    return low.clamp(least, greatest), high.clamp(least, greatest)


def carriers(rows: Tensor) -> Tensor:
    """Return how many examples carry half of each score, in magnitude: rows (n, H) to (H,); of equal rows, half.

    >>> carriers(torch.tensor([[1.0, 9.0], [1.0, 2.0], [1.0, -1.0], [1.0, 0.0]]))
    tensor([2, 1])
    """
    shares = rows.double().abs().sort(0, descending=True).values
    shares = torch.where(shares.sum(0) > 0, shares, 1.0)  # scores of 0 everywhere are equal, too
    return (shares.cumsum(0) < shares.sum(0) * (0.5 - 1e-9)).sum(0) + 1  # the margin is for rounded sums of equal rows


# A score that is a smooth function of means (a ratio, a direction) is first linearised: every example gets a row, the
# score plus the example's influence on it, to first order (Efron and Tibshirani 1993, ch. 21). The mean of the rows is
# the score, and a bootstrap of the rows bounds it as a bootstrap of the examples would.


def linearised_ratio(sums: Tensor, counts: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is all sums (n, H) over all counts (n,), such as a mean over tokens.

    >>> linearised_ratio(torch.tensor([[1.0], [8.0]]), torch.tensor([1.0, 2.0])).mean()
    tensor(3.)
    """
    ratio = sums.sum(0) / counts.sum()
    return ratio + (sums - counts[:, None] * ratio) / counts.to(sums.dtype).mean()


def linearised_direction(rows: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is that of ``rows``, divided by its Euclidean length; zeros stay zeros.

    >>> linearised_direction(torch.tensor([[2.0, 4.0], [4.0, 4.0]])).mean(0)
    tensor([0.6000, 0.8000])
    """
    mean = rows.mean(0)
    length = mean.norm()
    if length == 0:
        return rows
    direction, deviation = mean / length, rows - mean
    return direction + (deviation - (deviation @ direction)[:, None] * direction) / length


def resample_counts(n_examples: int, times: int) -> Iterator[Tensor]:
    """Yield how often each resample draws each example, (draws, n_examples) float64, in chunks of constant memory."""
    generator = torch.Generator().manual_seed(0)  # the draws do not depend on the size of the chunks
    chunk_size = max(1, _DRAWS_PER_CHUNK // n_examples)
    for start in range(0, times, chunk_size):
        shape = (min(chunk_size, times - start), n_examples)
        indices = torch.randint(n_examples, shape, generator=generator)
        yield torch.zeros(shape, dtype=torch.double).scatter_add_(1, indices, torch.ones(shape, dtype=torch.double))


def _studentised(rows: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the outer bounds of Student's t and bootstrap-t for the means of rows (n, columns)."""
    n, mean = len(rows), rows.mean(0)
    deviations = rows - mean
    error = (deviations.square().sum(0) / (n * (n - 1))).sqrt()  # standard error of the mean
    t_values = []  # t* = (mean* - mean) / error*, Efron and Tibshirani 1993, ch. 12; (draws, columns)
    for counts in resample_counts(n, _DRAWS):  # (draws, n)
        shift = counts @ deviations / n
        resample_error = ((counts @ deviations.square() / n - shift.square()).clamp_min(0) / (n - 1)).sqrt()
        t_values.append(shift / torch.maximum(resample_error, _MIN_ERROR_RATIO * error))
    # where all rows are equal, t* is 0 / 0
    below, above = percentiles(torch.cat(t_values).T.nan_to_num(0.0, 0.0, 0.0), level)
    student = float(stdtrit(n - 1, (1 + level) / 2))
    # the upper percentile of t* gives the lower bound, and the reverse
    return mean - above.clamp_min(student) * error, mean - below.clamp_max(-student) * error


def _of_statistic(
    rows: Tensor, shape: torch.Size, statistic: Callable[[Tensor], Tensor], level: float
) -> tuple[Tensor, Tensor]:
    """Return the interval of a statistic of the mean of rows (n, columns); ``shape`` is that of one row."""

    def evaluate(means: Tensor) -> Tensor:
        result = statistic(means.view(-1, *shape))
        got = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
        if got[:1] != (len(means),):
            raise ValueError(f"statistic maps {len(means)} means, one a draw, to a tensor of as many rows, got {got}")
        if not result.isfinite().all():
            raise ValueError("the statistic of some resampled means is NaN or infinite: return a number for all")
        return result.detach().cpu().double()

    n, value = len(rows), evaluate(rows.mean(0, keepdim=True))[0]
    replicas = torch.cat([evaluate(counts @ rows / n) for counts in resample_counts(n, _DRAWS)])
    low, high = interval_around(value, replicas.movedim(0, -1), n, level)
    return low.float(), high.float()


def interval_around(value: Tensor, replicas: Tensor, n_examples: Tensor | int, level: float) -> tuple[Tensor, Tensor]:
    """Return the bounds of an interval around ``value`` (...) from its replicas (..., times), also for few examples.

    Each bound is the outer one of a percentile of the replicas and of Student's t with their standard deviation. The
    percentiles' level is higher, as t is wider than a normal distribution. ``n_examples`` is the number of examples
    that are resampled, a number or (...); fewer than ``MIN_EXAMPLES`` give NaN. NaN replicas are left out.

    >>> replicas = torch.linspace(-2, 2, 1001)
    >>> [round(float(end), 2) for end in interval_around(torch.tensor(0.0), replicas, 1000, 0.9)]
    [-1.9, 1.9]
    """
    n_examples = torch.as_tensor(n_examples, dtype=torch.double)
    enough = n_examples >= MIN_EXAMPLES
    n = n_examples.clamp_min(MIN_EXAMPLES)
    student = torch.as_tensor(stdtrit((n - 1).numpy(), (1 + level) / 2))
    outer_level = torch.as_tensor(1 - 2 * ndtr(-(student * (n / (n - 1)).sqrt()).numpy()))
    low, high = percentiles(replicas, outer_level)
    center = replicas.nanmean(-1, keepdim=True)
    half_width = student * ((replicas - center).square().nanmean(-1)).sqrt()
    low, high = torch.minimum(low, value - half_width), torch.maximum(high, value + half_width)
    return low.where(enough, torch.nan), high.where(enough, torch.nan)


def percentiles(replicas: Tensor, level: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the bounds of the middle ``level`` of replicas (..., times), each (...), without NaN replicas.

    They are interpolated linearly, as torch's and numpy's quantiles are. ``level`` may be a tensor (...).

    >>> percentiles(torch.arange(1001.0), 0.9)
    (tensor(50.), tensor(950.))
    """
    # numpy sorts short rows several times faster than torch finds their quantiles, and puts NaN last
    ordered = torch.from_numpy(np.sort(replicas.contiguous().numpy(), axis=-1))
    last = ((~ordered.isnan()).sum(-1, keepdim=True) - 1).clamp_min(0)
    level = torch.as_tensor(level, dtype=torch.double)[..., None]
    quantiles = []
    for fraction in ((1 - level) / 2, (1 + level) / 2):
        rank = (fraction * last.double()).clamp(0, ordered.shape[-1] - 1)
        below = rank.floor().long()
        lower, upper = (ordered.gather(-1, index)[..., 0] for index in (below, (below + 1).minimum(last)))
        quantiles.append(torch.lerp(lower, upper, (rank - below)[..., 0].to(lower.dtype)))
    return quantiles[0], quantiles[1]
