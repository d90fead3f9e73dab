"""The ratio rule as it is printed (Ding et al. 2017; Voita et al. 2019, arXiv:1905.09418, appendix A), for products.

A part of a sum gets its share of the sum, u / sum of u', and so does a factor of a product: u' / (u + u'), with no
regard to what a product does. Both shares have any sign and no bound where parts cancel. In the convention of
``rule_functions``, R(x) = x * g, a sum hands its g on as it is; for a product v = a * b it follows that
R(a) = a / (a + b) * v g, so that both factors get the same g: a * b / (a + b) times that of v.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import Function

from headtools.importance._lrp.functions import identity, quotient


class _Product(Function):
    """v = a * b, entry by entry; a gets the share a / (a + b) of R(v), b the other."""

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        a, b = ctx.saved_tensors
        both = g * quotient(a * b, a + b)
        return both.sum_to_size(a.shape), both.sum_to_size(b.shape)


class _Matmul(Function):
    """O = B C: a sum over j of products B_ij C_jk, each with the g of O_ik."""

    @staticmethod
    def forward(ctx: object, b: Tensor, c: Tensor) -> Tensor:
        ctx.save_for_backward(b, c)
        return b @ c

    @staticmethod
    def backward(ctx: object, g: Tensor) -> tuple:
        b, c = ctx.saved_tensors
        left, right = b[..., None], c[..., None, :, :]  # (..., i, j, 1) and (..., 1, j, k)
        both = g[..., None, :] * quotient(left * right, left + right)
        return both.sum(-1).sum_to_size(b.shape), both.sum(-3).sum_to_size(c.shape)


def ratio_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a * b, whose relevance its factors share in proportion to their size.

    >>> a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    >>> of_a, of_b = torch.autograd.grad(ratio_product(a, b), [a, b])
    >>> (a * of_a).item(), (b * of_b).item()
    (2.25, 0.75)
    """
    return _Product.apply(a, b)


def ratio_matmul(b: Tensor, c: Tensor) -> Tensor:
    """Return b @ c, of two matrices or more, by the ratio rule; going back takes memory for every single product."""
    if b.dim() < 2 or c.dim() < 2:
        raise ValueError(f"the ratio rule multiplies matrices, got shapes {tuple(b.shape)} and {tuple(c.shape)}")
    return _Matmul.apply(b, c)


def ratio_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Return scaled dot-product attention, in single steps: two products by the ratio rule, softmax passed over."""
    if enable_gqa:
        key, value = (some.repeat_interleave(query.shape[-3] // some.shape[-3], -3) for some in (key, value))
    scores = ratio_matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask.detach()
    return ratio_matmul(identity(scores, scores.detach().softmax(-1)), value)
