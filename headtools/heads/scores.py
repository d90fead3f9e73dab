"""Scores of heads: one number per example and head (rows), and what is made of them in this one place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata, spearmanr
from torch import Tensor

import headtools
from headtools._engine.store import read_tensors, write_tensors
from headtools.heads.intervals import MIN_EXAMPLES, bounds, carriers, resample_counts

Head = tuple  # (kind, layer, head), or (stack, kind, layer, head)
Rows = Mapping[tuple, Tensor]  # {(kind, layer): (n, H)}, one row per example


@dataclass(frozen=True, eq=False, repr=False)
class HeadScores:
    """One number per head of every site, such as an importance, a confidence or a count.

    ``values``: {(kind, layer): (H,) tensor}; layers may have different numbers of heads. ``name`` says what the
    number is. ``low`` and ``high`` bound each value (an interval) and have the same keys and shapes. ``notes`` are
    numbers or texts that the measure reports about itself, such as the fraction of relevance that it conserves, or why
    there is no interval. ``rows``, where scores are means over examples, are theirs, {(kind, layer): (n, H)}. Raises
    ``TypeError`` or ``ValueError`` for values that are not vectors or hold NaN, or for wrong bounds.

    >>> scores = HeadScores({("encoder", 0): torch.tensor([0.1, 0.75]), ("encoder", 1): torch.tensor([0.5])})
    >>> scores.top(2), scores["encoder", 0, 1]
    ([('encoder', 0, 1), ('encoder', 1, 0)], 0.75)
    """

    values: Mapping[tuple, Tensor]
    name: str = "score"
    low: Mapping[tuple, Tensor] | None = field(default=None)
    high: Mapping[tuple, Tensor] | None = field(default=None)
    notes: Mapping[str, float | str] = field(default_factory=dict)
    rows: Rows | None = field(default=None)

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError('HeadScores needs at least one site: {("encoder", 0): torch.tensor([...])}')
        for by_site in (self.values, self.low, self.high):
            for key, value in (by_site or {}).items():
                if not isinstance(value, Tensor) or value.dim() != 1 or not len(value):
                    got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise TypeError(f"the scores of {key} must be a tensor of shape (heads,), got {got}")
                if value.isnan().any():
                    raise ValueError(f"the scores of {key} hold NaN: {value.tolist()}")
                if key not in self.values or self.values[key].shape != value.shape:
                    raise ValueError(f"the bounds of {key} do not match its values")

    @classmethod
    def from_rows(
        cls,
        rows: Rows,
        name: str = "score",
        minimum: float | None = None,
        maximum: float | None = None,
        notes: Mapping[str, float | str] | None = None,
    ) -> HeadScores:
        """Return the means of rows, {(kind, layer): (n, H)}, with 95 % intervals over examples from five rows on.

        Bounds are clamped to ``minimum`` and ``maximum``, the range of the score. ``notes["interval"]`` says why there
        are none, or for how many heads they are a lower bound of the uncertainty: :meth:`few`.

        >>> scores = HeadScores.from_rows({("encoder", 0): torch.tensor([[1.0, 5.0], [3.0, 5.0]])}, "example")
        >>> scores.values["encoder", 0], scores.notes
        (tensor([2., 5.]), {'interval': 'none: 2 examples came, 5 are needed'})
        """
        values, notes = {key: site_rows.mean(0).float() for key, site_rows in rows.items()}, dict(notes or {})
        n = min(map(len, rows.values()))
        if n < MIN_EXAMPLES:
            notes["interval"] = f"none: {n} example{'s' if n > 1 else ''} came, {MIN_EXAMPLES} are needed"
            return cls(values, name, None, None, notes, rows)
        low, high = {}, {}
        # Sites with equally many rows are resampled together: the same draws for all their heads, in one product.
        for size in {len(site_rows) for site_rows in rows.values()}:
            same_size = {key: site_rows for key, site_rows in rows.items() if len(site_rows) == size}
            widths = [site_rows.shape[1] for site_rows in same_size.values()]
            ends = bounds(torch.cat(list(same_size.values()), 1), minimum, maximum)
            low |= zip(same_size, ends[0].split(widths), strict=True)
            high |= zip(same_size, ends[1].split(widths), strict=True)
        if few := _carried_by_few(rows):
            of, most = f"{len(few)} of {sum(map(len, values.values()))} heads", max(1, n // 10)
            notes["interval"] = f"a lower bound for {of}: {most} or fewer of {n} examples carry half of their score"
        return cls(values, name, low, high, notes, rows)

    def few(self) -> list[Head]:
        """Return the heads of whose score a tenth of the examples, or fewer (but one), carry half, in magnitude.

        Their interval is a lower bound of the uncertainty, since it knows nothing of rarer examples that weigh more: of
        the organism's gradients it holds the mean over all sentences in some 80 % of samples (``intervals.py``). Raises
        ``ValueError`` where the scores have no rows.

        >>> rows = torch.tensor([[1.0, 0.0]] * 19 + [[1.0, 99.0]])
        >>> HeadScores.from_rows({("encoder", 0): rows}, "example").few()
        [('encoder', 0, 1)]
        """
        return _carried_by_few(self._rows("which examples carry a score"))

    def minus(self, other: HeadScores) -> HeadScores:
        """Return how much these scores exceed others of the same examples and heads: rows are differences, paired.

        >>> one, two = (HeadScores.from_rows({("encoder", 0): torch.arange(6.0)[:, None] * k}) for k in (1, 2))
        >>> two.minus(one).values
        {('encoder', 0): tensor([2.5000])}
        """
        one, two = self._rows("a difference"), other._rows("a difference")
        if {key: rows.shape for key, rows in one.items()} != {key: rows.shape for key, rows in two.items()}:
            raise ValueError("a difference needs the same examples and heads: measure both scores on one corpus")
        return HeadScores.from_rows({k: rows - two[k] for k, rows in one.items()}, f"{self.name} minus {other.name}")

    def redrawn(self, times: int) -> list[HeadScores]:
        """Return the scores of ``times`` draws of as many examples, with replacement, the same at all sites."""
        means = {}  # (times, H)
        for key, rows in self._rows("drawing examples again").items():
            counts = torch.cat(list(resample_counts(len(rows), times)))
            means[key] = counts @ rows.double() / len(rows)
        return [HeadScores({key: mean[i] for key, mean in means.items()}, self.name) for i in range(times)]

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
        first = self.top(min(3, len(self)))
        best = ", ".join(f"{' '.join(map(str, key))}.{i} {self[(*key, i)]:.3g}" for *key, i in first)
        notes = "".join(f"; {k} {note if isinstance(note, str) else f'{note:.3g}'}" for k, note in self.notes.items())
        return f"<HeadScores {self.name!r}: {len(self)} heads, highest {best}{notes}>"

    def _repr_html_(self) -> str | None:
        return headtools.draw("scores_html", self)

    def flat(self) -> Tensor:
        """Return all values in one float64 vector (n_heads,), in the order of iteration."""
        return torch.cat([value.detach().cpu().double() for value in self.values.values()])

    def order(self) -> list[Head]:
        """Return all heads, lowest score first; equal scores keep the order of iteration."""
        heads = list(self)
        return [heads[i] for i in torch.argsort(self.flat(), stable=True).tolist()]

    def top(self, k: int) -> list[Head]:
        """Return the ``k`` heads with the highest scores, highest first; ``ValueError`` where there are fewer."""
        if not 1 <= k <= len(self):
            raise ValueError(f"top(k) needs 1 <= k <= {len(self)} heads, got {k}")
        heads = list(self)
        return [heads[i] for i in torch.argsort(self.flat(), descending=True, stable=True)[:k].tolist()]

    def rank(self) -> HeadScores:
        """Return every head's rank as scores: 0 for the lowest; equal scores share their mean rank."""
        by_site = (torch.from_numpy(rankdata(self.flat())) - 1).split([len(value) for value in self.values.values()])
        return HeadScores(dict(zip(self.values, by_site, strict=True)), name=f"rank of {self.name}")

    def spearman(self, other: HeadScores) -> float:
        """Return Spearman's rank correlation with scores of the same heads, in [-1, 1].

        Noise lowers it; for an interval, resample the examples of both: ``bootstrap(rows, statistic=...)``. Raises
        ``ValueError`` when the heads differ or one of the scores is constant.
        """
        a, b = self.flat(), self._matched(other)
        if a.min() == a.max() or b.min() == b.max():
            raise ValueError("a rank correlation needs scores that vary; all values of one of these are equal")
        return float(spearmanr(a, b).statistic)

    def agreement(self, other: HeadScores, k: int) -> float:
        """Return the fraction of the ``k`` highest heads that both scores share, in [0, 1]; chance is k / n_heads."""
        self._matched(other)
        return len(set(self.top(k)) & set(other.top(k))) / k

    def to_frame(self):
        """Return a pandas frame, a row a head, with bounds and how many examples carry half, where these are known."""
        import pandas as pd

        frames = []
        for key, value in self.values.items():
            site = {"stack": key[0]} if len(key) == 3 else {}
            site |= {"kind": key[-2], "layer": key[-1], "head": range(len(value)), self.name: value.tolist()}
            for name, bound in (("low", self.low), ("high", self.high)):
                if bound is not None:
                    site[name] = bound[key].tolist() if key in bound else float("nan")
            if self.rows and self.low:
                site["carried_by"] = carriers(self.rows[key]).tolist()
            frames.append(pd.DataFrame(site))
        return pd.concat(frames, ignore_index=True)

    def save(self, path: str | Path) -> Path:
        """Write the scores, their bounds and rows to a safetensors file, whole or not at all, and return its path.

        >>> import tempfile
        >>> scores = HeadScores.from_rows({("encoder", 0): torch.rand(9, 2)}, "example")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     HeadScores.load(scores.save(f"{folder}/example.safetensors")).top(1) == scores.top(1)
        True
        """
        parts = {"values": self.values, "low": self.low or {}, "high": self.high or {}, "rows": self.rows or {}}
        tensors = {f"{part}|{json.dumps(key)}": value for part, of in parts.items() for key, value in of.items()}
        metadata = {"scores": self.name, "notes": dict(self.notes), "sites": [list(key) for key in self.values]}
        return write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> HeadScores:
        """Return the scores that ``save`` wrote; ``ValueError`` for a file that is damaged or holds no scores."""
        tensors, metadata = read_tensors(path)
        parts: dict[str, dict[tuple, Tensor]] = {}
        try:
            for name, tensor in tensors.items():
                part, _, key = name.partition("|")
                parts.setdefault(part, {})[tuple(json.loads(key))] = tensor
            sites = [tuple(key) for key in metadata["sites"]]  # in the order in which they were measured
            ordered = {part: {key: by_site[key] for key in sites if key in by_site} for part, by_site in parts.items()}
            return cls(name=metadata["scores"], notes=metadata["notes"], **ordered)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no scores of heads: write them with scores.save(path) ({error})") from error

    def _rows(self, what: str) -> Rows:
        if self.rows is None:
            raise ValueError(f"{what} needs rows, one number per example: measure the scores again, these have none")
        return self.rows

    def _matched(self, other: HeadScores) -> Tensor:
        """Return ``other``'s values in the order of these heads."""
        if {k: len(v) for k, v in self.values.items()} != {k: len(v) for k, v in other.values.items()}:
            raise ValueError(f"the two scores have different heads: {list(self.values)} and {list(other.values)}")
        return torch.cat([other.values[key].detach().cpu().double() for key in self.values])


def head_columns(table: Any) -> list[str]:
    """Return the columns of a table, or the names of a row of it, that say which head a row is about."""
    return [name for name in ("stack", "kind", "layer", "head") if name in table]


def _carried_by_few(rows: Rows) -> list[Head]:
    few = {key: carriers(of_site) <= max(1, len(of_site) / 10) for key, of_site in rows.items()}
    return [(*key, head) for key, by_head in few.items() for head in by_head.nonzero().flatten().tolist()]
