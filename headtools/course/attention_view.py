"""bertviz's head and model views without a network: which maps, which tokens, how much of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headtools.course.catalogue import entry
from headtools.course.figure import LIMIT, OKABE_ITO, png
from headtools.course.frame import View, view_html, view_script
from headtools.course.measured import measured
from headtools.course.plain import escape, plain, shortened
from headtools.course.plot import layer_grid, subplots, svg
from headtools.course.plot import maps as map_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_TOKENS = {"head": 64, "model": 20}  # a line for each pair of tokens in each head: 64 in the model view take 12 s


class AttentionView:
    """An attention view ready to be displayed; ``.html`` is all of it, ``.script`` what runs inside the frame.

    ``.svg("view.svg")`` writes it as a drawing for a paper or a slide.
    """

    def __init__(self, html: str, script: str, text: str, view: View) -> None:
        self.html, self.script, self._text, self._view = html, script, text, view

    def svg(self, path: str | Path) -> Path:
        """Write the view to an SVG file, whole or not at all, and return its path.

        The head view shows all its layers side by side, a line from each query (left) to each key (right), one colour
        a head, the stronger the larger the weight. The model view shows all heads small. Weights below 0.01 have no
        line. The file has the view's sizes as title and its ``alt`` as description.

        Raises ``ValueError`` for a name that does not end in .svg.
        """
        from matplotlib import pyplot as plt

        fig = _drawing(self._view)
        plt.close(fig)  # which can still be written
        return svg(fig, path, alt=self._view.alt, title=self._text.split(". ")[0])

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": plain(self._text)}


def attention_view(
    maps: Any,
    tokens: Sequence[str],
    key: str | None = None,
    *,
    alt: str | None = None,
    kind: str = "head",
    claim: str | None = None,
    key_tokens: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    limit: int = LIMIT,
) -> AttentionView:
    """Show attention maps with bertviz: lines from each query token (left) to the key tokens (right).

    maps: one (head, query, key) or (1, head, query, key) tensor, or record with ``.maps``, for each layer; 0 to 1
    tokens: the query tokens; key_tokens: the key tokens where they differ (cross-attention)
    key: the entry of the catalogue with ``alt`` and ``caption``; without one, pass them:
    alt: what there is to see, for a reader who cannot see it; claim: the caption, left out: the sizes
    kind: ``"head"``, one layer at a time with all its heads, or ``"model"``, every head of every layer as a thumbnail
    layers, heads: which to show, counted from 0; left out, all. The head view opens on the first of ``layers``
    limit: the most characters that the output may have

    Works without a network and without a kernel; weights are rounded to 0.01. Where a page drops frames (GitHub, a
    notebook not yet trusted) a still picture is shown. Tokens are shown as text whatever they contain.
    Raises ValueError when maps and tokens do not fit, for more than 64 tokens (20 in the model view), for an output
    over ``limit``, and when bertviz is not the version that the frame was made for.

    Source: Vig 2019, "A multiscale visualization of attention in the transformer model"; bertviz 1.4.1.

    >>> import torch
    >>> attention_view([torch.eye(2).expand(3, 2, 2)], ["a", "b"], alt="Each word looks at itself.")
    Attention, head view: 1 layer, 3 heads, 2 query tokens, 2 key tokens. Each word looks at itself.
    """
    if kind not in MOST_TOKENS:
        raise ValueError(f"kind must be 'head' or 'model', got {kind!r}")
    if key is not None:
        alt, claim = entry(key)["alt"], measured(key).sentence
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"attention_view needs alt= as a sentence, got {alt!r}")
    queries = [str(t) for t in tokens]
    keys = queries if key_tokens is None else [str(t) for t in key_tokens]
    maps = [_one_layer(getattr(m, "maps", m), index) for index, m in enumerate(maps)]
    layers = _selected("layers", layers, len(maps))
    heads = _selected("heads", heads, min(maps[layer].shape[0] for layer in layers))
    shapes = {maps[layer].shape[1:] for layer in layers}
    if shapes != {(len(queries), len(keys))}:
        raise ValueError(
            f"the maps are (query, key) = {', '.join(map(str, sorted(shapes)))} but there are {len(queries)} query "
            f"tokens and {len(keys)} key tokens: pass the tokens that the model saw, special tokens included"
            + ("" if key_tokens is not None else ", and key_tokens= for cross-attention")
        )
    weights = np.stack([maps[layer][heads] for layer in layers]).round(2)
    longest = max(len(queries), len(keys))
    if longest > MOST_TOKENS[kind]:
        raise ValueError(
            f"{longest} tokens are too many for the {kind} view, which draws {weights.size:,} lines: it takes "
            f"{MOST_TOKENS[kind]}, so choose a shorter sentence or cut maps and tokens alike"
            + (", or use kind='head' (up to 64)" if kind == "model" and longest <= MOST_TOKENS["head"] else "")
        )
    sizes = f"Attention, {kind} view: " + ", ".join(
        f"{n} {noun}{'' if n == 1 else 's'}"
        for n, noun in zip(weights.shape, ("layer", "head", "query token", "key token"), strict=True)
    )
    if kind == "head":
        still = map_grid(weights[0], queries, key_tokens=keys, titles=[f"layer {layers[0]}, head {h}" for h in heads])
    else:
        still = layer_grid(weights, layers=layers, heads=heads)
    view = View(kind, weights, queries, keys, layers, heads, alt)
    script = view_script(view)
    html = view_html(view, script, still=png(still, dpi=80), caption=escape(claim or sizes + "."))
    if len(html) > limit:
        raise ValueError(
            f"the view takes {len(html) / 1000:.0f} kB and an output may take {limit / 1000:.0f}: show fewer layers "
            f"(layers=range(3)) or a shorter sentence, or allow it with limit={-(-len(html) // 10_000) * 10_000}"
        )
    return AttentionView(html, script, f"{sizes}. {claim or alt}", view)


def _drawing(view: View) -> Figure:
    """Draw lines from queries to keys: a panel for each layer or, in the model view, for each head of each layer."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Patch

    small = view.kind == "model"
    n_tokens = max(len(view.queries), len(view.keys))
    rows, columns = (len(view.layers), len(view.heads)) if small else (1, len(view.layers))
    width, height = (0.8, 0.05) if small else (3.4, 0.28)  # inches of a panel, and of a token
    size = (width * columns + 0.6, (height * n_tokens + 0.3) * rows + 0.5)
    fig, grid = subplots(rows, columns, figsize=size, squeeze=False)
    colours = (*OKABE_ITO, "#7f7f7f")
    for (i, j), ax in np.ndenumerate(grid):
        shown = (
            {j: view.weights[i, j]} if small else dict(enumerate(view.weights[j]))
        )  # place of the head: (query, key)
        for head, table in shown.items():
            pairs = np.argwhere(table >= 0.01)
            ends = [[(0, query), (1, key)] for query, key in pairs]
            style = {
                "alpha": table[tuple(pairs.T)],
                "linewidths": 1.2 if small else 2.0,
                "label": str(view.heads[head]),
            }
            ax.add_collection(LineCollection(ends, colors=colours[head % 8], **style))
        ax.set(xlim=(0, 1), ylim=(n_tokens - 0.5, -0.5))
        ax.set_axis_off()
        name = f"layer {view.layers[i]}, head {view.heads[j]}" if small else f"layer {view.layers[j]}"
        ax.set_title(name, fontsize=6 if small else 10)
        for x, side, tokens in () if small else ((-0.03, "right", view.queries), (1.03, "left", view.keys)):
            for row, token in enumerate(tokens):
                ax.text(x, row, shortened(plain(token), 20), ha=side, va="center", parse_math=False)
    if not small:
        names = [Patch(color=colours[head % 8], label=str(name)) for head, name in enumerate(view.heads)]
        fig.legend(handles=names, title="heads", loc="outside right upper")
    return fig


def _one_layer(given: Any, index: int) -> np.ndarray:
    """One layer's maps as (head, query, key)."""
    array = np.asarray(given.detach().float().cpu() if hasattr(given, "detach") else given, dtype=float)
    array = array[0] if array.ndim == 4 and array.shape[0] == 1 else array
    if array.ndim != 3 or array.size == 0:
        raise ValueError(
            f"maps must be a list with (head, query, key) or (1, head, query, key) for each layer; layer {index} is "
            f"{array.shape}: for one sentence of a batch take maps[:1], for one layer write [maps]"
        )
    if not (array.min() >= 0 and array.max() <= 1.001):  # a NaN fails this too
        raise ValueError(f"layer {index}: attention lies between 0 and 1, got {array.min():g} to {array.max():g}")
    return array


def _selected(what: str, given: Sequence[int] | None, size: int) -> list[int]:
    selected = list(range(size)) if given is None else [int(g) for g in given]
    if not selected or len(set(selected)) < len(selected) or not all(0 <= c < size for c in selected):
        raise ValueError(f"{what} must be different numbers from 0 to {size - 1}, got {given!r}")
    return selected
