"""The figures of a report: the course's drawings as SVG inside the page, readable in light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from headtools._report.page import figure, head_name, number, side_by_side
from headtools.course import plot
from headtools.course.figure import style
from headtools.course.plain import escape
from headtools.heads.scores import Head, HeadScores
from headtools.roles.head_functions import NONE, head_functions

INK = "#010203"  # stands for the page's own text colour, which is known only when the page is shown
_INK = dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK)


def _drawn(draw: Any, alt: str, caption: str = "", title: str = "") -> Markup:
    """Return a ``<figure>`` around what ``draw()`` draws; its words and axes take the colour of the page."""
    from matplotlib import pyplot as plt

    file = io.StringIO()
    # Words stay words, so that they can be searched and read aloud; the same figure gives the same bytes.
    as_svg = {"svg.fonttype": "none", "svg.hashsalt": "headtools", "font.family": "sans-serif"}
    with plt.rc_context({**style(), **_INK, **as_svg}), warnings.catch_warnings():
        # Of words that the font lacks, which the browser has, or that leave no room for cells: hostile tokens do both.
        warnings.simplefilter("ignore", UserWarning)
        fig = draw()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        fig.savefig(file, format="svg", bbox_inches="tight", transparent=True, metadata=nothing)
        plt.close(fig)
    svg = file.getvalue()[file.getvalue().index("<svg") :]  # without the XML declaration
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.S)
    svg = re.sub(r' id="[A-Za-z.]+_\d+"', "", svg)  # every figure has a "patch_1": names are unique within a page
    svg = svg.replace(INK, "currentColor").replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
    return figure(Markup(svg), caption, title)


def roles(frame: pd.DataFrame, kind: str, claim: str) -> Markup:
    """Draw the role map of one kind of attention; pointing at a head shows its roles."""
    heads = head_functions(frame)
    n_layers, n_heads = heads.layer.max() + 1, heads["head"].max() + 1
    counts = heads[heads.function != NONE].groupby("layer").size()
    by_layer = ", ".join(f"layer {layer}: {n}" for layer, n in counts.items()) or "none anywhere"
    alt = (
        f"A grid of {heads.layer.nunique()} layers by {n_heads} heads, coloured where a head has a function. "
        f"Coloured cells: {by_layer}."
    )

    def draw() -> Any:
        _, ax = plot.subplots(figsize=(max(3.2, 0.9 + 0.36 * n_heads), 1.3 + 0.36 * n_layers))
        fig = plot.roles(frame, kind=kind, ax=ax)
        for row, patch in zip(heads.itertuples(), ax.patches, strict=True):
            patch.set_gid(f"tip:{kind} {row.layer}.{row.head}: {row.roles or 'no function'}")
        return fig

    html = _drawn(draw, alt, claim, f"{kind} heads: functions")
    return Markup(re.sub(r'<g id="tip:([^"]*)">', r"<g><title>\1</title>", str(html)))


def grids(scores: HeadScores, label: str, *, from_zero: bool = True, signed: bool = False) -> list[Markup]:
    """Draw a grid of layers by heads for each kind of attention, all on one scale.

    The scale runs from 0, with the square root, since a few heads are often worth more than all others together; or
    from the lowest value, for numbers that are all alike (``from_zero=False``). ``signed`` has a colour for each sign.
    """
    values = scores.flat()
    top = float(values.abs().max() if signed else values.max())
    low = -top if signed else 0.0 if from_zero else float(values.min())
    if not low < top:
        top = low + 1.0
    kinds: dict[tuple, dict[int, list[float]]] = {}
    for key, of_layer in scores.values.items():
        kinds.setdefault(key[:-1], {})[key[-1]] = of_layer.tolist()
    figures, scale = [], {"vmin": low, "vmax": top, "label": label}
    for kind, layers in kinds.items():
        name, n_heads = " ".join(map(str, kind)), max(map(len, layers.values()))
        cells = [(abs(value), value, layer, head) for layer in layers for head, value in enumerate(layers[layer])]
        _, best, layer, head = max(cells, key=lambda cell: cell[0])
        alt = (
            f"A grid of {name} heads, {len(layers)} layers by up to {n_heads} heads, shaded from {number(low)} to "
            f"{number(top)}: {label}. The {'strongest' if signed else 'highest'} of this kind is head {head} of "
            f"layer {layer}, {number(best)}."
        )
        figures.append(
            _drawn(lambda layers=layers: _grid(layers, scale, from_zero or signed), alt, "", f"{name} heads: {label}")
        )
    return figures


def _grid(layers: Mapping[int, Sequence[float]], scale: Mapping[str, Any], by_root: bool) -> Any:
    """Draw a number for each head; layers may have different numbers of heads, and layers without any are left out."""
    from matplotlib.colors import FuncNorm

    n_heads = max(map(len, layers.values()))
    padded = np.array([[*row, *[scale["vmin"]] * (n_heads - len(row))] for row in layers.values()])
    absent = [[head >= len(row) for head in range(n_heads)] for row in layers.values()]
    _, ax = plot.subplots(figsize=(max(3.2, 1.7 + 0.26 * n_heads), 0.9 + 0.26 * len(layers)))
    fig = plot.heads(np.clip(padded, scale["vmin"], scale["vmax"]), **scale, values=False, ax=ax)
    ax.set_yticks(range(len(layers)), list(map(str, layers)))
    image = ax.images[0]
    image.set_data(np.ma.masked_array(padded, absent))
    if by_root:
        root, square = (lambda x, power=power: np.sign(x) * np.abs(x) ** power for power in (0.5, 2))
        image.set_norm(FuncNorm((root, square), scale["vmin"], scale["vmax"]))
    return fig


def pruning(frame: pd.DataFrame, claim: str, metric: str = "loss (nats)") -> Markup:
    """Draw the loss, or another ``metric``, against the number of heads kept, by gradient and in random order."""
    curve = frame[frame.order == "gradient"].sort_values("kept")
    random = frame[frame.order != "gradient"].groupby("kept").metric
    has_interval = curve.low.notna().all()
    lines = {"least important first": (curve.kept, curve.metric, *([curve.low, curve.high] if has_interval else []))}
    if len(random):
        mean = random.mean()
        lines["random order, mean"] = (mean.index, mean, random.min(), random.max())
    all_heads, none = curve.iloc[-1], curve.iloc[0]
    bars = "bars are 95 % intervals, and " if has_interval else "bars are "
    alt = (
        f"{metric[0].upper()}{metric[1:]} against heads kept, from {all_heads.metric:.2f} with all "
        f"{all_heads.kept} heads to {none.metric:.2f} with none; {bars}the range of the random orders."
    )
    axes = {"xlabel": "heads kept", "ylabel": metric, "ylim": (0, None)}
    return _drawn(lambda: plot.lines(lines, **axes), alt, claim)


def maps(
    head_maps: Mapping[Head, np.ndarray],
    reasons: Mapping[Head, str],
    decoder_tokens: Sequence[str] | None,
    input_tokens: Sequence[str] | None,
) -> Markup:
    """Draw one map (query, key) for each head, each on a scale of its own, with the reason why it is shown.

    In a causal map the first query sees nothing but itself; its weight of 1 does not count for the scale.
    """
    figures = []
    for head, weights in head_maps.items():
        causal = head[-3] == "decoder" and weights.shape[0] == weights.shape[1] and not np.triu(weights, 1).any()
        first = int(causal and len(weights) > 1)
        counted = weights[first:][np.tril(np.ones_like(weights))[first:] > 0] if causal else weights
        low, top = float(counted.min()), float(counted.max()) or 1.0
        low = low if low > top / 2 else 0.0  # all but uniform: from 0 there would be nothing to see
        sides = _queries_and_keys(head, decoder_tokens, input_tokens)
        rows, columns = (  # models may add or drop some tokens
            tokens if tokens is not None and len(tokens) == size else None
            for tokens, size in zip(sides, weights.shape, strict=True)
        )
        query, key = divmod(int(weights[first:].argmax()), weights.shape[1])
        from_to = (
            rows[query + first] if rows else f"position {query + first}",
            columns[key] if columns else f"position {key}",
        )
        strongest = f"Strongest from {from_to[0]} to {from_to[1]} ({weights[first:].max():.2f})."
        scale = f"Nearly uniform; scale {low:.3f} to {top:.3f}." if low else f"Scale 0 to {top:.2f}."
        alt = f"{head_name(head)}, a map of {weights.shape[0]} queries by {weights.shape[1]} keys. {strongest}"

        def draw(weights: Any = weights, rows: Any = rows, columns: Any = columns, ends: Any = (low, top)) -> Any:
            words = [min(18, max(map(len, side or [""]))) for side in (rows, columns)]  # letters beside the cells
            size = [
                0.6 + 0.08 * letters + min(3.5, 0.22 * n)
                for letters, n in zip(words, reversed(weights.shape), strict=True)
            ]
            sides = {"rows": rows, "columns": columns, "values": False, "bar": False}
            # the first query of a causal map may lie above the scale
            _, ax = plot.subplots(figsize=size)
            fig = plot.matrix(np.clip(weights, *ends), vmin=ends[0], vmax=ends[1], **sides, ax=ax)
            ax.images[0].set_interpolation("auto")  # of long texts, cells are averaged
            return fig

        figures.append(_drawn(draw, alt, f"{strongest} {scale}", f"{head_name(head)}: {reasons[head]}"))
    return side_by_side(figures)


def _queries_and_keys(head: Head, decoder_tokens: Any, input_tokens: Any) -> tuple[Any, Any]:
    """Return the tokens of a head's queries and of its keys; ``decoder_tokens`` is None where there is one stack."""
    kind = head[-3]
    if decoder_tokens is None or kind == "encoder":
        return input_tokens, input_tokens
    return decoder_tokens, decoder_tokens if kind == "decoder" else input_tokens
