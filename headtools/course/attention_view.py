"""bertviz's head view without a network: which maps, which tokens, how much of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headtools.course.catalogue import entry
from headtools.course.figure import LIMIT, png
from headtools.course.frame import View, view_html, view_script
from headtools.course.measured import measured
from headtools.course.plain import escape, plain
from headtools.course.plot import maps as map_grid

MOST_TOKENS = 64


class AttentionView:
    """An attention view ready to be displayed; ``.html`` is all of it, ``.script`` what runs inside the frame."""

    def __init__(self, html: str, script: str, text: str) -> None:
        self.html, self.script, self._text = html, script, text

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
    claim: str | None = None,
    key_tokens: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
) -> AttentionView:
    """Show attention maps with bertviz: lines from each query token (left) to the key tokens (right).

    maps: one (head, query, key) or (1, head, query, key) tensor, or record with ``.maps``, for each layer; 0 to 1
    tokens: the query tokens; key_tokens: the key tokens where they differ (cross-attention)
    key: the entry of the catalogue with ``alt`` and ``caption``; without one, pass them:
    alt: what there is to see, for a reader who cannot see it; claim: the caption, left out: the sizes
    layers: which to show, counted from 0; left out, all. The view opens on the first

    Works without a network and without a kernel; weights are rounded to 0.01. Where a page drops frames (GitHub, a
    notebook not yet trusted) a still picture is shown. Tokens are shown as text whatever they contain.
    Raises ValueError when maps and tokens do not fit, for more than 64 tokens, for an output over 150 kB, and when
    bertviz is not the version that the frame was made for.

    Source: Vig 2019, "A multiscale visualization of attention in the transformer model"; bertviz 1.4.1.

    >>> import torch
    >>> attention_view([torch.eye(2).expand(3, 2, 2)], ["a", "b"], alt="Each word looks at itself.")
    Attention, head view: 1 layer, 3 heads, 2 query tokens, 2 key tokens. Each word looks at itself.
    """
    if key is not None:
        alt, claim = entry(key)["alt"], measured(key).sentence
    if not isinstance(alt, str) or not alt.strip():
        raise ValueError(f"attention_view needs alt= as a sentence, got {alt!r}")
    queries = [str(t) for t in tokens]
    keys = queries if key_tokens is None else [str(t) for t in key_tokens]
    maps = [_one_layer(getattr(m, "maps", m), index) for index, m in enumerate(maps)]
    layers = _selected(layers, len(maps))
    shapes = {maps[layer].shape[1:] for layer in layers}
    if shapes != {(len(queries), len(keys))}:
        raise ValueError(
            f"the maps are (query, key) = {', '.join(map(str, sorted(shapes)))} but there are {len(queries)} query "
            f"tokens and {len(keys)} key tokens: pass the tokens that the model saw, special tokens included"
            + ("" if key_tokens is not None else ", and key_tokens= for cross-attention")
        )
    weights = np.stack([maps[layer] for layer in layers]).round(2)
    if max(weights.shape[2:]) > MOST_TOKENS:
        raise ValueError(
            f"{max(weights.shape[2:])} tokens are too many, {weights.size:,} lines: the view takes {MOST_TOKENS}, so "
            "choose a shorter sentence or cut maps and tokens alike"
        )
    sizes = "Attention, head view: " + ", ".join(
        f"{n} {noun}{'' if n == 1 else 's'}"
        for n, noun in zip(weights.shape, ("layer", "head", "query token", "key token"), strict=True)
    )
    titles = [f"layer {layers[0]}, head {head}" for head in range(weights.shape[1])]
    still = png(map_grid(weights[0], queries, key_tokens=keys, titles=titles), dpi=80)
    view = View(weights, queries, keys, layers, alt)
    script = view_script(view)
    html = view_html(view, script, still=still, caption=escape(claim or sizes + "."))
    if len(html) > LIMIT:
        raise ValueError(
            f"the view takes {len(html) / 1000:.0f} kB and an output may take {LIMIT / 1000:.0f}: show fewer layers "
            "(layers=range(3)) or a shorter sentence"
        )
    return AttentionView(html, script, f"{sizes}. {claim or alt}")


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


def _selected(given: Sequence[int] | None, size: int) -> list[int]:
    selected = list(range(size)) if given is None else [int(g) for g in given]
    if not selected or len(set(selected)) < len(selected) or not all(0 <= c < size for c in selected):
        raise ValueError(f"layers must be different numbers from 0 to {size - 1}, got {given!r}")
    return selected
