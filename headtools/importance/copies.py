"""Several copies of a batch in one run: which axis holds the examples, and tensors repeated along it.

Copies stand one behind the other: rows 0..B-1 are the first copy, rows B..2B-1 the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def batch_axes(one: Any, two: Any) -> Any:
    """Return along which axis the examples lie, from what one batch gave and what the same batch twice gave.

    A number for a tensor, None for one that has no examples (or no tensor at all), and a list or dict of these for
    several. Raises ``ValueError`` where sizes differ in another way than by a factor of 2 along one axis.

    >>> batch_axes((torch.ones(3, 7), torch.ones(1, 7)), (torch.ones(6, 7), torch.ones(1, 7)))
    [0, None]
    """
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        differ = [axis for axis, (a, b) in enumerate(zip(one.shape, two.shape, strict=True)) if a != b]
        if not differ:
            return None
        if len(differ) > 1 or 2 * one.shape[differ[0]] != two.shape[differ[0]]:
            raise ValueError(f"shapes {tuple(one.shape)} and {tuple(two.shape)}: no axis holds the examples")
        return differ[0]
    if isinstance(one, Mapping) and isinstance(two, Mapping) and one.keys() == two.keys():
        return {name: batch_axes(value, two[name]) for name, value in one.items()}
    if isinstance(one, (tuple, list)) and isinstance(two, (tuple, list)) and len(one) == len(two):
        return [batch_axes(a, b) for a, b in zip(one, two, strict=True)]
    if type(one) is not type(two) or isinstance(one, (Mapping, tuple, list)):  # or of another length, other names
        raise ValueError(f"{type(one).__name__} for one batch, {type(two).__name__} for two: of another form")
    return None


def copies_of(value: Any, axes: Any, times: int) -> Any:
    """Return ``times`` copies of tensors along their axes (``batch_axes``), in the same tuple, list or dict.

    Tensors are always new, so that a model that changes them in place does no harm; all else is passed on as it is.

    >>> copies_of((torch.tensor([1, 2]), None), [0, None], 2)
    (tensor([1, 2, 1, 2]), None)
    """
    if isinstance(value, Tensor):
        return value.clone() if axes is None or times == 1 else torch.cat([value] * times, axes)
    if isinstance(value, Mapping):
        parts = {name: copies_of(part, axes and axes[name], times) for name, part in value.items()}
        return parts if type(value) is dict else type(value)(**parts)
    if isinstance(value, (tuple, list)):
        several = [copies_of(part, axes and axes[i], times) for i, part in enumerate(value)]
        return type(value)(*several) if hasattr(value, "_fields") else type(value)(several)
    return value


def check_alike(one: Any, two: Any) -> None:
    """Raise ``ValueError`` where tensors, also inside tuples, lists and dicts, differ by more than rounding.

    >>> check_alike([torch.tensor([1.0, 2.0])], [torch.tensor([2.0, 1.0])])
    Traceback (most recent call last):
    ValueError: two copies of a batch do not give what the batch gives, twice
    """
    if isinstance(one, Tensor):
        most = one.abs().nan_to_num(nan=0.0, posinf=0.0).max().item() if one.numel() and one.is_floating_point() else 0
        if not torch.allclose(one, two, rtol=1e-3, atol=1e-3 * most, equal_nan=True):
            raise ValueError("two copies of a batch do not give what the batch gives, twice")
    elif isinstance(one, Mapping):
        for name, part in one.items():
            check_alike(part, two[name])
    elif isinstance(one, (tuple, list)):
        for part, other in zip(one, two, strict=True):
            check_alike(part, other)


def copied_batch(batch: Mapping[str, Any], rows: int, times: int) -> dict[str, Any]:
    """Return a batch of ``times`` copies: of tensors with ``rows`` rows, also those inside tuples, lists and dicts.

    >>> copied_batch({"input_ids": torch.tensor([[1], [2]]), "use_cache": False}, 2, 2)["input_ids"].flatten()
    tensor([1, 2, 1, 2])
    """
    return copies_of(dict(batch), _axes_by_rows(dict(batch), rows), times)


def _axes_by_rows(value: Any, rows: int) -> Any:
    if isinstance(value, Tensor):
        return 0 if value.dim() and value.shape[0] == rows else None
    if isinstance(value, Mapping):
        return {name: _axes_by_rows(part, rows) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [_axes_by_rows(part, rows) for part in value]
    return None
