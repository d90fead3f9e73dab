"""Curves with intervals, told apart by marker and dash as well as by colour: what pruning lessons draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headtools.lesson.figure import OKABE_ITO

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["lines"]

MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")


def lines(
    ax: Axes,
    curves: Mapping[str, Sequence[Any]],
    *,
    xlabel: str,
    ylabel: str,
    band: Sequence[str] = (),
    legend: bool = True,
) -> Axes:
    """Draw one line for each name, with intervals where they are given.

    curves: {name: (x, y)} or {name: (x, y, low, high)}, each a sequence of the same length
    xlabel, ylabel: what the axes are, with the unit
    band: names whose interval is a grey band, for a baseline, instead of bars
    legend: write the names into the axes; without, ``ax.legend`` can place them

    Raises ValueError for a curve with parts of different lengths, and for a name in ``band`` that has no interval.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import matplotlib.pyplot as plt
    >>> ax = lines(plt.subplots()[1], {"a": ([0, 1], [2, 3], [1, 2], [4, 5])}, xlabel="step", ylabel="BLEU")
    >>> ax.get_ylabel(), len(ax.lines) > 0
    ('BLEU', True)
    >>> plt.close()
    """
    for i, (name, parts) in enumerate(curves.items()):
        table = [np.asarray(part, dtype=float) for part in parts]
        if len(table) not in (2, 4) or len({part.shape for part in table}) != 1 or table[0].ndim != 1:
            shapes = [part.shape for part in table]
            raise ValueError(f"{name!r} needs (x, y) or (x, y, low, high) of one length, got the shapes {shapes}")
        x, y = table[:2]
        look = {"color": "0.45" if name in band else OKABE_ITO[i % len(OKABE_ITO)], "label": name,
                "marker": MARKERS[i % len(MARKERS)], "markersize": 5, "linewidth": 1.4,
                "linestyle": DASHES[i // 2 % len(DASHES)]}  # fmt: skip
        if name in band:
            if len(table) == 2:
                raise ValueError(f"{name!r} has no interval to draw as a band: pass (x, y, low, high)")
            ax.fill_between(x, *table[2:], color="0.85", linewidth=0)
        if name in band or len(table) == 2:
            ax.plot(x, y, **look)
        else:
            reach = np.clip(np.stack([y - table[2], table[3] - y]), 0, None)
            ax.errorbar(x, y, yerr=reach, capsize=2, elinewidth=0.8, **look)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if legend:
        ax.legend()
    return ax
