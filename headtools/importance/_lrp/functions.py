"""The backward passes of relevance: what a rule puts in the place of an operation's derivative.

All of them use one convention. A tensor x carries a "gradient" g, and its relevance is R(x) = x * g, entry by entry.
Each function below runs the operation as it is and changes only how g comes back through it. So a linear map whose
bias gets its own share, R(b) = b * g, needs no change at all: x * (g W) is the ratio rule already.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

Whole = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]  # (x, weight, bias) -> what the layer computes


class _Share(Function):
    """The tensor as it is; of its g only a share comes back."""

    @staticmethod
    def forward(ctx: object, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        return g * ctx.share, None


class _Identity(Function):
    """y = f(x), entry by entry, with R(x) = R(y): g comes back times y / x."""

    @staticmethod
    def forward(ctx: object, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(quotient(y, x))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        return g * ctx.saved_tensors[0], None


class _Epsilon(Function):
    """y = z, with R(z) = R(y) z / (z + epsilon sign z): what epsilon takes is lost."""

    @staticmethod
    def forward(ctx: object, z: Tensor, epsilon: float) -> Tensor:
        ctx.epsilon = epsilon
        ctx.save_for_backward(z)
        return z.view_as(z)

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        size = ctx.saved_tensors[0].abs()
        return g * (size / (size + ctx.epsilon)).nan_to_num(0.0), None


class _LayerNorm(Function):
    """Layer normalisation with its deviation held constant; taking the mean away stays a linear map.

    With ``whole`` it is one step with R(x) = R(y), and neither mean nor bias gets a share.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, shape: tuple, weight: Tensor | None, bias: Tensor | None, eps: float, whole: bool
    ) -> Tensor:
        y, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)
        ctx.shape, ctx.dtype, ctx.whole = shape, x.dtype, whole
        ctx.save_for_backward(*((x, y) if whole else (scale, weight)))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        last = tuple(range(-len(ctx.shape), 0))
        if ctx.whole:
            x, y = ctx.saved_tensors
            # a zero cannot carry what its y got, so the others take it, by their size
            lost = (g * y).masked_fill(x != 0, 0.0).sum(last, keepdim=True)
            return (g * quotient(y, x) + lost * quotient(x.sign(), x.abs().sum(last, keepdim=True)), *[None] * 5)
        scale, weight = ctx.saved_tensors
        back = g.clone() if weight is None else g * weight
        back = back.sub_(back.mean(last, keepdim=True)) * scale
        bias = g.flatten(0, -len(ctx.shape) - 1).sum(0) if ctx.needs_input_grad[3] else None
        return (back.to(ctx.dtype), None, None, bias, None, None)


