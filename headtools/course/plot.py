"""The drawings that lessons repeat, each a short call that returns a figure: ``ht.figure(ht.plot.heads(grid), key)``.

Queries go down and keys across; every scale has a colour bar; colours can be told apart by the colour-blind and in
grey. Each takes ``title``, which says what there is to find, and most take ``ax`` to draw into axes of your own::

    heads      a number for every head, layers down and heads across
    maps       attention maps of one or more heads, with the words
    arcs       one attention map as arcs over the words
    matrix     any other table of numbers
    bars       a number with its interval for each name, and a baseline
    flow       what each unit of a small network sends back to the units before it
    lines      curves with intervals or bands
    stacked    counts of several kinds on top of one another
    spectrum   singular values
    words      sentences under one another, changes marked
    roles      the role map
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headtools.course.figure import OKABE_ITO, style
from headtools.course.plain import plain, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDS = {ord("\t"): "␉", ord("\n"): "␊", ord("\r"): "␍"}  # a token may be nothing but the end of a line

__all__ = [
    "arcs",
    "bars",
    "flow",
    "heads",
    "lines",
    "maps",
    "matrix",
    "roles",
    "spectrum",
    "stacked",
    "subplots",
    "words",
]

MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")
_WIDTH, _NAME = 80, 16  # characters of a line of words, and of the column of names before it
HATCHES = ("", "//", "..", "xx", "--", "||")


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


def matrix(
    table: Any,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    title: str = "",
    vmin: float = 0.0,
    vmax: float = 1.0,
    label: str = "attention",
    row_label: str = "query",
    column_label: str = "key",
    values: bool | None = None,
    text: Any = None,
    outline: Iterable[tuple[int, int]] = (),
    bar: bool = True,
    ax: Axes | None = None,
) -> Figure:
    """Draw a table of numbers, on a scale from vmin to vmax with a colour bar.

    table: (rows, columns), tensor, array or lists; no NaN
    rows, columns: names of the rows and columns, such as tokens; left out, their numbers
    vmin, vmax: the ends of the scale; when vmin is -vmax the colours diverge from 0, for differences
    values: write the numbers into the cells; left out, when there are no more than 8 columns
    text: (rows, columns) of what to write into the cells instead
    outline: (row, column) pairs to frame

    Raises ValueError when the names do not fit, when a value is NaN or lies outside the scale.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = matrix([[1.0, 0.0], [0.5, 0.5]], rows=["a", "b"], columns=["a", "b"])
    >>> [t.get_text() for t in fig.axes[0].texts]
    ['1.00', '.00', '.50', '.50']
    """
    table = _array(table, 2)
    for name, given, size in (("rows", rows, table.shape[0]), ("columns", columns, table.shape[1])):
        if given is not None and len(given) != size:
            raise ValueError(f"{name} has {len(given)} names but the matrix has {size} {name}")
    slack = 1e-4 * (vmax - vmin)  # float32 softmax rows overshoot 1 by about 1e-7
    if table.min() < vmin - slack or table.max() > vmax + slack:
        raise ValueError(
            f"the matrix runs from {table.min():.3g} to {table.max():.3g}, outside the scale {vmin:g} to {vmax:g}: "
            "pass vmin= and vmax= that hold it"
        )
    fig, ax = _on(ax, (1.6 + 0.48 * min(table.shape[1], 12), 1.1 + 0.44 * min(table.shape[0], 14)), title)
    diverging = vmin == -vmax
    image = ax.imshow(table, vmin=vmin, vmax=vmax, cmap="PuOr" if diverging else "cividis", aspect="auto")
    for axis, given, size, name in (
        (ax.yaxis, rows, table.shape[0], row_label),
        (ax.xaxis, columns, table.shape[1], column_label),
    ):
        _names(axis, given, size)
        axis.set_label_text(name)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    if text is not None or values or (values is None and table.shape[1] <= 8 and table.shape[0] <= 12):
        for i, j in np.ndindex(*table.shape):
            dark = abs(table[i, j]) > 0.6 * vmax if diverging else (table[i, j] - vmin) / (vmax - vmin) < 0.5
            shown = _short(table[i, j]) if text is None else plain(text[i][j])
            _write(ax, j, i, shown, 9, color="white" if dark else "black")
    _frame(ax, outline)
    if bar:
        ax.figure.colorbar(image, ax=ax, label=label)
    return fig


def heads(
    grid: Any,
    *,
    title: str = "",
    label: str = "score",
    vmin: float = 0.0,
    vmax: float | None = None,
    text: Any = None,
    values: bool = True,
    outline: Iterable[tuple[int, int]] = (),
    bar: bool = True,
    ax: Axes | None = None,
) -> Figure:
    """Draw a number for every head of a model, layers down and heads across.

    grid: (layer, head)
    label: what the numbers are; vmin, vmax: the ends of the scale; vmax left out: the largest number
    text: (layer, head) of what to write into the cells; left out, the numbers; values=False: nothing
    outline: (layer, head) pairs to frame; bar=False: no colour bar, for panels that share one

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = heads([[0.1, 0.9]], text=[["", "-1"]], outline=[(0, 1)])
    >>> [t.get_text() for t in fig.axes[0].texts]
    ['', '-1']
    """
    table = _array(grid, 2)
    vmax = max(float(table.max()), vmin + 1e-9) if vmax is None else vmax
    if ax is None:
        size = (1.6 + 0.68 * table.shape[1], 1.2 + 0.52 * table.shape[0])
        _, ax = subplots(figsize=(min(size[0], 7.2), min(size[1], 7.2)))
    return matrix(
        table,
        title=title,
        vmin=vmin,
        vmax=vmax,
        label=label,
        row_label="layer",
        column_label="head",
        text=text,
        values=values,
        outline=outline,
        bar=bar,
        ax=ax,
    )


def maps(
    maps: Any,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    heads: Sequence[int] | None = None,
    layer: str | int = "",
    titles: Sequence[str] | None = None,
    title: str = "",
    outline: int | Iterable[tuple[int, int]] = (),
) -> Figure:
    """Draw attention maps with their words, on one scale from 0 to 1.

    maps: (head, query, key), or (1, head, query, key), or one map (query, key)
    tokens: the query tokens; key_tokens: the key tokens where they differ (cross-attention)
    heads: which heads to draw; left out, all
    layer: the layer's name for the titles: ``layer="encoder 2"`` gives ``encoder 2.5``; left out, ``head 5``
    titles: titles of your own, one for each head drawn
    outline: cells to frame: an offset (-1: the token before each query), or (query, key) pairs

    Raises ValueError when tokens and maps do not fit or a head does not exist.
    """
    if getattr(maps, "ndim", 3) == 2:
        maps, titles = maps[None], titles or [""]
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
        titles = [f"{layer}.{h}" if layer != "" else f"head {h}" for h in shown]
    if isinstance(outline, int):
        outline = [(i, i + outline) for i in range(len(tokens)) if 0 <= i + outline < len(keys)]
    outline = list(outline)
    n_columns = len(shown) if len(shown) <= 4 else -(-len(shown) // 2) if len(shown) <= 8 else 4
    high = -(-len(shown) // n_columns)
    side = {1: 4.4, 2: 3.0, 3: 2.1}.get(n_columns, 1.6 if len(tokens) <= 12 else 2.2)
    fig, grid = subplots(high, n_columns, figsize=(side * n_columns + 1.2, 0.92 * side * high + 0.9), squeeze=False)
    for index, ax in enumerate(grid.flat):
        if index >= len(shown):
            ax.set_axis_off()
            continue
        left, low = index % n_columns == 0, index + n_columns >= len(shown)
        matrix(
            table[shown[index]],
            rows=tokens,
            columns=keys,
            values=False,
            bar=False,
            ax=ax,
            outline=outline,
            row_label="query" if left else "",
            column_label="key" if low else "",
        )
        ax.tick_params(labelleft=left, labelbottom=low)
        ax.set_title(titles[index], pad=3)
    fig.colorbar(grid[0, 0].images[0], ax=list(grid.flat), label="attention", shrink=0.8, pad=0.01)
    if title:
        fig.suptitle(title, fontsize=11, weight="bold", parse_math=False)
    return fig


def arcs(weights: Any, tokens: Sequence[str], *, title: str = "", least: float = 0.2, ax: Axes | None = None) -> Figure:
    """Draw one attention map as arcs over the words: solid above to earlier words, dashed below to later ones.

    weights: (query, key) over the same tokens; an arc starts at the query, its arrow ends at the key
    least: weights below this are left out; a word that attends to itself is framed

    Raises ValueError when map and tokens do not fit.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = arcs([[1.0, 0.0], [0.9, 0.1]], ["the", "fox"])
    >>> len(fig.axes[0].patches)  # one arc, from "fox" to "the"
    1
    """
    from matplotlib.patches import FancyArrowPatch

    table = _array(weights, 2)
    if table.shape != (len(tokens), len(tokens)):
        raise ValueError(f"the map is {table.shape} but there are {len(tokens)} tokens")
    shown = [plain(t).translate(_ENDS) for t in tokens]
    width = np.array([len(t) + 2.5 for t in shown])
    x = width.cumsum() - width / 2
    # An arc rises to a sixth of its length; that much room is made above and below the words, in inches.
    reach = {
        before: max([abs(x[i] - x[j]) for i, j in np.argwhere(table >= least) if bool(j < i) is before], default=0)
        for before in (True, False)
    }
    above, below = (0.3 + 7 * reach[before] / width.sum() / 5.5 for before in (True, False))
    fig, ax = _on(ax, (7.2, above + below + (0.3 if title else 0)), title)
    for i, j in np.argwhere(table >= least):
        if i == j:
            continue
        before = bool(j < i)
        y = 0.12 if before else -0.12  # above the words, or below
        look = {"color": OKABE_ITO[0 if before else 1], "linestyle": "-" if before else "--"}
        look |= {"linewidth": 0.6 + 2.2 * table[i, j], "connectionstyle": "arc3,rad=0.35"}
        arrow = FancyArrowPatch((x[i], y), (x[j], y), arrowstyle="-|>", mutation_scale=11, shrinkA=2, shrinkB=2, **look)
        ax.add_patch(arrow)
    for i, word in enumerate(shown):
        _write(ax, x[i], 0, word, bbox=_box(0.2) if table[i, i] >= least else None)
    ax.set(xlim=(0, width.sum()), ylim=(-below, above))
    ax.set_axis_off()
    return fig


def bars(
    names: Sequence[str],
    values: Any,
    *,
    label: str,
    title: str = "",
    low: Any = None,
    high: Any = None,
    baseline: float | None = None,
    highlight: Sequence[int] = (),
    ax: Axes | None = None,
) -> Figure:
    """Draw one horizontal bar for each name, with its number, and an interval and a baseline where you have them.

    names, values: one each; label: what the values are, with the unit
    low, high: ends of each value's interval, in the values' unit
    baseline: the value that chance or a simple rule reaches, drawn as a dashed line
    highlight: places of the bars to fill with the second colour and a hatch
    """
    table = _array(values, 1)
    if len(names) != len(table):
        raise ValueError(f"{len(names)} names but {len(table)} values")
    fig, ax = _on(ax, (6.8, 1.1 + 0.36 * len(table)), title)
    positions = np.arange(len(table))
    patches = ax.barh(positions, table, color=[OKABE_ITO[1 if i in highlight else 0] for i in positions])
    for i in highlight:
        patches[i].set_hatch("//")
        patches[i].set_edgecolor("white")
    ends = table
    if low is not None and high is not None:
        reach = np.stack([table - _array(low, 1), _array(high, 1) - table]).clip(0)  # it may lie to one side
        ax.errorbar(table, positions, xerr=reach, fmt="none", ecolor="black", capsize=3)
        ends = table + reach[1]
    for i, end in enumerate(ends):
        ax.annotate(f"{table[i]:.3g}", (max(end, 0), i), (4, 0), textcoords="offset points", va="center", fontsize=9)
    if baseline is not None:
        ax.axvline(baseline, color="black", linestyle="--", linewidth=1)
    _names(ax.yaxis, names, len(names))
    ax.invert_yaxis()
    ax.margins(x=0.12)
    ax.set_xlabel(label)
    return fig


def flow(nodes: Sequence[Sequence[str]], messages: Sequence[Any], *, title: str = "", ax: Axes | None = None) -> Figure:
    """Draw what the units of a small network send back, from right to left, such as relevance.

    nodes: for each layer the texts of its units, the input's layer first
    messages: for each pair of neighbouring layers a table (unit of the later layer, unit of the earlier layer)

    An arrow is as wide as its message is large: solid if positive, dashed if negative, dotted grey for 0.

    Raises ValueError when messages and nodes do not fit.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = flow([["a", "b"], ["y"]], [[[3.0, -1.0]]])
    >>> [t.get_text() for t in fig.axes[0].texts]
    ['3', '-1', 'a', 'b', 'y']
    """
    from matplotlib.patches import FancyArrowPatch

    tables = [_array(table, 2) for table in messages]
    shapes = [(len(late), len(early)) for early, late in pairwise(nodes)]
    if [table.shape for table in tables] != shapes:
        raise ValueError(f"layers of these sizes need messages of the shapes {shapes}, got {[t.shape for t in tables]}")
    fig, ax = _on(ax, (1.6 + 1.7 * len(nodes), 0.8 + 0.9 * max(map(len, nodes))), title)
    largest = max(abs(table).max() for table in tables) or 1.0
    points = [[(2.0 * layer, (len(texts) - 1) / 2 - i) for i in range(len(texts))] for layer, texts in enumerate(nodes)]
    for layer, table in enumerate(tables):
        for (late, early), message in np.ndenumerate(table):
            start, end = np.array(points[layer + 1][late]), np.array(points[layer][early])
            look = {"color": "0.7", "linestyle": ":", "linewidth": 1.0}
            if message:
                look = {"color": OKABE_ITO[0 if message > 0 else 1], "linestyle": "-" if message > 0 else "--"}
                look["linewidth"] = 1 + 5 * abs(message) / largest
            ax.add_patch(
                FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, shrinkA=24, shrinkB=24, **look)
            )
            if message:  # beside the middle of a level arrow; nearer to the receiver where arrows cross
                x, y = end + (start - end) * (0.5 if start[1] == end[1] else 0.36)
                _write(ax, x, y, f"{message:.3g}", 9, bbox=_box(0.15, "none"))
    for texts, at in zip(nodes, points, strict=True):
        for text, (x, y) in zip(texts, at, strict=True):
            _write(ax, x, y, text, bbox=_box(0.35))
    height = max(map(len, nodes)) / 2 - 0.15
    ax.set(xlim=(-0.7, 2.0 * len(nodes) - 1.3), ylim=(-height, height))
    ax.set_axis_off()
    return fig


def lines(
    curves: Mapping[str, Sequence[Any]],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    band: Sequence[str] = (),
    baseline: float | None = None,
    legend: bool = True,
    ax: Axes | None = None,
    **axes: Any,
) -> Figure:
    """Draw one line for each name, told apart by marker and dash as well as by colour, with intervals where given.

    curves: {name: (x, y)} or {name: (x, y, low, high)}, each a sequence of the same length
    xlabel, ylabel: what the axes are, with the unit; axes: more settings, such as ``xscale="log"``
    band: names whose interval is a band instead of bars, the first, for a baseline, in grey
    baseline: the value that chance or a simple rule reaches, drawn as a dashed line
    legend: write the names into the axes; without, ``ax.legend`` can place them

    Raises ValueError for a curve with parts of different lengths, and for a name in ``band`` that has no interval.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = lines({"a": ([0, 1], [2, 3], [1, 2], [4, 5])}, xlabel="step", ylabel="BLEU")
    >>> fig.axes[0].get_ylabel(), len(fig.axes[0].lines) > 0
    ('BLEU', True)
    """
    fig, ax = _on(ax, (6.8, 3.6), title)
    for i, (name, parts) in enumerate(curves.items()):
        table = [np.asarray(part, dtype=float) for part in parts]
        if len(table) not in (2, 4) or len({part.shape for part in table}) != 1 or table[0].ndim != 1:
            shapes = [part.shape for part in table]
            raise ValueError(f"{name!r} needs (x, y) or (x, y, low, high) of one length, got the shapes {shapes}")
        x, y = table[:2]
        plain = name in band[:1]
        look = {"color": "0.45" if plain else OKABE_ITO[i % len(OKABE_ITO)], "label": name}
        look |= {"marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i // 2 % len(DASHES)]}
        look |= {"markersize": 5, "linewidth": 1.4}
        if name in band:
            if len(table) == 2:
                raise ValueError(f"{name!r} has no interval to draw as a band: pass (x, y, low, high)")
            shade = {"color": "0.85"} if plain else {"color": look["color"], "alpha": 0.25}
            ax.fill_between(x, *table[2:], linewidth=0, **shade)
        if name in band or len(table) == 2:
            ax.plot(x, y, **look)
        else:
            reach = np.clip(np.stack([y - table[2], table[3] - y]), 0, None)
            ax.errorbar(x, y, yerr=reach, capsize=2, elinewidth=0.8, **look)
    if baseline is not None:
        ax.axhline(baseline, color="black", linestyle="--", linewidth=1)
    ax.set(xlabel=xlabel, ylabel=ylabel, **axes)
    if legend and len(curves) > 1:
        ax.legend()
    return fig


def stacked(
    parts: Mapping[str, Any],
    names: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    title: str = "",
    rest: str = "",
    legend: bool = True,
    ax: Axes | None = None,
) -> Figure:
    """Draw one upright bar for each name, made of parts on top of one another, told apart by hatches and colours.

    parts: {name of the part: its size in each bar}, from the bottom up; a part of nothing but zeros has no entry in
        the legend
    names: what to write under the bars
    rest: the part that is none of the others, drawn in plain grey

    Raises ValueError for parts of another length than ``names``, and for negative sizes.

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = stacked({"role": [3, 2], "none": [5, 0]}, ["early", "late"], xlabel="step", ylabel="heads")
    >>> [float(bar.get_y()) for bar in fig.axes[0].patches]
    [0.0, 0.0, 3.0, 2.0]
    """
    fig, ax = _on(ax, (6.8, 3.6), title)
    bottom = np.zeros(len(names))
    for i, (name, sizes) in enumerate(parts.items()):
        table = _array(sizes, 1)
        if len(table) != len(names) or (table < 0).any():
            raise ValueError(f"{name!r} needs {len(names)} sizes of 0 or more, one for each bar, got {table.tolist()}")
        look = {"color": OKABE_ITO[i % len(OKABE_ITO)], "hatch": HATCHES[i % len(HATCHES)]}
        look = {"color": "0.85"} if name == rest else look
        label = name if table.any() else "_"  # no entry in the legend
        ax.bar(np.arange(len(names)), table, bottom=bottom, width=0.75, edgecolor="white", label=label, **look)
        bottom += table
    ax.set_xticks(np.arange(len(names)), [plain(name) for name in names])
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if legend:
        ax.legend()
    return fig


def spectrum(
    spectra: Mapping[str, Any], *, title: str = "", ylabel: str = "singular value", ax: Axes | None = None, **axes: Any
) -> Figure:
    """Draw singular values, largest first, one curve for each name.

    spectra: {name: values}, each a vector; axes: more settings, such as ``yscale="log"``

    >>> import matplotlib; matplotlib.use("agg")
    >>> fig = spectrum({"head 0": [1.0, 3.0]})
    >>> fig.axes[0].lines[0].get_ydata().tolist()
    [3.0, 1.0]
    """
    curves = {name: np.sort(_array(values, 1))[::-1] for name, values in spectra.items()}
    curves = {name: (np.arange(1, len(values) + 1), values) for name, values in curves.items()}
    return lines(
        curves, xlabel="index, largest first", ylabel=ylabel, title=title, ax=ax, **{"ylim": (0, None), **axes}
    )


def words(rows: Sequence[tuple[str, Sequence[str]]]) -> Figure:
    """Draw sentences under one another; words of later rows that are not in the first are framed and bold.

    rows: (name, words) each, the first one being what the others are compared with; long rows are wrapped

    Raises ValueError when a row has no words.
    """
    if not rows or any(not words for _, words in rows):
        raise ValueError(f"every row needs a name and words, got {[name for name, words in rows if not words]}")

    def shown(text: str, most: int = _WIDTH) -> str:
        return shortened(plain(text).translate({ord(end): " " for end in "\n\r\t"}), most)

    lines: list[tuple[str, list[tuple[str, bool]]]] = []  # name, (word, whether it changed)
    for i, (name, sentence) in enumerate(rows):
        marks = [False] * len(sentence) if i == 0 else changed_words(rows[0][1], sentence)
        lines.append((name, []))
        width = 0
        for word, mark in zip(map(shown, sentence), marks, strict=True):
            if width + len(word) + 1 > _WIDTH and lines[-1][1]:
                lines.append(("", []))
                width = 0
            lines[-1][1].append((word, mark))
            width += len(word) + 1
    fig, ax = subplots(figsize=(8.6, 0.27 * len(lines) + 0.1))
    ax.set(xlim=(0, _NAME + _WIDTH), ylim=(len(lines) - 0.4, -0.6))
    ax.set_axis_off()
    written = {"va": "center", "fontsize": 10, "parse_math": False}
    frame = {"boxstyle": "square,pad=0.12", "facecolor": "#FFE3CC", "edgecolor": "#D55E00"}
    for y, (name, line) in enumerate(lines):
        ax.text(0, y, shown(name, _NAME), color="#444444", **written)
        x = float(_NAME)
        for word, mark in line:
            look = {"weight": "bold", "bbox": frame} if mark else {}
            ax.text(x, y, word, family="monospace", **look, **written)
            x += len(word) + 1
    return fig


def changed_words(before: Sequence[str], after: Sequence[str]) -> list[bool]:
    """Tell for each word of ``after`` whether it is new or moved, by the longest common runs of words.

    >>> changed_words(["a", "b", "c"], ["a", "x", "c"])
    [False, True, False]
    """
    same = [False] * len(after)
    for block in SequenceMatcher(None, list(before), list(after), autojunk=False).get_matching_blocks():
        same[block.b : block.b + block.size] = [True] * block.size
    return [not s for s in same]


def roles(frame: Any, *, kind: str = "encoder", title: str = "", legend: bool = True, ax: Axes | None = None) -> Figure:
    """Draw which head has which function, of a frame that ``taxonomy`` made: see ``course/role_map.py``."""
    from headtools.course.role_map import role_map

    fig, ax = _on(ax, (6.8, 4.4), title)
    role_map(ax, frame, kind=kind, legend=legend)
    return fig


def _on(ax: Axes | None, figsize: tuple[float, float], title: str) -> tuple[Figure, Axes]:
    """Axes to draw into, new ones in the house style unless they are given, with a title at the left."""
    if ax is None:
        _, ax = subplots(figsize=figsize)
    if title:
        ax.set_title(title, loc="left", fontsize=11, weight="bold", parse_math=False)
    return ax.figure, ax


def _write(ax: Axes, x: float, y: float, text: str, size: float = 10, **more: Any) -> None:
    """Write a word centred at a point; a token may hold dollar signs, which are no mathematics."""
    ax.text(x, y, text, ha="center", va="center", fontsize=size, parse_math=False, **more)


def _box(pad: float, edge: str = "black") -> dict[str, str]:
    """A white frame with round corners around a word."""
    return {"boxstyle": f"round,pad={pad}", "facecolor": "white", "edgecolor": edge}


def _frame(ax: Axes, cells: Iterable[tuple[int, int]]) -> None:
    """Frame cells (row, column) of a matrix."""
    from matplotlib.patches import Rectangle

    for row, column in cells:
        ax.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=OKABE_ITO[1], linewidth=2))


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
    """Write every name, or every second, third … where there is no room at 9 points; cut names that are too long."""
    step = max(1, -(-size // 24))
    if given is None and size > 36:  # numbers of two digits side by side: every 4th, 8th ...
        step = 4 * -(-size // 64)
    positions = list(range(0, size, step))
    max_letters = 18 if axis.axis_name == "x" else 36
    shown = [shortened(plain(i if given is None else given[i]).translate(_ENDS), max_letters) for i in positions]
    turned = axis.axis_name == "x" and max(map(len, shown)) > 2
    axis.set_ticks(positions, shown, rotation=90 if turned else 0)
    for name in axis.get_ticklabels():
        name.set_parse_math(False)  # a token may hold dollar signs


def _short(value: float) -> str:
    """Two decimals without the zero that takes the room: .83, -.10, 1.00."""
    return f"{value:.2f}".replace("0.", ".", 1) if abs(value) < 0.995 else f"{value:.2f}"
