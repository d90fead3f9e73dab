"""The backward passes of relevance: what a rule puts in the place of an operation's derivative.

One convention for all: a tensor x carries a "gradient" g, and its relevance is R(x) = x * g, entry by entry. Each
function runs the operation as it is and changes only how g goes back through it. What follows from that:

1. A linear map y = W x + b whose bias gets its own share, R(b) = b * g, needs no function at all: the gradient gives
   R(x_i) = sum_k x_i W_ki g_k = sum_k (x_i W_ki / y_k) R(y_k), which is the LRP-0 rule (Bach et al. 2015).
2. "R(x) = R(y)" for y = f(x) means g_x = g_y * y / x, with 0 where x is 0: x cannot carry relevance there.
3. A factor c on g keeps c of the relevance. A product of two activations, whose gradient would give each of them all
   of R, becomes conservative with half of g for each.
4. Nothing is differentiated twice, so a backward pass may be any formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

Layer = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]  # (x, weight, bias) -> y


def scale_relevance(x: Tensor, fraction: Tensor | float) -> Tensor:
    """Return x; only this fraction of its relevance goes back."""
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(lambda g: g * fraction)
    return x


def stabilised(z: Tensor, epsilon: float) -> Tensor:
    """Return z, with R(z) = R(y) z / (z + epsilon sign z): the part of epsilon is lost (LRP-epsilon)."""
    size = z.detach().abs()  # the fraction is the same for both signs
    return scale_relevance(z, (size / (size + epsilon)).nan_to_num(0.0))


class _Identity(Function):
    """y = f(x), entry by entry, with R(x) = R(y): g goes back times y / x."""

    @staticmethod
    def forward(ctx: object, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(quotient(y, x))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        return g * ctx.saved_tensors[0], None


identity = _Identity.apply


class _LayerNorm(Function):
    """Layer normalisation with its standard deviation held constant; subtracting the mean stays a linear map.

    With ``one_step`` R(x) = R(y), and neither mean nor bias gets a share.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, shape: tuple, weight: Tensor | None, bias: Tensor | None, eps: float, one_step: bool
    ) -> Tensor:
        y, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)  # scale: 1 / standard deviation
        ctx.shape, ctx.dtype, ctx.one_step = shape, x.dtype, one_step
        ctx.save_for_backward(*((x, y) if one_step else (scale, weight)))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        features = tuple(range(-len(ctx.shape), 0))
        if ctx.one_step:
            x, y = ctx.saved_tensors
            # An x of 0 cannot carry the relevance of its y, so the other features take it, in proportion to abs(x).
            lost = (g * y).masked_fill(x != 0, 0.0).sum(features, keepdim=True)
            return (g * quotient(y, x) + lost * quotient(x.sign(), x.abs().sum(features, keepdim=True)), *[None] * 5)
        scale, weight = ctx.saved_tensors
        g_x = g.clone() if weight is None else g * weight
        # x - mean is linear in x; 1 / deviation counts as a constant.
        g_x = g_x.sub_(g_x.mean(features, keepdim=True)) * scale
        g_bias = g.flatten(0, -len(ctx.shape) - 1).sum(0) if ctx.needs_input_grad[3] else None
        return (g_x.to(ctx.dtype), None, None, g_bias, None, None)


layer_norm = _LayerNorm.apply


