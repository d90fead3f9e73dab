"""Confidence intervals of means over examples, by bootstrap.

How often a nominal 95 % interval of a mean covers the true mean, in %, by simulation (4,000 samples each; "fractions"
are a ratio of sums over sentences of several words):

===================== ==== ==== ==== ==== ==== ==== ==== ====
n                        5    8   10   15   20   30   50  100
===================== ==== ==== ==== ==== ==== ==== ==== ====
normal, percentile      83   89   90   92   93   93   94   94
normal, here            97   96   96   96   95   95   95   94
exponential, perc.      78   84   86   89   90   92   92   94
exponential, here       93   94   95   95   96   96   96   94
fractions, percentile   81   87   88   91   92   93   94   94
fractions, here         95   95   95   95   95   95   95   94
lognormal, perc.        72   78   80   83   85   87   89   91
lognormal, here         89   90   92   92   93   94   94   91
0 or 1, rate .3, here   83   94   97   99   97   98   98   96
0 or 1, rate .1, here   42   56   65   80   87   95   98   95
===================== ==== ==== ==== ==== ==== ==== ==== ====

For a rank correlation of two measures of 48 heads, each a mean over 32 sentences of the organism, the interval covers
the mean correlation of samples of 32 sentences (.6 for ablation and gradient) in 93 to 98 % of cases, and that of 800
sentences (.9) hardly ever.

So intervals start at ``MIN_EXAMPLES`` examples, and no method makes up for what a sample does not contain: about events
rarer than one example in n, such as a single sentence that costs more than all others together, an interval says
nothing. Equal examples give an interval of width 0, which says that they are equal, not that the mean is certain: of
samples of ten numbers that are 0 or 1 with rate .1, 35 % are all 0, and their intervals miss the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.special import ndtr, stdtrit
from torch import Tensor

MIN_EXAMPLES = 5  # with fewer no interval has the coverage it promises
MANY_EXAMPLES = 100  # from here on the percentile interval covers as well as any other, and is the simplest
_MIN_ERROR_RATIO = 0.25  # of the standard error: the least that a resample's own counts as, so that no bound runs away
_DRAWS_PER_CHUNK = 2**20  # numbers drawn at once
_MAX_MEANS = 2**24  # drawn means held at once


def bootstrap(
    values: Tensor,
    *,
    statistic: Callable[[Tensor], Tensor] | None = None,
    times: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return the ends of the interval that holds the mean of ``values`` with probability ``level``.

    ``values``: (n, ...) one row per example, such as a sentence; rows are drawn with replacement ``times`` times. From
    100 rows on the interval is the middle ``level`` of the drawn means (Efron 1979, the percentile interval). That is
    too narrow for fewer, so each end is then the further one of Student's t and of the studentised bootstrap
    (bootstrap-t, Efron and Tibshirani 1993, ch. 12), which allows for skewness. Five rows are the least: the table at
    the head of the module says how often intervals hold the truth. For two systems on the same examples pass the
    differences: that is the paired bootstrap. Both ends have the shape of one row; they may pass what the mean cannot,
    so clamp those of shares.

    ``statistic`` takes drawn means, (draws, ...), to any function of them, (draws, ...): the interval is then that of
    the statistic of the mean row, for instance a rank correlation of two measures. Each end is the further one of a
    percentile and of Student's t with the standard deviation of the draws, so that the statistic itself lies inside.
    It bounds what *n examples* give: a rank correlation of noisy means rises with their number, and resampling n
    examples does not tell how far.

    Raises ``ValueError`` for fewer than five rows, NaN, infinity, a level outside (0, 1) or no draws.

    >>> low, high = bootstrap(torch.tensor([0.0, 1.0] * 50))
    >>> 0.35 < low < 0.45 and 0.55 < high < 0.65
    tensor(True)
    >>> rows = torch.tensor([[1.0, 2.0], [3.0, 8.0]] * 5)
    >>> low, high = bootstrap(rows, statistic=lambda means: means[:, 0] / means[:, 1])
    >>> low < 0.4 < high
    tensor(True)
    """
    if values.dim() < 1 or len(values) < MIN_EXAMPLES:
        raise ValueError(
            f"an interval needs {MIN_EXAMPLES} examples or more, got values of shape {tuple(values.shape)}: fewer do "
            "not show how much they vary; give more, one row each, or report the mean alone"
        )
    if not values.isfinite().all():
        raise ValueError("the values hold NaN or infinity: leave out the examples that have no value")
    if not 0 < level < 1:
        raise ValueError(f"level is a probability between 0 and 1, got {level}")
    if times < 1:
        raise ValueError(f"times is how often examples are drawn, 1 or more, got {times}: 1000 is usual")
    rows = values.detach().cpu().double().flatten(1) if values.dim() > 1 else values.detach().cpu().double()[:, None]
    if statistic is not None:
        return _of_statistic(rows, values.shape[1:], statistic, times, level, seed)
    ends_of = _percentile if len(rows) >= MANY_EXAMPLES else _studentised
    blocks = rows.split(max(1, _MAX_MEANS // times), 1)  # of columns, each of which has the same draws
    ends = zip(*(ends_of(block, times, level, seed) for block in blocks), strict=True)
    low, high = (torch.cat(end).view(values.shape[1:]).float() for end in ends)
    return low, high


def bounds(values: Tensor, least: float | None = None, most: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the ends of the 95 % interval of the mean of ``values`` (n, ...), as tables have it: NaN below five rows.

    ``least`` and ``most`` are what the mean cannot pass; the ends stop there.

    >>> bounds(torch.tensor([0.0, 1.0]))
    (tensor(nan), tensor(nan))
    """
    if len(values) < MIN_EXAMPLES:
        nothing = torch.full(values.shape[1:], torch.nan)
        return nothing, nothing
    low, high = bootstrap(values)
    return (low, high) if (least, most) == (None, None) else (low.clamp(least, most), high.clamp(least, most))


def resample_counts(examples: int, times: int, seed: int) -> Iterator[Tensor]:
    """Give how often each example is drawn, (draws, examples) float64, in parts that are ``times`` draws together.

    The parts keep memory constant; the draws do not depend on where they are cut.
    """
    generator = torch.Generator().manual_seed(seed)
    together = max(1, _DRAWS_PER_CHUNK // examples)
    for start in range(0, times, together):
        shape = (min(together, times - start), examples)
        draws = torch.randint(examples, shape, generator=generator)
        yield torch.zeros(shape, dtype=torch.double).scatter_add_(1, draws, torch.ones(shape, dtype=torch.double))


def _percentile(rows: Tensor, times: int, level: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ends of the middle of the resampled means of rows (n, columns)."""
    means = torch.cat([counts @ rows for counts in resample_counts(len(rows), times, seed)]) / len(rows)
    return percentiles(means.T, level)


def _studentised(rows: Tensor, times: int, level: float, seed: int) -> tuple[Tensor, Tensor]:
    """The wider one, at each end, of Student's t and bootstrap-t for the means of rows (n, columns)."""
    n, mean = len(rows), rows.mean(0)
    away = rows - mean
    error = (away.square().sum(0) / (n * (n - 1))).sqrt()
    ratios = []
    for counts in resample_counts(n, times, seed):
        moved = counts @ away / n
        own = ((counts @ away.square() / n - moved.square()).clamp_min(0) / (n - 1)).sqrt()
        ratios.append(moved / torch.maximum(own, _MIN_ERROR_RATIO * error))
    # Where all rows are equal there is no ratio: 0 / 0
    below, above = percentiles(torch.cat(ratios).T.nan_to_num(0.0, 0.0, 0.0), level)
    student = float(stdtrit(n - 1, (1 + level) / 2))
    return mean - above.clamp_min(student) * error, mean - below.clamp_max(-student) * error


def _of_statistic(
    rows: Tensor, shape: torch.Size, statistic: Callable[[Tensor], Tensor], times: int, level: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Interval of a statistic of the mean of rows (n, columns), each of which has some ``shape``."""

    def of(means: Tensor) -> Tensor:
        made = statistic(means.view(-1, *shape))
        if not isinstance(made, Tensor) or made.dim() < 1 or len(made) != len(means):
            got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ValueError(f"statistic takes means of shape {(len(means), *shape)} to a tensor of {len(means)} rows, "
                             f"one per draw, got {got}")  # fmt: skip
        if not made.isfinite().all():
            raise ValueError("the statistic of some drawn means is NaN or infinite: return a number for all of them")
        return made.detach().cpu().double()

    value = of(rows.mean(0, keepdim=True))[0]
    replicas = torch.cat([of(counts @ rows / len(rows)) for counts in resample_counts(len(rows), times, seed)])
    low, high = interval_around(value, replicas.movedim(0, -1), len(rows), level)
    return low.float(), high.float()


def interval_around(value: Tensor, replicas: Tensor, examples: Tensor | int, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends of an interval round ``value`` (...) by its replicas (..., times), for few examples too.

    Each end is the further one of a percentile of the replicas and of Student's t with their standard deviation. The
    percentiles are those of a higher level, as far out as t is from the normal distribution. ``examples`` are how many
    are resampled, a number or (...); fewer than ``MIN_EXAMPLES`` give NaN. Replicas that are NaN are left out.

    >>> replicas = torch.linspace(-2, 2, 1001)
    >>> [round(float(end), 2) for end in interval_around(torch.tensor(0.0), replicas, 1000, 0.9)]
    [-1.9, 1.9]
    """
    examples = torch.as_tensor(examples, dtype=torch.double)
    known = examples >= MIN_EXAMPLES
    n = examples.clamp_min(MIN_EXAMPLES)
    student = torch.from_numpy(np.asarray(stdtrit((n - 1).numpy(), (1 + level) / 2)))
    outer = torch.from_numpy(np.asarray(1 - 2 * ndtr(-(student * (n / (n - 1)).sqrt()).numpy())))
    low, high = percentiles(replicas, outer)
    centre = replicas.nanmean(-1, keepdim=True)
    reach = student * ((replicas - centre).square().nanmean(-1)).sqrt()
    low, high = torch.minimum(low, value - reach), torch.maximum(high, value + reach)
    return low.where(known, torch.nan), high.where(known, torch.nan)


def percentiles(replicas: Tensor, level: float | Tensor) -> tuple[Tensor, Tensor]:
    """Return the ends of the middle ``level`` of replicas (..., times), each (...); what is no number is left out.

    Between two replicas the end is interpolated, as torch's and numpy's quantiles are. ``level`` may be one for each,
    (...).

    >>> low, high = percentiles(torch.arange(1001.0), 0.9)
    >>> float(low), float(high)
    (50.0, 950.0)
    """
    # numpy sorts short rows several times faster than torch finds their quantiles, and puts what is no number last.
    ordered = torch.from_numpy(np.sort(replicas.contiguous().numpy(), axis=-1))
    last = torch.full((*ordered.shape[:-1], 1), ordered.shape[-1] - 1)
    if ordered[..., -1].isnan().any():
        last = ((~ordered.isnan()).sum(-1, keepdim=True) - 1).clamp_min(0)
    level = level[..., None] if isinstance(level, Tensor) else level
    ends = []
    for share in ((1 - level) / 2, (1 + level) / 2):
        rank = (share * last.double()).clamp(0, ordered.shape[-1] - 1)
        below = rank.floor().long()
        value, above = (ordered.gather(-1, n)[..., 0] for n in (below, (below + 1).minimum(last)))
        ends.append(torch.lerp(value, above, (rank - below)[..., 0].to(value.dtype)))
    return ends[0], ends[1]
