"""Scores of heads: one number per example and head (rows), and what is made of them in this one place.

Every measure gives rows, {(kind, layer): (n, H)}. Means, intervals, comparisons, rankings, tables and files are those
of ``HeadScores``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy.stats import rankdata, spearmanr
from torch import Tensor

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
    there is no interval. ``rows``, where scores are means over examples, are theirs, {(kind, layer): (n, H)}.

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
    rows: Rows | None = field(default=None)

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
        values = {key: site_rows.mean(0).float() for key, site_rows in rows.items()}
        notes = dict(notes or {})
        n_rows = min(map(len, rows.values()))
        if n_rows < MIN_EXAMPLES:
            came = f"{n_rows} example{'s' if n_rows > 1 else ''} came"
            return cls(values, name, None, None, notes | {"interval": f"none: {came}, {MIN_EXAMPLES} are needed"}, rows)
        low, high = {}, {}
        # Sites with equally many rows are resampled together: the same draws for all their heads, in one product.
        for size in {len(site_rows) for site_rows in rows.values()}:
            same_size = {key: site_rows for key, site_rows in rows.items() if len(site_rows) == size}
            widths = [site_rows.shape[1] for site_rows in same_size.values()]
            ends = bounds(torch.cat(list(same_size.values()), 1), minimum, maximum)
            for by_site, end in zip((low, high), ends, strict=True):
                by_site.update(zip(same_size, end.split(widths), strict=True))
        if few := _carried_by_few(rows):
            notes["interval"] = (
                f"a lower bound for {len(few)} of {sum(map(len, values.values()))} heads: "
                f"a tenth of the {n_rows} examples, or fewer, carry half of their score"
            )
        return cls(values, name, low, high, notes, rows)

    def few(self) -> list[Head]:
        """Return the heads of whose score a tenth of the examples, or fewer, carry half, in magnitude.

        Their interval is a lower bound of the uncertainty: of rarer examples that weigh still more it knows nothing.
        Where few carry the organism's gradients, such intervals hold the mean over all sentences in some 80 % of
        samples (:mod:`headtools.heads.intervals`). Raises ``ValueError`` where the scores have no rows.

        >>> rows = torch.tensor([[1.0, 0.0]] * 19 + [[1.0, 99.0]])
        >>> HeadScores.from_rows({("encoder", 0): rows}, "example").few()
        [('encoder', 0, 1)]
        """
        if self.rows is None:
            raise ValueError("how many examples carry a score is known from its rows: measure it again")
        return _carried_by_few(self.rows)

    def minus(self, other: HeadScores) -> HeadScores:
        """Return how much these scores exceed others of the same examples and heads: rows are differences, paired.

        Raises ``ValueError`` where one of the two has no rows, or the examples or heads differ in number.

        >>> one, two = (HeadScores.from_rows({("encoder", 0): torch.arange(6.0)[:, None] * k}) for k in (1, 2))
        >>> two.minus(one).values
        {('encoder', 0): tensor([2.5000])}
        """
        if self.rows is None or other.rows is None:
            raise ValueError("a paired difference needs both scores' rows, one number per example: measure both again")
        if {k: v.shape for k, v in self.rows.items()} != {k: v.shape for k, v in other.rows.items()}:
            raise ValueError(
                "a paired difference needs the same examples and heads in both: measure them on one corpus"
            )
        differences = {key: rows - other.rows[key] for key, rows in self.rows.items()}
        return HeadScores.from_rows(differences, f"{self.name} minus {other.name}")

    def redrawn(self, times: int, seed: int = 0) -> list[HeadScores]:
        """Return the scores of ``times`` draws of as many examples, with replacement, the same at all sites."""
        if self.rows is None:
            raise ValueError("drawing examples again needs rows, one number per example: measure the scores again")
        means = {}  # (times, H)
        for key, rows in self.rows.items():
            counts = torch.cat(list(resample_counts(len(rows), times, seed)))
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
        heads = list(self)
        return [heads[i] for i in torch.argsort(self.flat(), stable=True).tolist()]

    def top(self, k: int) -> list[Head]:
        """Return the ``k`` heads with the highest scores, highest first.

        Raises ``ValueError`` when there are fewer than ``k`` heads.
        """
        if not 1 <= k <= len(self):
            raise ValueError(f"top(k) needs 1 <= k <= {len(self)} heads, got {k}")
        heads = list(self)
        return [heads[i] for i in torch.argsort(self.flat(), descending=True, stable=True)[:k].tolist()]

    def rank(self) -> HeadScores:
        """Return every head's rank as scores: 0 for the lowest; equal scores share their mean rank."""
        ranks = torch.from_numpy(rankdata(self.flat())) - 1
        by_site = ranks.split([len(value) for value in self.values.values()])
        return HeadScores(dict(zip(self.values, by_site, strict=True)), name=f"rank of {self.name}")

    def spearman(self, other: HeadScores) -> float:
        """Return Spearman's rank correlation with scores of the same heads, in [-1, 1].

        Noise in the scores lowers it. For an interval, resample the examples of which both scores are means:
        ``bootstrap(rows, statistic=...)``.

        Raises ``ValueError`` when the heads differ or one of the scores is constant.
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
        """Return a pandas frame, one row per head: kind, layer, head, the score, and its bounds if it has them.

        With bounds and rows there is ``carried_by``, how many examples carry half of the score: see :meth:`few`.
        """
        import pandas as pd

        table = []
        for key, value in self.values.items():
            carried_by = carriers(self.rows[key]).tolist() if self.rows and self.low else None
            stack = {"stack": key[0]} if len(key) == 3 else {}
            for head in range(len(value)):
                row = {**stack, "kind": key[-2], "layer": key[-1], "head": head, self.name: float(value[head])}
                for name, bound in (("low", self.low), ("high", self.high)):
                    if bound is not None:
                        row[name] = float(bound[key][head]) if key in bound else float("nan")
                if carried_by:
                    row["carried_by"] = carried_by[head]
                table.append(row)
        return pd.DataFrame(table)

    def save(self, path: str | Path) -> Path:
        """Write the scores, their bounds and rows to a safetensors file, whole or not at all, and return its path.

        Raises ``ValueError`` for another extension, ``OSError`` where the file cannot be written.

        >>> import tempfile
        >>> scores = HeadScores.from_rows({("encoder", 0): torch.rand(9, 2)}, "example")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     HeadScores.load(scores.save(f"{folder}/example.safetensors")).top(1) == scores.top(1)
        True
        """
        parts = {"values": self.values, "low": self.low, "high": self.high, "rows": self.rows}
        tensors = {
            f"{part}|{json.dumps(key)}": value
            for part, by_site in parts.items()
            if by_site
            for key, value in by_site.items()
        }
        metadata = {"scores": self.name, "notes": dict(self.notes), "sites": [list(key) for key in self.values]}
        return write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> HeadScores:
        """Return the scores that ``save`` wrote.

        Raises ``FileNotFoundError`` where there is no file, ``ValueError`` for one that is damaged or holds no scores.
        """
        tensors, metadata = read_tensors(path)
        parts: dict[str, dict[tuple, Tensor]] = {}
        try:
            for name, tensor in tensors.items():
                part, _, key = name.partition("|")
                parts.setdefault(part, {})[tuple(json.loads(key))] = tensor
            # the file has its own order; sites come in that in which they were measured
            sites = [tuple(key) for key in metadata["sites"]]
            ordered = {part: {key: by_site[key] for key in sites if key in by_site} for part, by_site in parts.items()}
            return cls(name=metadata["scores"], notes=metadata["notes"], **ordered)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} holds no scores of heads: write them with scores.save(path) ({error})") from error

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


def _label(head: Head) -> str:
    return " ".join(map(str, head[:-1])) + f".{head[-1]}"