class _AlphaBeta(Function):
    """A linear map whose positive parts x_i w_ik share alpha of R(y_k), and its negative ones the other 1 - alpha.

    Parts of one sign share in proportion to their size, the bias among them. Where a y_k has no parts of one sign, the
    others get all of R(y_k), so nothing is lost. Without ``weight`` the map's numbers are taken to be positive.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, bias: Tensor | None, weight: Tensor | None, whole: Whole, alpha: float
    ) -> Tensor:
        y = whole(x, weight, bias)
        wide = torch.promote_types(x.dtype, torch.float32)
        given = [x, *([] if bias is None else [bias])]
        with torch.enable_grad():
            halves = [part.requires_grad_() for tensor in given for part in signed_parts(tensor.detach().to(wide))]
            (above, below), (b_above, b_below) = halves[:2], halves[2:] or (None, None)
            if weight is None:
                plus, minus = whole(above, None, b_above), whole(below, None, b_below)
            else:
                w_above, w_below = signed_parts(weight.to(wide))
                plus = whole(above, w_above, b_above) + whole(below, w_below, None)
                minus = whole(above, w_below, b_below) + whole(below, w_above, None)
        ctx.halves, ctx.sums, ctx.given = halves, (plus, minus), given
        ctx.save_for_backward(*per_part(y, plus.detach(), minus.detach(), alpha))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        shares = [g * each for each in ctx.saved_tensors]
        back = torch.autograd.grad(ctx.sums, ctx.halves, shares, retain_graph=True)
        x, bias = [
            torch.where(tensor > 0, back[2 * i], back[2 * i + 1]).to(tensor.dtype)
            for i, tensor in enumerate(ctx.given)
        ] + [None] * (2 - len(ctx.given))  # fmt: skip
        return x, bias, None, None, None


class _Rows(Function):
    """y = x matrix^T + bias, row by row, by the alpha-beta rule or, without ``alpha``, in proportion.

    The same as ``_AlphaBeta``, or as torch's own backward pass, for the price of the rows whose g is not 0: of a layer
    that writes a vocabulary those are few, since one step of each example is explained at a time.
    """

    @staticmethod
    def forward(ctx: object, x: Tensor, bias: Tensor | None, matrix: Tensor, y: Tensor, alpha: float | None) -> Tensor:
        ctx.alpha, ctx.kept = alpha, (x, bias, matrix)
        if alpha is not None:
            wide = torch.promote_types(x.dtype, torch.float32)
            (x_up, x_down), (w_up, w_down) = signed_parts(x.to(wide)), signed_parts(matrix.to(wide))
            b_up, b_down = (None, None) if bias is None else signed_parts(bias.to(wide))
            plus = F.linear(x_up, w_up, b_up) + F.linear(x_down, w_down)
            minus = F.linear(x_up, w_down, b_down) + F.linear(x_down, w_up)
            ctx.save_for_backward(*per_part(y, plus, minus, alpha))
        return y.view_as(y)

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        x, bias, matrix = ctx.kept
        rows = (g != 0).any(-1)
        some, x_some = g[rows], x[rows]
        if ctx.alpha is None:
            back, of_bias = some @ matrix, some.sum(0)
        else:
            up, down = (some * each[rows] for each in ctx.saved_tensors)
            w_up, w_down = signed_parts(matrix.to(up.dtype))
            above, below = (up @ w_up).addmm_(down, w_down), (up @ w_down).addmm_(down, w_up)
            back = torch.where(x_some > 0, above, below).to(x.dtype)
            of_bias = None if bias is None else torch.where(bias > 0, up.sum(0), down.sum(0)).to(bias.dtype)
        spread = torch.zeros_like(x)
        spread[rows] = back
        return spread, None if bias is None else of_bias, None, None, None


class _AlphaBetaSum(Function):
    """a + b, entry by entry, shared as in ``_AlphaBeta``."""

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor, alpha: float) -> Tensor:
        y, (a_up, a_down), (b_up, b_down) = a + b, signed_parts(a), signed_parts(b)
        up, down = per_part(y, a_up + b_up, a_down + b_down, alpha)
        ctx.like = a.shape, b.shape
        ctx.save_for_backward(*(torch.where(part > 0, up, down).to(part.dtype) for part in (a, b)))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        return (*((g * f).sum_to_size(shape) for f, shape in zip(ctx.saved_tensors, ctx.like, strict=True)), None)


def per_part(y: Tensor, plus: Tensor, minus: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return what one unit of positive and of negative part gets of R(y) = y * g, for g = 1.

    ``plus`` and ``minus`` are the sums of the parts of each sign.

    >>> per_part(torch.tensor([2.0, 4.0]), torch.tensor([4.0, 4.0]), torch.tensor([-2.0, 0.0]), 0.5)
    (tensor([0.2500, 1.0000]), tensor([-0.5000, 0.0000]))
    """
    least = torch.finfo(plus.dtype).tiny ** 0.5  # less is nothing, and a division by it would overflow
    up, down = plus > least, minus < -least
    both = up & down
    above, below = y.to(plus.dtype) / plus, y.to(plus.dtype) / minus
    for each, there, part in ((above, up, alpha), (below, down, 1 - alpha)):
        each.mul_(torch.where(both, part, 1.0)).masked_fill_(~there, 0.0)
    return above, below


def signed_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part of a tensor, whose sum it is."""
    return x.clamp(min=0), x.clamp(max=0)


def quotient(y: Tensor, x: Tensor) -> Tensor:
    """Return y / x, and 0 where x is 0: there is no relevance to be had.

    >>> quotient(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.div(y, x).nan_to_num_(0.0, 0.0, 0.0)


def share(x: Tensor, part: float) -> Tensor:
    """Return x; only this part of its relevance goes on."""
    return _Share.apply(x, part)


def identity(x: Tensor, y: Tensor) -> Tensor:
    """Return y, computed from x entry by entry, with R(x) = R(y)."""
    return _Identity.apply(x, y)


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """Return z, with R(z) = R(y) z / (z + epsilon sign z): what epsilon takes is lost."""
    return _Epsilon.apply(z, epsilon)


def layer_norm(x: Tensor, shape: tuple, weight: Tensor | None, bias: Tensor | None, eps: float, whole: bool) -> Tensor:
    """Return the layer normalisation of x, with its deviation held constant or, if ``whole``, with R(x) = R(y)."""
    return _LayerNorm.apply(x, shape, weight, bias, eps, whole)


def alpha_beta(x: Tensor, bias: Tensor | None, weight: Tensor | None, whole: Whole, alpha: float) -> Tensor:
    """Return ``whole(x, weight, bias)``, shared out by the alpha-beta rule; see ``_AlphaBeta``."""
    return _AlphaBeta.apply(x, bias, weight, whole, alpha)


def by_rows(x: Tensor, bias: Tensor | None, matrix: Tensor, y: Tensor, alpha: float | None) -> Tensor:
    """Return y = x matrix^T + bias, computed already, shared out row by row; see ``_Rows``."""
    return _Rows.apply(x, bias, matrix, y, alpha)


def alpha_beta_sum(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return a + b, shared out by the alpha-beta rule."""
    return _AlphaBetaSum.apply(a, b, alpha)
