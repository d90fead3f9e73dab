"""What attention functions are given so that heads attend uniformly, or see only the first and most recent tokens.

Uniform attention gives each key that the mask lets a head see the same weight. Softmax of equal scores is uniform, so
it is enough to set to 0 whatever distinguishes one key from another: the queries, the position bias and the part of the
mask that is a bias. What hides a key must stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

MASKED_BELOW = 64.0  # a key this far below the largest of its row is masked: e^-64 vanishes in any precision
ALTERNATIVES = 'use replacement="mean", "resample" or "zero"'


def zero_heads(values: Tensor, heads: list[int]) -> Tensor:
    """Return queries or biases (B, head, ...) with those of ``heads`` set to 0."""
    return values.index_fill(1, torch.tensor(heads, device=values.device), 0.0)


def uniform_mask(mask: Tensor | None, heads: list[int], n_heads: int) -> Tensor | None:
    """Return the mask (B, head or 1, Q, K) without its bias for ``heads``: they see all visible keys equally.

    Some models (BEiT, Swin, Parakeet) add a position bias to the mask, and what hides a key is then only a lower
    number, -100 in Swin. So a key counts as masked where it is ``MASKED_BELOW`` lower than the largest of its row.

    >>> uniform_mask(torch.tensor([[[[0.5, -2.0, -100.0]]]]), [1], 2).tolist()
    [[[[0.5, -2.0, -100.0]], [[0.0, 0.0, -100.5]]]]
    """
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return mask
    mask = mask[(None,) * (4 - mask.dim())]
    relative = mask - mask.amax(-1, keepdim=True)
    visible = ~(relative < -MASKED_BELOW)
    # a mask shared by all heads rarely has a bias; the test needs its values, which compiled code cannot read
    if mask.shape[1] == 1 and not torch.compiler.is_compiling() and not (visible & (relative < 0)).any():
        return mask
    selected = torch.zeros(n_heads, dtype=torch.bool, device=mask.device)
    selected[heads] = True
    return torch.where(selected[:, None, None], relative.masked_fill(visible, 0.0), mask)


def check_no_sinks(name: str, sinks: object) -> None:
    """Raise ``ValueError`` where an attention module has sinks, which take part of every row."""
    if sinks is not None:
        raise ValueError(
            f"{name} has attention sinks: part of every row goes to no token, so no row can be uniform: {ALTERNATIVES}"
        )


def check_uniform(module: nn.Module, maps: Tensor | None, heads: list[int]) -> None:
    """Raise ``ValueError`` where the maps of ``heads`` are not uniform, in a model that is not transformers' own.

    Such a model's attention may add something besides queries, ``position_bias`` and mask, which only its file knows.
    """
    if type(module).__module__.startswith("transformers.") or maps is None:
        return
    weights = maps[:, heads].detach().float()
    largest = weights.amax(-1, keepdim=True)
    uneven = (weights > 1e-20) & (weights < largest * (1 - 1e-2))
    if uneven.any() or ((weights.sum(-1) - 1).abs() > 1e-2).any():
        raise ValueError(
            f"{type(module).__name__} is not uniform without its queries and position_bias: its attention adds "
            f"something that headtools does not know (a bias, a sink): {ALTERNATIVES}"
        )


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
