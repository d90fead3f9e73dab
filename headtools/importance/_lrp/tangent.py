"""What relevance does with an operation that has no rule of its own, in a model or in a score.

Where scaling all that comes in by s scales what comes out by s^n, the gradient sends on n times what is to be shared
(Euler's theorem): a power or a product shares its gradient divided by n, and a map with n = 1 its gradient. Anything
else, such as log_softmax, is taken as its tangent: y = f(x) is the sum of x_i times its slope and of a rest that no
input moves, and the rest is kept by a constant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from headtools.importance._lrp.functions import share

DEGREES = (1.0, 2.0, 0.5, -1.0, 3.0, 4.0, -2.0, -0.5, 0.0)  # 1 first: nearly all that has no rule is linear


class _Tangent(Function):
    """y = f(x), with the gradient of f; ``one`` collects what of R(y) no x gets: the rest of the tangent."""

    @staticmethod
    def forward(ctx: object, one: Tensor, operation: Callable, *inputs: Tensor) -> tuple:
        with torch.enable_grad():
            ctx.inputs = [x.detach().requires_grad_() for x in inputs]
            ctx.outputs = [y for y in tensors_in(operation(ctx.inputs)) if y.requires_grad]
        ctx.like = one
        return tuple(y.detach() for y in ctx.outputs)

    @staticmethod
    def backward(ctx: object, *g: Tensor) -> tuple:
        slopes = torch.autograd.grad(ctx.outputs, ctx.inputs, g, retain_graph=True, allow_unused=True)
        shared = sum(_relevance(y.detach(), of_y) for y, of_y in zip(ctx.outputs, g, strict=True))
        arrived = sum(_relevance(x.detach(), of_x) for x, of_x in zip(ctx.inputs, slopes, strict=True))
        return (shared - arrived).to(ctx.like), None, *slopes


def shared_by_tangent(func: Callable, args: tuple, kwargs: dict, one: Callable[[Tensor], Tensor]) -> Any:
    """Run an operation of active tensors, shared by its degree or, where it has none, by its tangent.

    ``one(like)`` gives the constant that keeps the rest of the tangent. What an operation that no scaling of its input
    changes passes on adds up to nothing: that is said in a warning, by name.
    """
    inputs = [value for value in tensors_in((args, kwargs)) if value.requires_grad]
    plain = func(*args, **kwargs)
    outputs = [value for value in tensors_in(plain) if value.requires_grad]
    if not inputs or not outputs:
        return plain

    def operation(given: Sequence[Tensor]) -> Any:
        return func(*(_replaced(part, inputs, given) for part in args),
                    **{name: _replaced(part, inputs, given) for name, part in kwargs.items()})  # fmt: skip

    n = degree(operation, inputs, outputs)
    if n == 1:
        return plain
    if n:
        return operation([share(x, 1 / n) for x in inputs])
    if n == 0:
        warnings.warn(
            f"{func.__name__} gives the same whatever its input is multiplied by, and relevance has no rule for it: "
            "what it passes on adds up to nothing, and all of it counts as absorbed; write it with a division by a "
            "norm, x / x.norm(), which is held constant, or explain what goes into it",
            stacklevel=2,
        )
    return _replaced(plain, outputs, _Tangent.apply(one(outputs[0]), operation, *inputs))


def degree(operation: Callable, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float | None:
    """Return the n for which scaling the inputs by 2 scales all outputs by 2^n; None if there is no such n.

    Doubling is exact in floating point, so next to no rounding has to be forgiven.

    >>> x, by = torch.tensor([1.0, 3.0], requires_grad=True), lambda given: given[0].square()
    >>> degree(by, [x], [by([x])]), degree(lambda given: given[0].exp(), [x], [x.exp()])
    (2.0, None)
    """
    with torch.no_grad():
        found = tensors_in(operation([2 * x for x in inputs]))
        twice = [value for value in found if value.is_floating_point() or value.is_complex()]
        if len(twice) != len(outputs):
            return None
        pairs = list(zip(twice, outputs, strict=True))
        return next((n for n in DEGREES if all(_same(y2, y * 2**n) for y2, y in pairs)), None)


def _same(found: Tensor, wanted: Tensor) -> bool:
    finite = found.isfinite() & wanted.isfinite()
    size = wanted.masked_fill(~finite, 0.0).abs().amax() if wanted.numel() else 0.0
    near = (found - wanted).abs() <= 2 * torch.finfo(wanted.dtype).eps * size
    return bool((near | (found == wanted)).all())


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors in a value, those of lists, tuples and dicts in it too.

    >>> len(tensors_in((torch.ones(2), [3, {"x": torch.ones(1)}])))
    2
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [one for part in value for one in tensors_in(part)] if isinstance(value, (list, tuple)) else []


def _replaced(value: Any, old: Sequence[Tensor], new: Sequence[Tensor]) -> Any:
    """Return the value with other tensors in the place of some."""
    if isinstance(value, Tensor):
        return next((b for a, b in zip(old, new, strict=True) if a is value), value)
    if isinstance(value, dict):
        return {name: _replaced(part, old, new) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_replaced(part, old, new) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def _relevance(x: Tensor, g: Tensor | None) -> Tensor | float:
    """Return the sum of x * g; minus infinity, as in masks, has none."""
    return 0.0 if g is None else (x * g).masked_fill(g == 0, 0.0).sum()
