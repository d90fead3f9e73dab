"""Scores with intervals from one row per example, also where the score is no plain mean.

A score that is a smooth function of means (a ratio, a norm) is turned into the mean of rows that move as the score
moves when an example comes or goes, to first order (Efron and Tibshirani 1993, ch. 21: the influence of an example).
Bootstrapping those rows then bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from headtools.heads.intervals import bootstrap
from headtools.heads.scores import HeadScores


def scored(
    rows: Mapping[tuple, Tensor], name: str, least: float | None = None, most: float | None = None
) -> HeadScores:
    """Return the means of rows, {key: (n, H)}, as float32 scores, with 95 % intervals where there are two rows or more.

    ``least`` and ``most`` are what the score cannot pass; bounds stop there.

    >>> import torch
    >>> scored({("encoder", 0): torch.tensor([[1.0, 5.0], [3.0, 5.0]])}, "example").values["encoder", 0]
    tensor([2., 5.])
    """
    values = {key: row.mean(0).float() for key, row in rows.items()}
    if min(len(row) for row in rows.values()) < 2:
        return HeadScores(values, name)
    low, high = {}, {}
    for key, row in rows.items():
        ends = [end.clamp(least, most) if (least, most) != (None, None) else end for end in bootstrap(row)]
        low[key], high[key] = ends
    return HeadScores(values, name, low, high)


def of_ratio(sums: Tensor, counts: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is all sums (n, H) over all counts (n,), such as a mean over tokens.

    >>> import torch
    >>> of_ratio(torch.tensor([[1.0], [8.0]]), torch.tensor([1.0, 2.0])).mean()
    tensor(3.)
    """
    mean = sums.sum(0) / counts.sum()
    return mean + (sums - counts[:, None] * mean) / counts.to(sums.dtype).mean()


def of_normalised(rows: Tensor) -> Tensor:
    """Return rows (n, H) whose mean is that of ``rows``, divided by its Euclidean length; zeros stay zeros.

    >>> import torch
    >>> of_normalised(torch.tensor([[2.0, 4.0], [4.0, 4.0]])).mean(0)
    tensor([0.6000, 0.8000])
    """
    mean = rows.mean(0)
    length = mean.norm()
    if length == 0:
        return rows
    direction, away = mean / length, rows - mean
    return direction + (away - (away @ direction)[:, None] * direction) / length
