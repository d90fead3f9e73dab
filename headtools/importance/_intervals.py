"""Scores with intervals from one row per example, also where the score is no plain mean.

A score that is a smooth function of means (a ratio, a norm) is turned into the mean of rows that move as the score
moves when an example comes or goes, to first order (Efron and Tibshirani 1993, ch. 21: the influence of an example).
Bootstrapping those rows then bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headtools.heads.bootstrap import FEWEST, bounds
from headtools.heads.scores import HeadScores


def scored(
    rows: Mapping[tuple, Tensor], name: str, least: float | None = None, most: float | None = None
) -> HeadScores:
    """Return the means of rows, {key: (n, H)}, as float32 scores, with 95 % intervals from five rows on.

    With fewer rows the scores have no bounds, and ``notes["interval"]`` says why. ``least`` and ``most`` are what the
    score cannot pass; bounds stop there.

    >>> import torch
    >>> scores = scored({("encoder", 0): torch.tensor([[1.0, 5.0], [3.0, 5.0]])}, "example")
    >>> scores.values["encoder", 0], scores.notes
    (tensor([2., 5.]), {'interval': 'none: 2 examples came, 5 are needed'})
    """
    values = {key: row.mean(0).float() for key, row in rows.items()}
    fewest = min(len(row) for row in rows.values())
    if fewest < FEWEST:
        came = f"{fewest} example{'s' if fewest > 1 else ''} came"
        return HeadScores(values, name, notes={"interval": f"none: {came}, {FEWEST} are needed"})
    low, high = {}, {}
    for size in {len(row) for row in rows.values()}:  # the same draws for all heads, so that one product serves them
        some = {key: row for key, row in rows.items() if len(row) == size}
        ends = bounds(torch.cat(list(some.values()), 1), least, most)
        for part, end in zip((low, high), ends, strict=True):
            part.update(zip(some, end.split([row.shape[1] for row in some.values()]), strict=True))
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
