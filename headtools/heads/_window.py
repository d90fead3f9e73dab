"""The mask of heads that see only the first tokens and the most recent ones."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headtools.heads._uniform import MASKED_BELOW

WINDOW = "_headtools_window"  # in a module's __dict__: ((heads, first, recent), ...) of the open contexts


def windowed(mask: Tensor | None, windows: Iterable[tuple], query: Tensor, key: Tensor) -> Tensor | None:
    """Return the mask (B, head, Q, K) in which some heads see only the first and the most recent keys.

    ``mask`` is the attention function's: bool, additive, or None for causal attention without padding. The real keys,
    and which of them is the query's own, follow from it, which handles padding on either side and caches longer than
    the text. Where nothing is hidden, the mask is returned unchanged.

    >>> q = torch.zeros(1, 1, 4, 2)
    >>> windowed(None, [((0,), 0, 2)], q, q).int()
    tensor([[[[1, 0, 0, 0],
              [1, 1, 0, 0],
              [0, 1, 1, 0],
              [0, 0, 1, 1]]]], dtype=torch.int32)
    """
    visible = _visible(mask, query, key)  # (B or 1, head or 1, Q, K)
    real = visible.any(-2, keepdim=True)  # keys that some query sees
    index = real.long().cumsum(-1) - 1  # of each key among the real ones
    own = index.masked_fill(~visible, -1).amax(-1, keepdim=True)  # the last key that a query sees is its own
    allowed = visible.expand(-1, query.shape[1], -1, -1).clone()
    for heads, first, recent in windows:
        limited = visible & ((index < first) | (own - index < recent))
        allowed[:, list(heads)] &= limited if limited.shape[1] == 1 else limited[:, list(heads)]
    if not torch.compiler.is_compiling() and torch.equal(allowed, visible.expand_as(allowed)):
        return mask
    if mask is None or mask.dtype == torch.bool:
        return allowed
    return mask.masked_fill(~allowed, torch.finfo(mask.dtype if mask.dtype != torch.float64 else torch.float32).min)


def _visible(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """Return which keys each query may see: (B or 1, head or 1, Q, K) bool."""
    if mask is None:
        queries, keys = query.shape[-2], key.shape[-2]
        return torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)[None, None]
    mask = mask[(None,) * (4 - mask.dim())][..., : key.shape[-2]]
    return mask if mask.dtype == torch.bool else mask > mask.amax(-1, keepdim=True) - MASKED_BELOW
