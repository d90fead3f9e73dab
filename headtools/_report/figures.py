"""The figures of a report, each as the HTML of a ``<figure>``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from headtools.heads.scores import Head, HeadScores
from headtools.lesson.draw import heatmap, subplots
from headtools.lesson.figure import figure
from headtools.lesson.role_map import role_map
from headtools.roles.head_functions import NONE, head_functions

if TYPE_CHECKING:
    import pandas as pd

MAPS_PER_ROW = 4


def head_name(head: Head) -> str:
    """Write a head's name.

    >>> head_name(("encoder", 2, 5))
    'encoder 2.5'
    """
    return f"{' '.join(map(str, head[:-2]))} {head[-2]}.{head[-1]}"


def roles(frame: pd.DataFrame, kind: str, claim: str) -> str:
    """Draw the role map of one kind of attention."""
    heads = head_functions(frame)
    n_layers, n_heads = heads.layer.nunique(), heads["head"].max() + 1
    fig, ax = subplots(figsize=(max(4.0, 0.45 * n_heads + 1), 0.42 * n_layers + 1.6))
    role_map(ax, frame, kind=kind)
    counts = heads[heads.function != NONE].groupby("layer").size()
    by_layer = ", ".join(f"layer {layer}: {n}" for layer, n in counts.items()) or "none anywhere"
    alt = (
        f"A grid of {n_layers} layers by {n_heads} heads, coloured where a head has a function. "
        f"Coloured cells: {by_layer}."
    )
    return figure(fig, claim=claim, alt=alt).html


def grids(scores: HeadScores, claim: str, label: str) -> list[str]:
    """Draw a grid of layers by heads for each kind of attention, all on one scale from 0."""
    top = float(scores.flat().max()) or 1.0
    keys_of: dict[tuple, list[tuple]] = {}
    for key in scores.values:
        keys_of.setdefault(key[:-1], []).append(key)
    grids = []
    for kind, keys in keys_of.items():
        layers = [scores.values[key].detach().float().cpu().clamp(min=0).numpy() for key in keys]
        n_heads = max(map(len, layers))
        fig, ax = subplots(figsize=(max(4.0, 0.4 * n_heads + 1.8), 0.36 * len(layers) + 1.1))
        # Masked, so that the missing cells of a layer from which heads were cut stay white.
        grid = np.ma.masked_all((len(layers), n_heads))
        for row, values in enumerate(layers):
            grid[row, : len(values)] = values
        image = ax.imshow(grid, vmin=0, vmax=top, aspect="auto", cmap="cividis")
        ax.set(xlabel="head", ylabel="layer", xticks=range(0, n_heads, max(1, n_heads // 16)))
        ax.set_yticks(range(len(keys)), [str(key[-1]) for key in keys])
        ax.figure.colorbar(image, label=label)
        best = int(np.argmax([values.max() for values in layers]))
        name = " ".join(kind)
        alt = (
            f"A grid of {name} heads, {len(layers)} layers by up to {n_heads} heads, shaded from 0 to {top:.3g}. "
            f"The highest of this kind is head {int(layers[best].argmax())} of layer {keys[best][-1]}."
        )
        grids.append(figure(fig, claim=f"The same for the {name} heads." if grids else claim, alt=alt).html)
    return grids


def pruning(frame: pd.DataFrame, claim: str, metric: str = "loss (nats)") -> str:
    """Draw the loss, or another ``metric``, against the number of heads kept, by gradient and in random order."""
    fig, ax = subplots(figsize=(6.4, 3.4))
    curve = frame[frame.order == "gradient"]
    ax.plot(curve.kept, curve.metric, marker="o", label="least important first")
    ax.fill_between(curve.kept, curve.low, curve.high, alpha=0.2)
    random = frame[frame.order != "gradient"].groupby("kept").metric
    if len(random):
        ax.plot(random.mean().index, random.mean(), marker="s", label="random order, mean")
        ax.fill_between(random.mean().index, random.min(), random.max(), alpha=0.2)
    ax.set(xlabel="heads kept", ylabel=metric, ylim=(0, None))
    ax.legend()
    bands = "the band is " if curve.low.isna().all() else "bands are 95 % intervals, and "
    alt = (
        f"{metric[0].upper()}{metric[1:]} against heads kept, from {curve.metric.iloc[0]:.2f} with all "
        f"{curve.kept.iloc[0]} heads to {curve.metric.iloc[-1]:.2f} with none; {bands}the range of the random orders."
    )
    return figure(fig, claim=claim, alt=alt).html


def maps(
    head_maps: Mapping[Head, Tensor],
    reasons: Mapping[Head, str],
    decoder_tokens: Sequence[str] | None,
    input_tokens: Sequence[str] | None,
) -> str:
    """Draw one map (query, key) for each head, with the reason why it is shown in its title."""
    n_columns = min(MAPS_PER_ROW, len(head_maps))
    n_rows = -(-len(head_maps) // MAPS_PER_ROW)
    fig, grid = subplots(n_rows, n_columns, figsize=(2.9 * n_columns + 0.8, 2.9 * n_rows), squeeze=False)
    for ax in grid.flat[len(head_maps) :]:
        ax.set_axis_off()
    descriptions = []
    for ax, (head, weights) in zip(grid.flat, head_maps.items(), strict=False):
        tokens = _queries_and_keys(head, decoder_tokens, input_tokens)
        rows, columns = (_if_fitting(side, size) for side, size in zip(tokens, weights.shape, strict=True))
        heatmap(ax, weights, rows=rows, columns=columns, values=False, bar=False, row_label="", column_label="")
        ax.set_title(f"{head_name(head)}: {reasons[head]}", fontsize=9)
        descriptions.append(_description(head_name(head), weights, rows, columns))
    fig.colorbar(grid[0, 0].images[0], ax=list(grid.flat), label="attention", shrink=0.8)
    claim = f"Attention of {len(head_maps)} heads on one example: query down, key across."
    return figure(fig, claim=claim, alt="; ".join(descriptions) + ".").html


def _queries_and_keys(head: Head, decoder_tokens: Any, input_tokens: Any) -> tuple[Any, Any]:
    """Return the tokens of a head's queries and of its keys; ``decoder_tokens`` is None where there is one stack."""
    kind = head[-3]
    if decoder_tokens is None or kind == "encoder":
        return input_tokens, input_tokens
    return decoder_tokens, decoder_tokens if kind == "decoder" else input_tokens


def _if_fitting(tokens: Sequence[str] | None, size: int) -> Sequence[str] | None:
    """Return the tokens if there is one for each row or column; models may add or drop some."""
    return tokens if tokens is not None and len(tokens) == size else None


def _description(name: str, weights: Tensor, rows: Sequence[str] | None, columns: Sequence[str] | None) -> str:
    """Say where a head's largest weight lies."""
    query, key = divmod(int(weights.argmax()), weights.shape[1])
    query_name = str(rows[query]) if rows else f"position {query}"
    key_name = str(columns[key]) if columns else f"position {key}"
    return f"{name} is strongest from {query_name} to {key_name} ({float(weights.max()):.2f})"
