"""One value per head: ``HeadScores``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Head = tuple  # (kind, layer, head), or (stack, kind, layer, head)


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores:
    """One number per head of every site, such as an importance, a confidence or a count.

    ``values``: {(kind, layer): (H,) tensor}; layers may have different numbers of heads. ``name`` says what the
    number is. ``low`` and ``high``, where given, bound each value (an interval) and have the same keys and shapes.
    ``notes``, where given, are numbers or texts that the measure reports about itself, such as the fraction of
    relevance that it conserves, or why there is no interval.

    Raises ``TypeError`` or ``ValueError`` for values that are not vectors or hold NaN, or for wrong bounds.

    >>> scores = HeadScores({("encoder", 0): torch.tensor([0.1, 0.75]), ("encoder", 1): torch.tensor([0.5])})
    >>> scores.top(2)
    [('encoder', 0, 1), ('encoder', 1, 0)]
    >>> scores["encoder", 0, 1]
    0.75
    """

    values: Mapping[tuple, Tensor]
    name: str = "score"
    low: Mapping[tuple, Tensor] | None = field(default=None)
    high: Mapping[tuple, Tensor] | None = field(default=None)
    notes: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError('HeadScores needs at least one site: {("encoder", 0): torch.tensor([...])}')
        for by_site in (self.values, self.low, self.high):
            for key, value in (by_site or {}).items():
                if not isinstance(value, Tensor) or value.dim() != 1 or not len(value):
                    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise TypeError(f"the scores of {key} must be a tensor of shape (heads,), got {shape}")
                if value.isnan().any():
                    raise ValueError(f"the scores of {key} hold NaN: {value.tolist()}")
                if key not in self.values or self.values[key].shape != value.shape:
                    raise ValueError(f"the bounds of {key} do not match its values")

    def __getitem__(self, head: Head) -> float:
        key, index = tuple(head)[:-1], head[-1]
        if key not in self.values or not 0 <= index < len(self.values[key]):
            raise KeyError(f"no head {head} among these scores; sites are {list(self.values)}")
        return float(self.values[key][index])

    def __iter__(self) -> Iterator[Head]:
        return iter([(*key, head) for key, value in self.values.items() for head in range(len(value))])

    def __len__(self) -> int:
        return sum(len(value) for value in self.values.values())

    def __repr__(self) -> str:
        best = ", ".join(f"{_label(head)} {self[head]:.3g}" for head in self.top(min(3, len(self))))
        notes = "".join(
            f"; {name} {note if isinstance(note, str) else format(note, '.3g')}" for name, note in self.notes.items()
        )
        return f"<HeadScores {self.name!r}: {len(self)} heads, highest {best}{notes}>"

    def flat(self) -> Tensor:
        """Return all values in one float64 vector (n_heads,), in the order of iteration."""
        return torch.cat([value.detach().cpu().double() for value in self.values.values()])

    def order(self) -> list[Head]:
        """Return all heads, lowest score first; equal scores keep the order of iteration."""
        heads, flat = list(self), self.flat()
        return [heads[i] for i in torch.argsort(flat, stable=True).tolist()]

    def top(self, k: int) -> list[Head]:
        """Return the ``k`` heads with the highest scores, highest first.

        Raises ``ValueError`` when there are fewer than ``k`` heads.
        """
        if not 1 <= k <= len(self):
            raise ValueError(f"top(k) needs 1 <= k <= {len(self)} heads, got {k}")
        heads, flat = list(self), self.flat()
        return [heads[i] for i in torch.argsort(flat, descending=True, stable=True)[:k].tolist()]

    def rank(self) -> HeadScores:
        """Return every head's rank as scores: 0 for the lowest; equal scores share their mean rank."""
        ranks = _mean_ranks(self.flat()).split([len(value) for value in self.values.values()])
        return HeadScores(dict(zip(self.values, ranks, strict=True)), name=f"rank of {self.name}")

    def spearman(self, other: HeadScores) -> float:
        """Return Spearman's rank correlation with scores of the same heads, in [-1, 1].

        Noise in the scores lowers it. For an interval, resample the examples of which both scores are means:
        ``bootstrap(rows, statistic=...)``.

        Raises ``ValueError`` when the heads differ or one of the scores is constant.
        """
        a, b = _mean_ranks(self.flat()), _mean_ranks(self._matched(other))
        a, b = a - a.mean(), b - b.mean()
        if not a.any() or not b.any():
            raise ValueError("a rank correlation needs scores that vary; all values of one of these are equal")
        return float((a @ b) / (a.norm() * b.norm()))

    def agreement(self, other: HeadScores, k: int) -> float:
        """Return the fraction of the ``k`` highest heads that both scores share, in [0, 1]; chance is k / n_heads."""
        self._matched(other)
        return len(set(self.top(k)) & set(other.top(k))) / k

    def to_frame(self):
        """Return a pandas frame, one row per head: kind, layer, head, the score, and its bounds if it has them."""
        import pandas as pd

        rows = []
        for key, value in self.values.items():
            stack = {"stack": key[0]} if len(key) == 3 else {}
            for head in range(len(value)):
                row = {**stack, "kind": key[-2], "layer": key[-1], "head": head, self.name: float(value[head])}
                for name, bound in (("low", self.low), ("high", self.high)):
                    if bound is not None:
                        row[name] = float(bound[key][head]) if key in bound else float("nan")
                rows.append(row)
        return pd.DataFrame(rows)

    def _matched(self, other: HeadScores) -> Tensor:
        """Return ``other``'s values in the order of these heads."""
        if {k: len(v) for k, v in self.values.items()} != {k: len(v) for k, v in other.values.items()}:
            raise ValueError(f"the two scores have different heads: {list(self.values)} and {list(other.values)}")
        return torch.cat([other.values[key].detach().cpu().double() for key in self.values])


def _mean_ranks(flat: Tensor) -> Tensor:
    """Return ranks from 0; equal values share their mean rank, as Spearman's coefficient requires."""
    _, inverse, counts = torch.unique(flat, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0)
    return ((ends - counts + ends - 1).double() / 2)[inverse]


def head_columns(table: Any) -> list[str]:
    """Return the columns of a table, or the names of a row of it, that say which head a row is about."""
    return [name for name in ("stack", "kind", "layer", "head") if name in table]


def _label(head: Head) -> str:
    return " ".join(map(str, head[:-1])) + f".{head[-1]}"