class _AlphaBeta(Function):
    """A linear map whose positive terms x_i w_ik share alpha of R(y_k), and its negative ones the other 1 - alpha.

    Terms of one sign share in proportion to their size, the bias among them. Where a y_k has no terms of one sign, the
    others get all of R(y_k), so nothing is lost. Without ``weight`` the map's coefficients are taken to be positive, as
    attention weights are.

    With x = x+ + x-, w = w+ + w-, the positive terms are x+ w+ and x- w-, the negative ones x+ w- and x- w+. Each sum
    is a layer of its own, whose ordinary gradient shares in proportion.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, bias: Tensor | None, weight: Tensor | None, layer: Layer, alpha: float
    ) -> Tensor:
        y = layer(x, weight, bias)
        dtype = torch.promote_types(x.dtype, torch.float32)
        inputs = [x, *([] if bias is None else [bias])]
        with torch.enable_grad():
            parts = [part.requires_grad_() for tensor in inputs for part in _signed_parts(tensor.detach().to(dtype))]
            (x_plus, x_minus), (b_plus, b_minus) = parts[:2], parts[2:] or (None, None)
            if weight is None:
                plus, minus = layer(x_plus, None, b_plus), layer(x_minus, None, b_minus)
            else:
                w_plus, w_minus = _signed_parts(weight.to(dtype))
                plus = layer(x_plus, w_plus, b_plus) + layer(x_minus, w_minus, None)
                minus = layer(x_plus, w_minus, b_minus) + layer(x_minus, w_plus, None)
        ctx.parts, ctx.sums, ctx.inputs = parts, (plus, minus), inputs
        ctx.save_for_backward(*_alpha_beta_factors(y, plus.detach(), minus.detach(), alpha))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        g_sums = [g * factor for factor in ctx.saved_tensors]
        # The graph is kept: every number that is explained takes a backward pass of its own.
        g_parts = torch.autograd.grad(ctx.sums, ctx.parts, g_sums, retain_graph=True)
        g_x, g_bias = [
            # R = x g: of the two parts only that with the sign of x is not 0.
            torch.where(tensor > 0, g_parts[2 * i], g_parts[2 * i + 1]).to(tensor.dtype)
            for i, tensor in enumerate(ctx.inputs)
        ] + [None] * (2 - len(ctx.inputs))
        return g_x, g_bias, None, None, None


alpha_beta = _AlphaBeta.apply


class _AlphaBetaByRows(Function):
    """The same for y = x matrix^T + bias, at the cost of the rows whose g is not 0, in half of the time.

    Those are few in the layer that writes a vocabulary, since one step of each example is explained at a time.
    """

    @staticmethod
    def forward(
        ctx: object, x: Tensor, bias: Tensor | None, weight: Tensor, layer: Layer, alpha: float, matrix: Tensor
    ) -> Tensor:
        y = layer(x, weight, bias)
        dtype = torch.promote_types(x.dtype, torch.float32)
        (x_plus, x_minus), (w_plus, w_minus) = _signed_parts(x.to(dtype)), _signed_parts(matrix.to(dtype))
        b_plus, b_minus = (None, None) if bias is None else _signed_parts(bias.to(dtype))
        plus = F.linear(x_plus, w_plus, b_plus) + F.linear(x_minus, w_minus)
        minus = F.linear(x_plus, w_minus, b_minus) + F.linear(x_minus, w_plus)
        ctx.inputs = x, bias, matrix
        ctx.save_for_backward(*_alpha_beta_factors(y, plus, minus, alpha))
        return y

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        x, bias, matrix = ctx.inputs
        nonzero = (g != 0).any(-1)
        g_plus, g_minus = (g[nonzero] * factor[nonzero] for factor in ctx.saved_tensors)
        w_plus, w_minus = _signed_parts(matrix.to(g_plus.dtype))
        g_x_plus = (g_plus @ w_plus).addmm_(g_minus, w_minus)
        g_x_minus = (g_plus @ w_minus).addmm_(g_minus, w_plus)
        g_x = torch.zeros_like(x)
        g_x[nonzero] = torch.where(x[nonzero] > 0, g_x_plus, g_x_minus).to(x.dtype)
        g_bias = None if bias is None else torch.where(bias > 0, g_plus.sum(0), g_minus.sum(0)).to(bias.dtype)
        return g_x, g_bias, None, None, None, None


alpha_beta_by_rows = _AlphaBetaByRows.apply


def alpha_beta_sum(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return a + b, entry by entry, shared as in ``_AlphaBeta``."""
    a, b = torch.broadcast_tensors(a, b)
    with torch.no_grad():
        (a_plus, a_minus), (b_plus, b_minus) = _signed_parts(a), _signed_parts(b)
        factor_plus, factor_minus = _alpha_beta_factors(a + b, a_plus + b_plus, a_minus + b_minus, alpha)
        fractions = [torch.where(x > 0, factor_plus, factor_minus).to(x.dtype) for x in (a, b)]
    return scale_relevance(a, fractions[0]) + scale_relevance(b, fractions[1])


