"""The figures of a report, each as the HTML of a ``<figure>`` around a drawing that takes its colours from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from markupsafe import Markup
from torch import Tensor

from headtools._report.page import figure, side_by_side
from headtools.course.role_map import COLOURS
from headtools.course.svg import LETTER, Drawing, cells, shortened
from headtools.heads.scores import Head, HeadScores, head_columns
from headtools.roles.head_functions import LETTERS, NONE, head_functions

MOST_CELLS = 64  # on a side of a map; larger maps are averaged down to that
_STEPS = 5  # of a scale of colours
_LEFT, _TOP = 44, 34  # room for the names of layers and heads


def head_name(head: Head) -> str:
    """Write a head's name.

    >>> head_name(("encoder", 2, 5))
    'encoder 2.5'
    """
    return f"{' '.join(map(str, head[:-2]))} {head[-2]}.{head[-1]}"


def head_of(row: Mapping) -> Head:
    """Return the head that a row of a table is about."""
    return tuple(row[name] for name in head_columns(row))


def number(value: float) -> str:
    """Write a number with three digits, as it would be said.

    >>> number(0.01234), number(1234.5), number(float("nan"))
    ('0.0123', '1234', 'no number')
    """
    if math.isnan(value):
        return "no number"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Write a share as a whole number of percent.

    >>> percent(0.125)
    '12 %'
    """
    return f"{100 * share:.0f} %"


