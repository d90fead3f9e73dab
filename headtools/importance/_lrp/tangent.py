"""The rule for operations that have none of their own, in a model or in a score.

Where scaling all inputs by s scales the output by s^n (f is homogeneous of degree n), Euler's theorem gives
sum_i x_i df/dx_i = n f(x): the gradient passes on n times the relevance. So its fraction 1/n is passed on, and for
n = 1 the gradient itself. Anything else, such as log_softmax, is replaced by its tangent: y = f(x) is the sum of
x_i df/dx_i and of a remainder that depends on no input, and a constant collects the remainder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from headtools.importance._lrp.functions import scale_relevance

_DEGREES = (1.0, 2.0, 0.5, -1.0, 3.0, 4.0, -2.0, -0.5, 0.0)  # 1 first: most operations without a rule are linear


class _Tangent(Function):
    """y = f(x), with the gradient of f; ``one`` collects the part of R(y) that no x gets: the tangent's remainder."""

    @staticmethod
    def forward(ctx: object, one: Tensor, operation: Callable, *inputs: Tensor) -> tuple:
        with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_() for x in inputs]
            ctx.outputs = [y for y in _tensors_in(operation(ctx.inputs)) if y.requires_grad]
        ctx.like = one
        return tuple(y.detach() for y in ctx.outputs)

    @staticmethod
    def backward(ctx: object, *g: Tensor) -> tuple:
        # The graph is kept: every number that is explained takes a backward pass of its own.
        g_inputs = torch.autograd.grad(ctx.outputs, ctx.inputs, g, retain_graph=True, allow_unused=True)
        of_outputs = sum(_relevance(y.detach(), g_y) for y, g_y in zip(ctx.outputs, g, strict=True))
        of_inputs = sum(_relevance(x.detach(), g_x) for x, g_x in zip(ctx.inputs, g_inputs, strict=True))
        return (of_outputs - of_inputs).to(ctx.like), None, *g_inputs


def shared_by_tangent(func: Callable, args: tuple, kwargs: dict, new_one: Callable[[Tensor], Tensor]) -> Any:
    """Run an operation on active tensors, with relevance by its degree or, where it has none, by its tangent.

    ``new_one(like)`` gives the constant that collects the remainder of the tangent. The relevance that an operation of
    degree 0 passes on sums to 0; a warning says so and names the operation.
    """
    inputs = [value for value in _tensors_in((args, kwargs)) if value.requires_grad]
    result = func(*args, **kwargs)
    outputs = [value for value in _tensors_in(result) if value.requires_grad]
    if not inputs or not outputs:
        return result

    def operation(new_inputs: Sequence[Tensor]) -> Any:
        return func(
            *(_replaced(value, inputs, new_inputs) for value in args),
            **{name: _replaced(value, inputs, new_inputs) for name, value in kwargs.items()},
        )

    n = degree(operation, inputs, outputs)
    if n == 1:
        return result
    if n:
        return operation([scale_relevance(x, 1 / n) for x in inputs])  # Euler: Σ x df/dx = n f
    if n == 0:
        warnings.warn(
            f"{func.__name__} gives the same whatever its input is multiplied by, and relevance has no rule for it: "
            "what it passes on sums to 0, and all of it counts as absorbed; write it with a division by a "
            "norm, x / x.norm(), which is held constant, or explain its input",
            stacklevel=2,
        )
    return _replaced(result, outputs, _Tangent.apply(new_one(outputs[0]), operation, *inputs))


def degree(operation: Callable, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float | None:
    """Return the n for which scaling the inputs by 2 scales all outputs by 2^n; None if there is no such n.

    Doubling is exact in floating point, so the tolerance is next to none.

    >>> x, square = torch.tensor([1.0, 3.0], requires_grad=True), lambda inputs: inputs[0].square()
    >>> degree(square, [x], [square([x])]), degree(lambda inputs: inputs[0].exp(), [x], [x.exp()])
    (2.0, None)
    """
    with torch.no_grad():
        results = _tensors_in(operation([2 * x for x in inputs]))
        of_doubled = [value for value in results if value.is_floating_point() or value.is_complex()]
        if len(of_doubled) != len(outputs):
            return None
        pairs = list(zip(of_doubled, outputs, strict=True))
        return next((n for n in _DEGREES if all(_same(y2, y * 2**n) for y2, y in pairs)), None)


def _same(values: Tensor, expected: Tensor) -> bool:
    finite = values.isfinite() & expected.isfinite()
    largest = expected.masked_fill(~finite, 0.0).abs().amax() if expected.numel() else 0.0
    near = (values - expected).abs() <= 2 * torch.finfo(expected.dtype).eps * largest
    return bool((near | (values == expected)).all())  # == holds for equal infinities, whose difference is NaN


def _tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a value, including those in lists, tuples and dicts.

    >>> len(_tensors_in((torch.ones(2), [3, {"x": torch.ones(1)}])))
    2
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors_in(item)] if isinstance(value, (list, tuple)) else []


def _replaced(value: Any, old: Sequence[Tensor], new: Sequence[Tensor]) -> Any:
    """Return the value with tensors of ``old`` replaced by those of ``new``."""
    if isinstance(value, Tensor):
        return next((b for a, b in zip(old, new, strict=True) if a is value), value)
    if isinstance(value, dict):
        return {name: _replaced(item, old, new) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_replaced(item, old, new) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _relevance(x: Tensor, g: Tensor | None) -> Tensor | float:
    """Return the sum of x * g; entries of minus infinity, as in masks, whose g is 0, count as 0."""
    return 0.0 if g is None else (x * g).masked_fill(g == 0, 0.0).sum()