class _RatioProduct(Function):
    """v = a * b, entry by entry, by the ratio rule: a gets the share a / (a + b) of R(v), b the other.

    The rule as it is printed (Ding et al. 2017; Voita et al. 2019, arXiv:1905.09418, appendix A): a factor of a product
    shares as a term of a sum would. R(a) = a / (a + b) * v g, so both factors get the same g: a b / (a + b) times that
    of v. Shares have any sign and no bound where a and b cancel.

    >>> a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    >>> g_a, g_b = torch.autograd.grad(ratio_product(a, b), [a, b])
    >>> (a * g_a).item(), (b * g_b).item()
    (2.25, 0.75)
    """

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        g_both = g * quotient(a * b, a + b)  # a g_both = a / (a + b) R(v)
        return g_both.sum_to_size(a.shape), g_both.sum_to_size(b.shape)


ratio_product = _RatioProduct.apply


def ratio_matmul(b: Tensor, c: Tensor) -> Tensor:
    """Return O = B C, of matrices or stacks of them, by the ratio rule: a sum over j of the products B_ij C_jk."""
    if b.dim() < 2 or c.dim() < 2:
        raise ValueError(f"the ratio rule multiplies matrices, got shapes {tuple(b.shape)} and {tuple(c.shape)}")
    # (..., i, j, 1) and (..., 1, j, k): memory for every product
    o = ratio_product(b[..., None], c[..., None, :, :]).sum(-2)
    return (b @ c).detach() + (o - o.detach())  # the value of B C, to the last bit


def _alpha_beta_factors(y: Tensor, plus: Tensor, minus: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return the factors on g of a positive and of a negative term: alpha y / plus and (1 - alpha) y / minus.

    ``plus`` and ``minus`` are the sums of the terms of each sign. Where one is 0, the other takes all of R(y) = y * g.

    >>> _alpha_beta_factors(torch.tensor([2.0, 4.0]), torch.tensor([4.0, 4.0]), torch.tensor([-2.0, 0.0]), 0.5)
    (tensor([0.2500, 1.0000]), tensor([-0.5000, 0.0000]))
    """
    smallest = torch.finfo(plus.dtype).tiny ** 0.5  # a sum below it counts as 0: dividing by it would overflow
    has_plus, has_minus = plus > smallest, minus < -smallest
    both = has_plus & has_minus
    of_plus, of_minus = y.to(plus.dtype) / plus, y.to(plus.dtype) / minus
    for factor, exists, fraction in ((of_plus, has_plus, alpha), (of_minus, has_minus, 1 - alpha)):
        factor.mul_(torch.where(both, fraction, 1.0)).masked_fill_(~exists, 0.0)
    return of_plus, of_minus


def _signed_parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part of a tensor, which sum to it."""
    return x.clamp(min=0), x.clamp(max=0)


def quotient(y: Tensor, x: Tensor) -> Tensor:
    """Return y / x, and 0 where x is 0 and can carry no relevance.

    >>> quotient(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.div(y, x).nan_to_num_(0.0, 0.0, 0.0)


def ratio_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return scaled dot-product attention, in steps: two products by the ratio rule, and R(x) = R(y) for softmax."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = ratio_matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, -torch.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask.detach()
    return ratio_matmul(identity(scores, scores.detach().softmax(-1)), value)
