"""The few drawings that the lessons repeat: query down, key across, a colour bar each time, readable in grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headtools.lesson.figure import OKABE_ITO, style
from headtools.lesson.plain import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDS = {ord("\t"): "␉", ord("\n"): "␊", ord("\r"): "␍"}  # a token may be nothing but the end of a line

__all__ = ["bars", "head_grid", "heatmap", "layer_grid", "subplots"]


def subplots(rows: int = 1, columns: int = 1, **more: Any) -> tuple[Figure, Any]:
    """Make a figure and its axes in the house style, as ``plt.subplots`` does; ``more`` goes to it.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig, ax = subplots(figsize=(4, 3))
    >>> ax.spines["top"].get_visible()
    False
    """
    from matplotlib import pyplot as plt

    with plt.rc_context(style()):
        return plt.subplots(rows, columns, **more)


def heatmap(
    ax: Axes,
    matrix: Any,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    vmin: float = 0.0,
    vmax: float = 1.0,
    label: str = "attention",
    row_label: str = "query",
    column_label: str = "key",
    values: bool | None = None,
    bar: bool = True,
) -> Axes:
    """Draw a matrix, query down and key across, on a scale from vmin to vmax with a colour bar.

    matrix: (rows, columns), tensor, array or lists; no NaN
    rows, columns: names of the rows and columns, such as tokens; left out, their numbers
    vmin, vmax: the ends of the scale; when vmin is -vmax the colours diverge from 0, for differences
    values: write the numbers into the cells; left out, when there are no more than 8 columns

    Raises ValueError when the names do not fit, when a value is NaN or lies outside the scale.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import matplotlib.pyplot as plt
    >>> ax = heatmap(plt.subplots()[1], [[1.0, 0.0], [0.5, 0.5]], rows=["a", "b"], columns=["a", "b"])
    >>> [t.get_text() for t in ax.texts]
    ['1.00', '.00', '.50', '.50']
    >>> plt.close()
    """
    table = _array(matrix, 2)
    for name, given, size in (("rows", rows, table.shape[0]), ("columns", columns, table.shape[1])):
        if given is not None and len(given) != size:
            raise ValueError(f"{name} has {len(given)} names but the matrix has {size} {name}")
    slack = 1e-4 * (vmax - vmin)  # float32 softmax rows overshoot 1 by about 1e-7
    if table.min() < vmin - slack or table.max() > vmax + slack:
        raise ValueError(
            f"the matrix runs from {table.min():.3g} to {table.max():.3g}, outside the scale {vmin:g} to {vmax:g}: "
            "pass vmin= and vmax= that hold it"
        )
    diverging = vmin == -vmax
    image = ax.imshow(table, vmin=vmin, vmax=vmax, cmap="PuOr" if diverging else "cividis", aspect="auto")
    for axis, given, size, title in (
        (ax.yaxis, rows, table.shape[0], row_label),
        (ax.xaxis, columns, table.shape[1], column_label),
    ):
        _names(axis, given, size)
        axis.set_label_text(title)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if values or (values is None and table.shape[1] <= 8 and table.shape[0] <= 12):
        for i, j in np.ndindex(*table.shape):
            dark = abs(table[i, j]) > 0.6 * vmax if diverging else (table[i, j] - vmin) / (vmax - vmin) < 0.5
            ax.text(j, i, _short(table[i, j]), ha="center", va="center", fontsize=9, color="white" if dark else "black")
    if bar:
        ax.figure.colorbar(image, ax=ax, label=label)
    return ax


def head_grid(
    maps: Any,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    layer: str = "",
    titles: Sequence[str] | None = None,
) -> Figure:
    """Draw the attention maps of all heads of one layer as small pictures with one scale from 0 to 1.

    maps: (head, query, key), or (1, head, query, key), values 0 to 1
    tokens: the query tokens; key_tokens: the key tokens where they differ (cross-attention)
    heads: which heads to draw; left out, all
    layer: the layer's name for the titles: ``layer="encoder 2"`` gives ``encoder 2.5``; left out, ``head 5``
    titles: titles of your own, one for each head drawn

    Raises ValueError when tokens and maps do not fit or a head does not exist.
    """
    from matplotlib import pyplot as plt

    table = _array(maps, 3)
    keys = tokens if key_tokens is None else key_tokens
    if table.shape[1:] != (len(tokens), len(keys)):
        raise ValueError(
            f"the maps are (query {table.shape[1]}, key {table.shape[2]}) but there are {len(tokens)} query tokens and "
            f"{len(keys)} key tokens: pass the tokens that the model saw, its special tokens included"
        )
    shown = list(range(table.shape[0])) if heads is None else list(heads)
    if not shown or any(not 0 <= h < table.shape[0] for h in shown):
        raise ValueError(f"heads must be among 0 to {table.shape[0] - 1}, got {heads!r}")
    if titles is None:
        titles = [f"{layer}.{h}" if layer else f"head {h}" for h in shown]
    wide = min(4, len(shown))
    high = -(-len(shown) // wide)
    side = 1.9 if len(tokens) <= 12 else 2.4
    with plt.rc_context(style()):
        fig, grid = plt.subplots(high, wide, figsize=(side * wide + 1.2, side * high + 0.9), squeeze=False)
        for place, ax in enumerate(grid.flat):
            if place >= len(shown):
                ax.set_axis_off()
                continue
            left, low = place % wide == 0, place + wide >= len(shown)
            heatmap(ax, table[shown[place]], rows=tokens, columns=keys, values=False, bar=False,
                    row_label="query" if left else "", column_label="key" if low else "")  # fmt: skip
            ax.tick_params(labelleft=left, labelbottom=low)
            ax.set_title(titles[place], pad=3)
        fig.colorbar(grid[0, 0].images[0], ax=list(grid.flat), label="attention", shrink=0.8, pad=0.01)
    return fig


def layer_grid(maps: Any, *, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None) -> Figure:
    """Draw every head of every layer as a thumbnail, layers down and heads across.

    maps: (layer, head, query, key), values 0 to 1
    layers, heads: the numbers to write at the edges; left out, counted from 0
    """
    from matplotlib import pyplot as plt

    table = _array(maps, 4)
    high, wide = table.shape[:2]
    layers, heads = range(high) if layers is None else layers, range(wide) if heads is None else heads
    with plt.rc_context(style()):
        size = (0.75 * wide + 1.6, 0.75 * high + 0.6)
        fig, grid = plt.subplots(high, wide, figsize=size, squeeze=False, sharex=True, sharey=True)
        for (i, j), ax in np.ndenumerate(grid):
            ax.imshow(table[i, j], vmin=0, vmax=1, cmap="cividis", aspect="auto")
            ax.set(xticks=[], yticks=[])
            if i == 0:
                ax.set_title(str(heads[j]), pad=2)
            if j == 0:
                ax.set_ylabel(str(layers[i]), rotation=0, ha="right", va="center")
        fig.supylabel("layer", fontsize=10)
        fig.suptitle("head", fontsize=10)
        fig.colorbar(grid[0, 0].images[0], ax=list(grid.flat), label="attention", pad=0.01)
    return fig


def bars(
    ax: Axes,
    names: Sequence[str],
    values: Any,
    *,
    label: str,
    low: Any = None,
    high: Any = None,
    baseline: float | None = None,
    highlight: Sequence[int] = (),
) -> Axes:
    """Draw one horizontal bar for each name, with its number, and an interval and a baseline where you have them.

    names, values: one each; label: what the values are, with the unit
    low, high: ends of each value's interval, in the values' unit
    baseline: the value that chance or a simple rule reaches, drawn as a dashed line
    highlight: places of the bars to fill with the second colour and a hatch
    """
    table = _array(values, 1)
    if len(names) != len(table):
        raise ValueError(f"{len(names)} names but {len(table)} values")
    place = np.arange(len(table))
    drawn = ax.barh(place, table, color=[OKABE_ITO[1 if i in highlight else 0] for i in place])
    for i in highlight:
        drawn[i].set_hatch("//")
        drawn[i].set_edgecolor("white")
    ends = table
    if low is not None and high is not None:
        reach = np.stack([table - _array(low, 1), _array(high, 1) - table]).clip(0)  # it may lie to one side
        ax.errorbar(table, place, xerr=reach, fmt="none", ecolor="black", capsize=3)
        ends = table + reach[1]
    for i, end in enumerate(ends):
        ax.annotate(f"{table[i]:.3g}", (max(end, 0), i), (4, 0), textcoords="offset points", va="center", fontsize=9)
    if baseline is not None:
        ax.axvline(baseline, color="black", linestyle="--", linewidth=1)
    _names(ax.yaxis, names, len(names))
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel(label)
    return ax


def _array(given: Any, dims: int) -> np.ndarray:
    """A float array of ``dims`` dimensions from a tensor, an array or lists, without NaN."""
    table = np.asarray(given.detach().float().cpu() if hasattr(given, "detach") else given, dtype=float)
    if table.ndim == dims + 1 and table.shape[0] == 1:
        table = table[0]
    if table.ndim != dims or table.size == 0:
        raise ValueError(f"needed {dims} dimensions with something in them, got the shape {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError("there is a NaN or an infinity in what should be drawn")
    return table


def _names(axis: Any, given: Sequence[str] | None, size: int) -> None:
    """Write every name, or every second, third … where there is no room at 9 points; long names are cut."""
    places = list(range(0, size, max(1, -(-size // 24))))
    shown = [plain(i if given is None else given[i]).translate(_ENDS) for i in places]
    shown = [name if len(name) <= 18 else f"{name[:17]}…" for name in shown]
    turned = axis.axis_name == "x" and max(map(len, shown)) > 2
    axis.set_ticks(places, shown, rotation=90 if turned else 0)
    for name in axis.get_ticklabels():
        name.set_parse_math(False)  # a token may hold dollar signs


def _short(value: float) -> str:
    """Two decimals without the zero that takes the room: .83, -.10, 1.00."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
