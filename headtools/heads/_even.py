"""What makes a head look at all it may see alike: no query, no position bias, nothing but what hides a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

HIDDEN = 64.0  # so far below the largest of its row a key is hidden: a weight of e^-64 is none in any precision
OTHERWISE = 'use replacement="mean", "resample" or "zero"'


def without(values: Tensor, heads: list[int]) -> Tensor:
    """Return queries or biases (B, head, ...) in which those of some heads are 0."""
    return values.index_fill(1, torch.tensor(heads, device=values.device), 0.0)


def even_mask(mask: Tensor | None, heads: list[int], count: int) -> Tensor | None:
    """Return the mask (B, head or 1, Q, K) in which, for some of ``count`` heads, all keys that are seen weigh alike.

    A position bias comes in the mask too (BEiT, Swin, Parakeet), added to what hides keys, which is itself no more than
    a lower number: -100 in Swin. So a key is hidden where it stands ``HIDDEN`` below the largest of its row.

    >>> even_mask(torch.tensor([[[[0.5, -2.0, -100.0]]]]), [1], 2).tolist()
    [[[[0.5, -2.0, -100.0]], [[0.0, 0.0, -100.5]]]]
    """
    if not isinstance(mask, Tensor) or not mask.is_floating_point():
        return mask
    mask = mask[(None,) * (4 - mask.dim())]
    above = mask - mask.amax(-1, keepdim=True)
    seen = ~(above < -HIDDEN)
    # a mask that is the same for all heads has no bias as a rule; compiled code cannot look
    if mask.shape[1] == 1 and not torch.compiler.is_compiling() and not (seen & (above < 0)).any():
        return mask
    chosen = torch.zeros(count, dtype=torch.bool, device=mask.device)
    chosen[heads] = True
    return torch.where(chosen[:, None, None], above.masked_fill(seen, 0.0), mask)


def refuse_sinks(module: nn.Module, given: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for attention sinks among what an attention function is given."""
    if any(given.get(name) is not None for name in ("sinks", "s_aux")):
        raise ValueError(
            f"{type(module).__name__} has attention sinks: part of every row goes to no token, so no row is even: "
            f"{OTHERWISE}"
        )


def check_even(module: nn.Module, maps: Tensor | None, heads: list[int]) -> None:
    """Raise ``ValueError`` where some heads of a model that is not transformers' own do not look evenly.

    What its attention adds besides queries, ``position_bias`` and mask, only its file knows.
    """
    if type(module).__module__.startswith("transformers.") or maps is None:
        return
    rows = maps[:, heads].detach().float()
    largest = rows.amax(-1, keepdim=True)
    uneven = (rows > 1e-20) & (rows < largest * (1 - 1e-2))
    if uneven.any() or ((rows.sum(-1) - 1).abs() > 1e-2).any():
        raise ValueError(
            f"{type(module).__name__} does not look evenly without its queries and position_bias: its attention adds "
            f"something of its own (a bias, a sink), of which headtools knows nothing: {OTHERWISE}"
        )
