"""Scores with intervals from one row per example, also where the score is not a plain mean.

A score that is a smooth function of means (a ratio, a direction) is first linearised: every example gets a row, the
score plus the example's influence on it, to first order (Efron and Tibshirani 1993, ch. 21). The mean of the rows is
the score, and a bootstrap of the rows bounds it as a bootstrap of the examples would.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headtools.heads.bootstrap import MIN_EXAMPLES, bounds
from headtools.heads.scores import HeadScores


def with_intervals(
    rows: Mapping[tuple, Tensor], name: str, minimum: float | None = None, maximum: float | None = None
) -> HeadScores:
    """Return the means of rows, {key: (n, H)}, as float32 scores, with 95 % intervals from five rows on.

    With fewer rows the scores have no bounds, and ``notes["interval"]`` says why. Bounds are clamped to ``minimum`` and
    ``maximum``, the range of the score.

    >>> import torch
    >>> scores = with_intervals({("encoder", 0): torch.tensor([[1.0, 5.0], [3.0, 5.0]])}, "example")
    >>> scores.values["encoder", 0], scores.notes
    (tensor([2., 5.]), {'interval': 'none: 2 examples came, 5 are needed'})
    """
    values = {key: site_rows.mean(0).float() for key, site_rows in rows.items()}
    n_rows = min(len(site_rows) for site_rows in rows.values())
    if n_rows < MIN_EXAMPLES:
        got = f"{n_rows} example{'s' if n_rows > 1 else ''} came"
        return HeadScores(values, name, notes={"interval": f"none: {got}, {MIN_EXAMPLES} are needed"})
    low, high = {}, {}
    # Sites with equally many rows are resampled together: the same draws for all their heads, in one product.
    for size in {len(site_rows) for site_rows in rows.values()}:
        same_size = {key: site_rows for key, site_rows in rows.items() if len(site_rows) == size}
        widths = [site_rows.shape[1] for site_rows in same_size.values()]
        ends = bounds(torch.cat(list(same_size.values()), 1), minimum, maximum)
        for by_site, end in zip((low, high), ends, strict=True):
            by_site.update(zip(same_size, end.split(widths), strict=True))
    return HeadScores(values, name, low, high)


def linearised_ratio(sums: Tensor, counts: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is all sums (n, H) over all counts (n,), such as a mean over tokens.

    >>> import torch
    >>> linearised_ratio(torch.tensor([[1.0], [8.0]]), torch.tensor([1.0, 2.0])).mean()
    tensor(3.)
    """
    ratio = sums.sum(0) / counts.sum()
    return ratio + (sums - counts[:, None] * ratio) / counts.to(sums.dtype).mean()


def linearised_direction(rows: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is that of ``rows``, divided by its Euclidean length; zeros stay zeros.

    >>> import torch
    >>> linearised_direction(torch.tensor([[2.0, 4.0], [4.0, 4.0]])).mean(0)
    tensor([0.6000, 0.8000])
    """
    mean = rows.mean(0)
    length = mean.norm()
    if length == 0:
        return rows
    direction, deviation = mean / length, rows - mean
    return direction + (deviation - (deviation @ direction)[:, None] * direction) / length
