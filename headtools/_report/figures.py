"""The pictures of a report, each as the HTML of a ``<figure>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from headtools.heads.scores import Head, HeadScores
from headtools.lesson.draw import heatmap, subplots
from headtools.lesson.figure import figure
from headtools.lesson.role_map import role_map
from headtools.roles.head_functions import NONE, holders

if TYPE_CHECKING:
    import pandas as pd

WIDE = 4  # maps beside one another


def say(head: Head) -> str:
    """Name a head as the course does.

    >>> say(("encoder", 2, 5))
    'encoder 2.5'
    """
    return f"{' '.join(map(str, head[:-2]))} {head[-2]}.{head[-1]}"


def roles(frame: pd.DataFrame, kind: str, claim: str) -> str:
    """Draw the role map of one kind of attention."""
    heads = holders(frame)
    high, wide = heads.layer.nunique(), heads["head"].max() + 1
    fig, ax = subplots(figsize=(max(4.0, 0.45 * wide + 1), 0.42 * high + 1.6))
    role_map(ax, frame, kind=kind)
    held = heads[heads.function != NONE]
    by_layer = ", ".join(f"layer {layer}: {n}" for layer, n in held.groupby("layer").size().items()) or "none anywhere"
    alt = f"A grid of {high} layers by {wide} heads, coloured where a head has a function. Coloured cells: {by_layer}."
    return figure(fig, claim=claim, alt=alt).html


def grids(scores: HeadScores, claim: str, label: str) -> list[str]:
    """Draw one grid of layers by heads for every kind of attention, on one scale from 0."""
    top = float(scores.flat().max()) or 1.0
    groups: dict[tuple, list[tuple]] = {}
    for key in scores.values:
        groups.setdefault(key[:-1], []).append(key)
    drawn = []
    for group, keys in groups.items():
        rows = [scores.values[key].detach().float().cpu().clamp(min=0).numpy() for key in keys]
        wide = max(map(len, rows))
        fig, ax = subplots(figsize=(max(4.0, 0.4 * wide + 1.8), 0.36 * len(rows) + 1.1))
        # A layer from which heads were cut is shorter; what is not there stays white.
        table = np.ma.masked_all((len(rows), wide))
        for place, row in enumerate(rows):
            table[place, : len(row)] = row
        image = ax.imshow(table, vmin=0, vmax=top, aspect="auto", cmap="cividis")
        ax.set(xlabel="head", ylabel="layer", xticks=range(0, wide, max(1, wide // 16)))
        ax.set_yticks(range(len(keys)), [str(key[-1]) for key in keys])
        ax.figure.colorbar(image, label=label)
        most = int(np.argmax([row.max() for row in rows]))
        alt = (
            f"A grid of {' '.join(group)} heads, {len(rows)} layers by up to {wide} heads, shaded from 0 to {top:.3g}. "
            f"The highest of this kind is head {int(rows[most].argmax())} of layer {keys[most][-1]}."
        )
        drawn.append(
            figure(fig, claim=claim if not drawn else f"The same for the {' '.join(group)} heads.", alt=alt).html
        )
    return drawn


def pruning(frame: pd.DataFrame, claim: str, metric: str = "loss (nats)") -> str:
    """Draw the loss, or another ``metric``, against the number of heads kept, by gradient and in random order."""
    fig, ax = subplots(figsize=(6.4, 3.4))
    found = frame[frame.order == "gradient"]
    ax.plot(found.kept, found.metric, marker="o", label="least important first")
    ax.fill_between(found.kept, found.low, found.high, alpha=0.2)
    blind = frame[frame.order != "gradient"].groupby("kept").metric
    if len(blind):
        ax.plot(blind.mean().index, blind.mean(), marker="s", label="random order, mean")
        ax.fill_between(blind.mean().index, blind.min(), blind.max(), alpha=0.2)
    ax.set(xlabel="heads kept", ylabel=metric, ylim=(0, None))
    ax.legend()
    bands = "the band is " if found.low.isna().all() else "bands are 95 % intervals, and "
    alt = (
        f"{metric[0].upper()}{metric[1:]} against heads kept, from {found.metric.iloc[0]:.2f} with all "
        f"{found.kept.iloc[0]} heads to {found.metric.iloc[-1]:.2f} with none; {bands}the range of the random orders."
    )
    return figure(fig, claim=claim, alt=alt).html


def maps(
    found: Mapping[Head, Tensor], why: Mapping[Head, str], queries: Sequence[str] | None, keys: Sequence[str] | None
) -> str:
    """Draw one map a head; ``queries`` are the decoder's tokens where it has its own, ``keys`` those that are read."""
    high = -(-len(found) // WIDE)
    fig, grid = subplots(
        high, min(WIDE, len(found)), figsize=(2.9 * min(WIDE, len(found)) + 0.8, 2.9 * high), squeeze=False
    )
    for place, ax in enumerate(grid.flat):
        if place >= len(found):
            ax.set_axis_off()
            continue
        head = list(found)[place]
        table = found[head]
        rows, columns = (_fit(side, size) for side, size in zip(_sides(head, queries, keys), table.shape, strict=True))
        heatmap(ax, table, rows=rows, columns=columns, values=False, bar=False, row_label="", column_label="")
        ax.set_title(f"{say(head)}: {why[head]}", fontsize=9)
    fig.colorbar(grid[0, 0].images[0], ax=list(grid.flat), label="attention", shrink=0.8)
    claim = f"Attention of {len(found)} heads on one example: query down, key across."
    alt = "; ".join(_told(say(head), table, _sides(head, queries, keys)) for head, table in found.items()) + "."
    return figure(fig, claim=claim, alt=alt).html


def _sides(head: Head, queries: Any, keys: Any) -> tuple[Any, Any]:
    if queries is None or head[-3] == "encoder":
        return keys, keys
    return queries, queries if head[-3] == "decoder" else keys


def _fit(tokens: Sequence[str] | None, size: int) -> Sequence[str] | None:
    """The tokens, if there is one for each row or column; models may add or drop some."""
    return tokens if tokens is not None and len(tokens) == size else None


def _told(name: str, table: Tensor, sides: tuple[Any, Any]) -> str:
    """Where a head's largest weight lies, in words."""
    query, key = divmod(int(table.argmax()), table.shape[1])
    names = [
        str(side[at]) if _fit(side, size) else f"place {at}"
        for side, size, at in zip(sides, table.shape, (query, key), strict=True)
    ]
    return f"{name} is strongest from {names[0]} to {names[1]} ({float(table.max()):.2f})"
