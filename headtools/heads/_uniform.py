"""Uniform attention: a head gives each key that its mask lets it see the same weight.

Softmax of equal scores is uniform, so it is enough to set to 0 whatever distinguishes one key from another: the
queries, the position bias and the part of the mask that is a bias. What hides a key must stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def check_no_sinks(module: nn.Module, arguments: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where an attention function is called with attention sinks, which take part of every row."""
    if any(arguments.get(name) is not None for name in ("sinks", "s_aux")):
        raise ValueError(
            f"{type(module).__name__} has attention sinks: part of every row goes to no token, so no row can be "
            f"uniform: {ALTERNATIVES}"
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
