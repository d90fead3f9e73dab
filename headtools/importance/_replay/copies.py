"""Several copies of a batch in one run: which axis holds the examples, and tensors repeated along it.

Copies stand one behind the other: rows 0..B-1 are the first copy, rows B..2B-1 the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

# Arguments of transformers' models whose first axis holds the examples, with the numbers of axes for which it does
_EXAMPLES_FIRST = {
    "input_ids": (2,), "attention_mask": (2,), "token_type_ids": (2,), "position_ids": (2,), "labels": (1, 2, 3),
    "decoder_input_ids": (2,), "decoder_attention_mask": (2,), "inputs_embeds": (3,), "decoder_inputs_embeds": (3,),
    "pixel_values": (4,), "input_features": (3,), "input_values": (2,),
}  # fmt: skip


def batch_axes(single: Any, double: Any) -> Any:
    """Return along which axis the examples lie, from the outputs for a batch and for the same batch twice.

    An index for a tensor, None for one without examples and for what is not a tensor, and a list or dict of these for
    several. Raises ``ValueError`` where sizes differ in another way than by a factor of 2 along one axis.

    >>> batch_axes((torch.ones(3, 7), torch.ones(1, 7)), (torch.ones(6, 7), torch.ones(1, 7)))
    [0, None]
    """
    if isinstance(single, Tensor) and isinstance(double, Tensor):
        differ = [axis for axis, (a, b) in enumerate(zip(single.shape, double.shape, strict=True)) if a != b]
        if not differ:
            return None
        if len(differ) > 1 or 2 * single.shape[differ[0]] != double.shape[differ[0]]:
            raise ValueError(f"shapes {tuple(single.shape)} and {tuple(double.shape)}: no axis holds the examples")
        return differ[0]
    if isinstance(single, Mapping) and isinstance(double, Mapping) and single.keys() == double.keys():
        return {name: batch_axes(value, double[name]) for name, value in single.items()}
    if isinstance(single, (tuple, list)) and isinstance(double, (tuple, list)) and len(single) == len(double):
        return [batch_axes(a, b) for a, b in zip(single, double, strict=True)]
    if type(single) is not type(double) or isinstance(single, (Mapping, tuple, list)):  # of other lengths or names
        raise ValueError(f"{type(single).__name__} for one batch, {type(double).__name__} for two: of another form")
    return None


def copies_of(value: Any, axes: Any, times: int) -> Any:
    """Return ``times`` copies of tensors along their axes (``batch_axes``), in the same tuple, list or dict.

    Tensors are always new, so that a model may change them in place; all else is passed on as it is.

    >>> copies_of((torch.tensor([1, 2]), None), [0, None], 2)
    (tensor([1, 2, 1, 2]), None)
    """
    if isinstance(value, Tensor):
        # Tensors without an axis of examples serve all copies as they are.
        return value.clone() if axes is None or times == 1 else torch.cat([value] * times, axes)
    if isinstance(value, Mapping):
        parts = {name: copies_of(part, axes and axes[name], times) for name, part in value.items()}
        return parts if type(value) is dict else type(value)(**parts)
    if isinstance(value, (tuple, list)):
        several = [copies_of(part, axes and axes[i], times) for i, part in enumerate(value)]
        return type(value)(*several) if hasattr(value, "_fields") else type(value)(several)
    return value


def check_alike(expected: Any, actual: Any) -> None:
    """Raise ``ValueError`` where tensors, also inside tuples, lists and dicts, differ by more than rounding.

    >>> check_alike([torch.tensor([1.0, 2.0])], [torch.tensor([2.0, 1.0])])
    Traceback (most recent call last):
    ValueError: two copies of a batch do not give what the batch gives, twice
    """
    if isinstance(expected, Tensor):
        is_float = expected.numel() and expected.is_floating_point()
        largest = expected.abs().nan_to_num(nan=0.0, posinf=0.0).max().item() if is_float else 0
        # Relative to the largest entry: small ones are differences of large ones, and round as these do.
        if not torch.allclose(expected, actual, rtol=1e-3, atol=1e-3 * largest, equal_nan=True):
            raise ValueError("two copies of a batch do not give what the batch gives, twice")
    elif isinstance(expected, Mapping):
        for name, expected_part in expected.items():
            check_alike(expected_part, actual[name])
    elif isinstance(expected, (tuple, list)):
        for expected_part, actual_part in zip(expected, actual, strict=True):
            check_alike(expected_part, actual_part)


def axes_by_rows(value: Any, rows: int, sure: bool = False) -> Any:
    """Return along which axes a batch probably holds its examples: the first of every tensor with ``rows`` rows.

    With ``sure``, tensors that are ``ambiguous`` are taken to be shared by all examples.

    >>> axes_by_rows({"input_ids": torch.ones(2, 1), "weights": torch.ones(2)}, 2)
    {'input_ids': 0, 'weights': 0}
    >>> axes_by_rows({"input_ids": torch.ones(2, 1), "weights": torch.ones(2)}, 2, sure=True)
    {'input_ids': 0, 'weights': None}
    """
    if isinstance(value, Tensor):
        return 0 if value.dim() and value.shape[0] == rows else None
    if isinstance(value, Mapping):
        return {
            name: _shared_axes(part) if sure and ambiguous({name: part}, rows) else axes_by_rows(part, rows)
            for name, part in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [axes_by_rows(part, rows) for part in value]
    return None


def ambiguous(batch: Mapping, rows: int) -> bool:
    """Tell whether some tensor has as many rows as there are examples without being known to have one for each.

    >>> ambiguous({"labels": torch.ones(3), "scale": torch.ones(5)}, 3), ambiguous({"scale": torch.ones(3)}, 3)
    (False, True)
    """
    return any(
        axes_by_rows(value, rows) not in (None, _shared_axes(value))
        and not (isinstance(value, Tensor) and value.dim() in _EXAMPLES_FIRST.get(name, ()))
        for name, value in batch.items()
    )


def form_of(value: Any, axes: Any, rows: int) -> Any:
    """Return what must be equal in two batches for their examples to lie along the same axes.

    For a tensor, its number of rows for each of the ``rows`` examples, or where all examples share it, its length.

    >>> form_of(torch.ones(6, 2), 0, 3) == form_of(torch.ones(4, 9), 0, 2), form_of(torch.ones(6, 2), None, 3)
    (True, ('shared', 2, 6))
    """
    if isinstance(value, Tensor):
        if axes is None:
            return "shared", value.dim(), value.shape[0] if value.dim() else 0
        return "rows", value.dim(), axes, Fraction(value.shape[axes], rows)
    if isinstance(value, Mapping):
        return {name: form_of(part, axes and axes[name], rows) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [form_of(part, axes and axes[i], rows) for i, part in enumerate(value)]
    return value if isinstance(value, (bool, int, float, str)) else type(value).__name__


def _shared_axes(value: Any) -> Any:
    """Return the axes (``batch_axes``) of values that all examples share: None for every tensor."""
    if isinstance(value, Mapping):
        return {name: _shared_axes(part) for name, part in value.items()}
    return [_shared_axes(part) for part in value] if isinstance(value, (tuple, list)) else None