def roles(frame: pd.DataFrame, kind: str, claim: str) -> Markup:
    """Draw the role map of one kind of attention."""
    heads = head_functions(frame)
    layers = {
        layer: {row["head"]: row for row in of_layer.to_dict("records")}
        for layer, of_layer in heads.groupby("layer", sort=True)
    }
    n_heads = heads["head"].max() + 1
    shown = [name for name in (*LETTERS, NONE) if (heads.function == name).any()]

    def draw(drawing: Drawing, left: float, y: float, size: float, layer: int, head: int, row: dict) -> None:
        name, tip = row["function"], f"{kind} {layer}.{head}: {row['roles'] or 'no function'}"
        drawing.rect(left + 1, y + 1, size - 2, size - 2, "none", fill="" if name == NONE else COLOURS[name], tip=tip)
        if row["letters"]:
            small = "small dark" if len(row["letters"]) > 2 else "strong dark"
            drawing.text(left + size / 2, y + size / 2 + 4, row["letters"][:4], small, anchor="middle")

    drawing = _grid(layers, n_heads, draw, legend=34 + 18 * -(-len(shown) // 2))
    for i, name in enumerate(shown):
        x, y = _LEFT + 130 * (i % 2), drawing.height - 18 * (-(-len(shown) // 2) - i // 2) - 4
        drawing.rect(x, y, 13, 13, "none", fill="" if name == NONE else COLOURS[name])
        drawing.text(x + 19, y + 11, f"{LETTERS[name]} {name}" if name in LETTERS else name)
    counts = heads[heads.function != NONE].groupby("layer").size()
    by_layer = ", ".join(f"layer {layer}: {n}" for layer, n in counts.items()) or "none anywhere"
    alt = (
        f"A grid of {len(layers)} layers by {n_heads} heads, coloured where a head has a function. "
        f"Coloured cells: {by_layer}."
    )
    return figure(drawing.inline(alt), claim, f"{kind} heads: functions")


def grids(scores: HeadScores, label: str, *, from_zero: bool = True, signed: bool = False) -> list[Markup]:
    """Draw a grid of layers by heads for each kind of attention, all on one scale.

    The scale runs from 0, with the square root, since a few heads are often worth more than all others together; or
    from the lowest value, for numbers that are all alike (``from_zero=False``). ``signed`` has a colour for each sign.
    """
    values = scores.flat()
    low = 0.0 if from_zero or signed else float(values.min())
    top = float(values.abs().max() if signed else values.max())
    value_range = (top - low) or 1.0

    def style(value: float) -> dict[str, Any]:
        share = max(0.0, (abs(value) if signed else value) - low) / value_range
        shade = math.sqrt(share) if from_zero or signed else share
        return {"kind": "second" if signed and value < 0 else "mark", "opacity": round(0.04 + 0.96 * shade, 3)}

    kinds: dict[tuple, list[tuple]] = {}
    for key in scores.values:
        kinds.setdefault(key[:-1], []).append(key)
    figures = []
    for kind, keys in kinds.items():
        layers = {key[-1]: dict(enumerate(scores.values[key].tolist())) for key in keys}
        name, n_heads = " ".join(map(str, kind)), max(map(len, layers.values()))

        def draw(
            drawing: Drawing, x: float, y: float, size: float, layer: int, head: int, value: float, name: str = name
        ) -> None:
            drawing.rect(
                x + 0.5, y + 0.5, size - 1, size - 1, **style(value), tip=f"{name} {layer}.{head}: {number(value)}"
            )

        drawing = _grid(layers, n_heads, draw, legend=38, least=230)
        ends = (-top, top) if signed else (low, top)
        samples = [ends[0] + (ends[1] - ends[0]) * i / (_STEPS - 1) for i in range(_STEPS)]
        for i, sample in enumerate(samples):
            drawing.rect(_LEFT + 36 * i, drawing.height - 30, 36, 10, **style(sample))
            if i in (0, (_STEPS - 1) // 2, _STEPS - 1):
                drawing.text(_LEFT + 36 * i + 18, drawing.height - 7, number(sample), "small soft", anchor="middle")
        layer, head, best = max(
            ((layer, head, value) for layer, of_layer in layers.items() for head, value in of_layer.items()),
            key=lambda cell: abs(cell[2]),
        )
        alt = (
            f"A grid of {name} heads, {len(keys)} layers by up to {n_heads} heads, shaded from {number(ends[0])} to "
            f"{number(ends[1])}: {label}. The {'strongest' if signed else 'highest'} of this kind is head {head} of "
            f"layer {layer}, {number(best)}."
        )
        figures.append(figure(drawing.inline(alt), "", f"{name} heads: {label}"))
    return figures


def _grid(
    layers: Mapping[int, Mapping[int, Any]],
    n_heads: int,
    draw: Callable[..., None],
    legend: float,
    least: float = 270,
) -> Drawing:
    """Return a drawing of layers by heads with their numbers, to which ``draw`` adds what each cell holds."""
    size = 30 if n_heads <= 12 else 24 if n_heads <= 20 else 18
    drawing = Drawing(max(_LEFT + n_heads * size + 4, least), _TOP + len(layers) * size + legend)
    drawing.text(_LEFT, 12, "head", "soft small")
    drawing.text(4, 28, "layer", "soft small")
    step = 1 if size >= 24 or n_heads <= 16 else 4
    for head in range(0, n_heads, step):
        drawing.text(_LEFT + (head + 0.5) * size, 28, head, "small", anchor="middle")
    for row, (layer, of_layer) in enumerate(layers.items()):
        y = _TOP + row * size
        drawing.text(_LEFT - 8, y + size / 2 + 4, layer, "small", anchor="end")
        for head, cell in of_layer.items():
            draw(drawing, _LEFT + head * size, y, size, layer, head, cell)
    return drawing


def pruning(frame: pd.DataFrame, claim: str, metric: str = "loss (nats)") -> Markup:
    """Draw the loss, or another ``metric``, against the number of heads kept, by gradient and in random order."""
    curve = frame[frame.order == "gradient"].sort_values("kept")
    random = frame[frame.order != "gradient"].groupby("kept").metric
    lines = [("mark", "first-line", "least important first", curve.kept, curve.metric, curve.low, curve.high)]
    if len(random):
        mean = random.mean()
        lines.append(("second", "second-line", "random order, mean", mean.index, mean, random.min(), random.max()))
    plotted = np.concatenate([np.asarray(values, float) for line in lines for values in line[4:]])
    ticks = _ticks(float(np.nanmax(plotted)))
    width, height, left, bottom = 560, 300, 58, 44
    total, top = int(frame.kept.max()) or 1, ticks[-1]
    drawing = Drawing(width, height + bottom)

    def position(n_kept: float, value: float) -> tuple[float, float]:
        return left + (width - left - 14) * n_kept / total, height - (height - 34) * value / top

    drawing.text(4, 14, metric, "soft")
    for tick in ticks:
        y = position(0, tick)[1]
        drawing.line([(left, y), (width - 14, y)])
        drawing.text(left - 8, y + 4, number(tick), "small", anchor="end")
    for n_kept in sorted({round(total * quarter / 4) for quarter in range(5)}):
        drawing.text(position(n_kept, 0)[0], height + 18, n_kept, "small", anchor="middle")
    drawing.text((left + width) / 2, height + 38, "heads kept", "soft", anchor="middle")
    for fill, _, _, n_kept, _, low, high in lines:
        ends = [(k, a, b) for k, a, b in zip(n_kept, low, high, strict=True) if not math.isnan(a)]
        if ends:
            around = [position(k, max(a, 0.0)) for k, a, _ in ends] + [position(k, b) for k, _, b in reversed(ends)]
            drawing.path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in around) + "z", fill, opacity=0.16)
    for i, (fill, stroke, name, n_kept, metric_values, _, _) in enumerate(lines):
        drawing.line([position(k, v) for k, v in zip(n_kept, metric_values, strict=True)], stroke)
        for k, v in zip(n_kept, metric_values, strict=True):
            x, y = position(k, v)
            drawing.rect(x - 3, y - 3, 6, 6, fill, tip=f"{name}, {k} heads: {number(v)}")
        drawing.line([(width - 204, 14 + 18 * i), (width - 174, 14 + 18 * i)], stroke)
        drawing.text(width - 168, 18 + 18 * i, name)
    all_heads, none = curve.iloc[-1], curve.iloc[0]
    bands = "the band is " if curve.low.isna().all() else "bands are 95 % intervals, and "
    alt = (
        f"{metric[0].upper()}{metric[1:]} against heads kept, from {all_heads.metric:.2f} with all "
        f"{all_heads.kept} heads to {none.metric:.2f} with none; {bands}the range of the random orders."
    )
    return figure(drawing.inline(alt), claim)


def _ticks(maximum: float) -> list[float]:
    """Return round numbers from 0 to the first that is at least ``maximum``.

    >>> _ticks(12.4), _ticks(0.0)
    ([0.0, 5.0, 10.0, 15.0], [0.0, 1.0])
    """
    if not maximum > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(maximum / 3))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= maximum / 4)
    return [step * i for i in range(math.ceil(maximum / step - 1e-9) + 1)]


def maps(
    head_maps: Mapping[Head, Tensor],
    reasons: Mapping[Head, str],
    decoder_tokens: Sequence[str] | None,
    input_tokens: Sequence[str] | None,
) -> Markup:
    """Draw one map (query, key) for each head, each on a scale of its own, with the reason why it is shown.

    In a causal map the first query sees nothing but itself; its weight of 1 does not count for the scale.
    """
    figures = []
    for head, weights in head_maps.items():
        table = weights.detach().float().cpu().numpy()
        one_sided = head[-3] == "decoder" and table.shape[0] == table.shape[1] and not np.triu(table, 1).any()
        counted = table[1:] if one_sided and len(table) > 1 else table
        visible = counted[np.tril(np.ones(table.shape, bool))[-len(counted) :]] if one_sided else counted
        low, top = float(visible.min()), float(visible.max()) or 1.0
        low = low if low > top / 2 else 0.0  # all but uniform: from 0 there would be nothing to see
        rows, columns = (
            tokens if tokens is not None and len(tokens) == size else None  # models may add or drop some
            for tokens, size in zip(_queries_and_keys(head, decoder_tokens, input_tokens), table.shape, strict=True)
        )
        first = len(table) - len(counted)
        figures.append(_map(head_name(head), reasons[head], table, low, top, rows, columns, first))
    return side_by_side(figures)


def _map(
    name: str,
    reason: str,
    table: np.ndarray,
    low: float,
    top: float,
    rows: Sequence[str] | None,
    columns: Sequence[str] | None,
    first: int,
) -> Markup:
    """Draw one map with the names of its tokens, where they are few; the scale counts from the query ``first`` on."""
    step = -(-max(table.shape) // MOST_CELLS)
    strongest = _description(table[first:], rows[first:] if rows else None, columns, first)
    if step > 1:
        pooled = torch.nn.functional.avg_pool2d(torch.from_numpy(table)[None, None], step, ceil_mode=True)[0, 0]
        table, low, top = pooled.numpy(), 0.0, float(pooled.max()) or 1.0
    n_rows, n_columns = table.shape
    size = min(17.0, max(4.0, 260 / max(n_rows, n_columns)))
    named = size >= 11
    left = 12 + LETTER * max(len(shortened(token)) for token in rows) if named and rows else 26
    above = 12 + LETTER * max(len(shortened(token)) for token in columns) if named and columns else 26
    drawing = Drawing(left + n_columns * size + 8, above + n_rows * size + 4)
    cells(drawing, table, left, above, size, top, rows, columns, low=low)
    if named and rows:
        for i, token in enumerate(rows):
            drawing.text(left - 5, above + (i + 0.5) * size + 4, shortened(token), "small", anchor="end")
    else:
        drawing.text(14, above + n_rows * size / 2, "query", "soft small", anchor="middle", turned=True)
    if named and columns:
        for j, token in enumerate(columns):
            drawing.text(left + (j + 0.5) * size + 4, above - 5, shortened(token), "small", turned=True)
    else:
        drawing.text(left + n_columns * size / 2, 16, "key", "soft small", anchor="middle")
    caption = f"{strongest}. " + (f"Nearly uniform; scale {low:.3f} to {top:.3f}." if low else f"Scale 0 to {top:.2f}.")
    if step > 1:
        caption += f" Each cell is the mean of {step} x {step} positions."
    return figure(
        drawing.inline(f"{name}, a map of {n_rows} queries by {n_columns} keys. {strongest}."),
        caption,
        f"{name}: {reason}",
    )


def _queries_and_keys(head: Head, decoder_tokens: Any, input_tokens: Any) -> tuple[Any, Any]:
    """Return the tokens of a head's queries and of its keys; ``decoder_tokens`` is None where there is one stack."""
    kind = head[-3]
    if decoder_tokens is None or kind == "encoder":
        return input_tokens, input_tokens
    return decoder_tokens, decoder_tokens if kind == "decoder" else input_tokens


def _description(table: np.ndarray, rows: Sequence[str] | None, columns: Sequence[str] | None, first: int) -> str:
    """Say where a head's largest weight lies."""
    query, key = divmod(int(table.argmax()), table.shape[1])
    query_name = str(rows[query]) if rows else f"position {query + first}"
    key_name = str(columns[key]) if columns else f"position {key}"
    return f"Strongest from {query_name} to {key_name} ({float(table.max()):.2f})"
