"""The rules of relevance: which ones there are, and each as a formula for what goes back through an operation.

One convention for all: a tensor x carries a "gradient" g, and its relevance is R(x) = x * g, entry by entry. Every
operation runs as it is; a rule only puts another formula in the place of its derivative. What follows from that:

1. A linear map y = W x + b whose bias gets its own share, R(b) = b * g, needs no rule at all: the gradient gives
   R(x_i) = sum_k x_i W_ki g_k = sum_k (x_i W_ki / y_k) R(y_k), which is LRP-0 (Bach et al. 2015).
2. A factor c on g keeps c of the relevance (``scaled``). A product of two activations, whose gradient would give each
   of them all of R, becomes conservative with half of g for each.
3. "R(x) = R(y)" for y = f(x) means g_x = g y / x, with 0 where x is 0: x cannot carry relevance there (``identity``).
4. Nothing is differentiated twice, so what goes back may be any formula (``_Rule``).

Sources: Bach et al. 2015 (10.1371/journal.pone.0130140) for "epsilon" and "alphabeta"; Achtibat et al. 2024
(arXiv:2402.05602) for "attnlrp"; Voita et al. 2019 (arXiv:1905.09418), appendix A, for "voita" and "ratio".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Layer = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]  # (x, weight, bias) -> y, linear in x


@dataclass(frozen=True)
class Rules:
    """How relevance goes back through each kind of operation.

    - ``linear``: maps with a weight, convolutions included. "zero" shares R(y) among the x_i in proportion to
      x_i w_i / y; "epsilon" adds ``epsilon`` to abs(y); "ratio" leaves biases out of y, so that they get nothing, and
      passes relevance through layer normalisations unchanged; "alphabeta" gives ``alpha`` to the positive terms x_i w_i
      and the rest to the negative ones.
    - ``sums``: additions and the mixing of values by attention follow alpha-beta too, and a layer normalisation passes
      relevance on unchanged; otherwise all of them share in proportion.
    - ``attention``: "through" follows softmax by its gradient and halves the relevance of every product of two
      activations; "constant" holds attention weights constant; "ratio" passes relevance through softmax unchanged, and
      the factors of a product share in proportion to their size.
    - ``others``: normalisations divide by a constant, activation functions pass relevance on unchanged, products are
      halved, and an operation without a rule follows its tangent. False makes all of them, and attention, plain
      gradients.
    """

    linear: str = "zero"
    alpha: float = 1.0
    epsilon: float = 1e-6
    sums: bool = False
    attention: str = "through"
    others: bool = True

    def __post_init__(self) -> None:
        linear, attention = ("zero", "epsilon", "ratio", "alphabeta"), ("through", "constant", "ratio")
        if self.linear not in linear or self.attention not in attention:
            raise ValueError(
                'linear is "zero", "epsilon", "ratio" or "alphabeta" and attention "through", "constant" or "ratio"; '
                f"got {self.linear!r} and {self.attention!r}"
            )
        if not self.epsilon > 0 or not abs(self.alpha) < float("inf"):
            raise ValueError(f"epsilon must be positive and alpha finite, got {self.epsilon} and {self.alpha}")


NAMED = {
    "attnlrp": Rules(),
    "cp": Rules(attention="constant"),
    "epsilon": Rules(linear="epsilon", attention="constant"),
    "alphabeta": Rules(linear="alphabeta", alpha=0.5, attention="constant"),
    "zplus": Rules(linear="alphabeta", alpha=1.0, sums=True, attention="constant"),
    "voita": Rules(linear="alphabeta", alpha=0.5, sums=True, attention="constant"),  # their code, since November 2020
    "ratio": Rules(linear="ratio", attention="ratio"),  # their appendix A, as printed: unstable where parts cancel
    "gradient": Rules(others=False),
}


def named(rules: str | Rules) -> Rules:
    """Return the rules of that name; ``Rules`` are returned as they are."""
    if isinstance(rules, Rules):
        return rules
    if rules not in NAMED:
        raise ValueError(f"rules is one of {', '.join(NAMED)}, or your own Rules(...); got {rules!r}")
    return NAMED[rules]


# --- the tools: every formula below is made of these three ------------------------------------------------------------


class _Rule(Function):
    """The given outputs, with g going back by a formula: ``back(*g, *saved)`` returns one g for each input."""

    @staticmethod
    def forward(ctx: Any, back: Callable, outputs: tuple, saved: tuple, *_inputs: Tensor) -> tuple:
        ctx.back = back
        ctx.save_for_backward(*saved)  # rather than in a closure: torch then notices what is overwritten in place
        return outputs

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple:
        return None, None, None, *ctx.back(*g, *ctx.saved_tensors)


def scaled(x: Tensor, fraction: Tensor | float) -> Tensor:
    """Return x; only this fraction of its relevance goes back."""
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(lambda g: (g * fraction).to(g.dtype))
    return x


def with_value(y: Tensor, path: Tensor) -> Tensor:
    """Return y, to the last bit, with all of g going to ``path``, which is the same number computed otherwise."""
    return _Rule.apply(lambda g: (g,), (y,), (), path)[0]


def quotient(y: Tensor, x: Tensor) -> Tensor:
    """Return y / x, and 0 where x is 0 and can carry no relevance.

    >>> quotient(torch.tensor([1.0, 1.0]), torch.tensor([4.0, 0.0]))
    tensor([0.2500, 0.0000])
    """
    return torch.div(y, x).nan_to_num_(0.0, 0.0, 0.0)


# --- activation functions, normalisations, LRP-epsilon ----------------------------------------------------------------


def identity(x: Tensor, y: Tensor) -> Tensor:
    """Return y = f(x), of entries one by one, with R(x) = R(y): g_x = g y / x."""
    return _Rule.apply(lambda g, ratio: (g * ratio,), (y,), (quotient(y, x.detach()),), x)[0]


def epsilon_rule(y: Tensor, epsilon: float) -> Tensor:
    """Return y = sum of parts, of whose R only y / (y + epsilon sign y) goes to them: the part of epsilon is lost."""
    size = y.detach().abs()  # the fraction is the same for both signs
    return scaled(y, (size / (size + epsilon)).nan_to_num(0.0))


def layer_norm(x: Tensor, shape: tuple, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return layer normalisation with its deviation s held constant: y = w (x - mean x) / s + b is linear in x.

    g_x = (w g - mean(w g)) / s, over the features of each token, and g_b = g.
    """
    features = tuple(range(-len(shape), 0))
    with torch.no_grad():
        y, _, scale = torch.native_layer_norm(x, shape, weight, bias, eps)  # scale: 1 / s

    def back(g: Tensor, scale: Tensor) -> tuple:
        g_x = g.clone() if weight is None else g * weight
        g_x = g_x.sub_(g_x.mean(features, keepdim=True)) * scale
        return g_x.to(x.dtype), *([] if bias is None else [g.flatten(0, -len(shape) - 1).sum(0)])

    return _Rule.apply(back, (y,), (scale,), x, *([] if bias is None else [bias]))[0]


def layer_norm_unchanged(x: Tensor, shape: tuple, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return layer normalisation with R(x) = R(y): neither the mean nor the bias gets a share.

    An x of 0 cannot carry the R of its y, so the other features of the token take it, in proportion to abs(x).
    """
    features = tuple(range(-len(shape), 0))
    with torch.no_grad():
        y = torch.native_layer_norm(x, shape, weight, bias, eps)[0]

    def back(g: Tensor, x: Tensor, y: Tensor) -> tuple:
        lost = (g * y).masked_fill(x != 0, 0.0).sum(features, keepdim=True)
        return (g * quotient(y, x) + lost * quotient(x.sign(), x.abs().sum(features, keepdim=True)),)

    return _Rule.apply(back, (y,), (x.detach(), y), x)[0]


# --- alpha-beta: y_k = P_k + N_k, its positive and its negative terms -------------------------------------------------


def alpha_beta(layer: Layer, x: Tensor, weight: Tensor | None, bias: Tensor | None, alpha: float) -> Tensor:
    """Return layer(x, weight, bias), whose positive terms x_i w_ik share alpha of R(y_k), the negative ones the rest.

    R(x_i) = sum_k (alpha (x_i w_ik)+ / P_k + (1 - alpha) (x_i w_ik)- / N_k) R(y_k). Terms of one sign share in
    proportion to their size, the bias among them. Where a y_k has no terms of one sign, the others get all of R(y_k),
    so nothing is lost. Without ``weight`` the map's coefficients are taken to be positive, as attention weights are.
    """
    with torch.no_grad():
        y = layer(x, weight, bias)
    dtype = torch.promote_types(x.dtype, torch.float32)
    x_plus, x_minus = _signed_parts(x.to(dtype))
    b_plus, b_minus = (None, None) if bias is None else _signed_parts(bias.to(dtype))
    if weight is None:
        plus, minus = layer(x_plus, None, b_plus), layer(x_minus, None, b_minus)
    else:  # P = x+ w+ + x- w- and N = x+ w- + x- w+: four layers, whose ordinary gradients share in proportion
        w_plus, w_minus = _signed_parts(weight.to(dtype))
        plus = layer(x_plus, w_plus, b_plus) + layer(x_minus, w_minus, None)
        minus = layer(x_plus, w_minus, b_minus) + layer(x_minus, w_plus, None)
    of_plus, of_minus = _alpha_beta_factors(y, plus.detach(), minus.detach(), alpha)
    return with_value(y, plus * of_plus + minus * of_minus)


def alpha_beta_by_rows(y: Tensor, x: Tensor, matrix: Tensor, bias: Tensor | None, alpha: float) -> Tensor:
    """Return y = x matrix^T + bias by the same rule, at the cost of the rows whose g is not 0, in half of the time.

    Those are few in the layer that writes a vocabulary, since one step of each example is explained at a time.
    """
    with torch.no_grad():
        dtype = torch.promote_types(x.dtype, torch.float32)
        (x_plus, x_minus), (w_plus, w_minus) = _signed_parts(x.detach().to(dtype)), _signed_parts(matrix.to(dtype))
        b_plus, b_minus = (None, None) if bias is None else _signed_parts(bias.to(dtype))
        plus = F.linear(x_plus, w_plus, b_plus) + F.linear(x_minus, w_minus)
        minus = F.linear(x_plus, w_minus, b_minus) + F.linear(x_minus, w_plus)
        factors = _alpha_beta_factors(y, plus, minus, alpha)

    def back(g: Tensor, x: Tensor, matrix: Tensor, *factors: Tensor) -> tuple:
        rows = (g != 0).any(-1)
        g_plus, g_minus = (g[rows] * factor[rows] for factor in factors)
        w_plus, w_minus = _signed_parts(matrix.to(g_plus.dtype))
        of_positive = (g_plus @ w_plus).addmm_(g_minus, w_minus)  # what an x > 0 gets, and below what an x < 0 gets
        of_negative = (g_plus @ w_minus).addmm_(g_minus, w_plus)
        g_x = torch.zeros_like(x)
        g_x[rows] = torch.where(x[rows] > 0, of_positive, of_negative).to(x.dtype)
        if bias is None:
            return (g_x,)
        return g_x, torch.where(bias.detach() > 0, g_plus.sum(0), g_minus.sum(0)).to(bias.dtype)

    saved = (x.detach(), matrix, *factors)
    return _Rule.apply(back, (y,), saved, x, *([] if bias is None else [bias]))[0]


def alpha_beta_sum(a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return a + b, entry by entry, shared by the same rule."""
    a, b = torch.broadcast_tensors(a, b)
    with torch.no_grad():
        (a_plus, a_minus), (b_plus, b_minus) = _signed_parts(a), _signed_parts(b)
        of_plus, of_minus = _alpha_beta_factors(a + b, a_plus + b_plus, a_minus + b_minus, alpha)
        fractions = [torch.where(x > 0, of_plus, of_minus).to(x.dtype) for x in (a, b)]
    return scaled(a, fractions[0]) + scaled(b, fractions[1])


def _alpha_beta_factors(y: Tensor, plus: Tensor, minus: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Return the factors on g of a positive and of a negative term: alpha y / P and (1 - alpha) y / N.

    Where one of the sums is 0, the other takes all of R(y) = y * g.

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
    if not x.requires_grad:
        return x.clamp(min=0), x.clamp(max=0)  # faster
    zero, positive = x.new_zeros(()), x > 0  # clamp would send the g of both parts to an x of 0
    return torch.where(positive, x, zero), torch.where(positive, zero, x)


# --- the printed rule: a factor of a product shares as a term of a sum would ------------------------------------------


def ratio_product(a: Tensor, b: Tensor) -> Tensor:
    """Return v = a * b, entry by entry, with R(a) = a / (a + b) R(v), and R(b) in the same way.

    The rule as it is printed (Ding et al. 2017; Voita et al. 2019, arXiv:1905.09418, appendix A). R(a) = a g_a, so both
    factors get the same g_a = g_b = g v / (a + b). Shares have any sign and no bound where a and b cancel.

    >>> a, b = torch.tensor(3.0, requires_grad=True), torch.tensor(1.0, requires_grad=True)
    >>> g_a, g_b = torch.autograd.grad(ratio_product(a, b), [a, b])
    >>> (a * g_a).item(), (b * g_b).item()
    (2.25, 0.75)
    """

    def back(g: Tensor, a: Tensor, b: Tensor) -> tuple:
        g_both = g * quotient(a * b, a + b)
        return g_both.sum_to_size(a.shape), g_both.sum_to_size(b.shape)

    return _Rule.apply(back, (a.detach() * b.detach(),), (a, b), a, b)[0]


def ratio_matmul(b: Tensor, c: Tensor) -> Tensor:
    """Return O = B C, of matrices or stacks of them, by the printed rule: a sum over j of the products B_ij C_jk."""
    if b.dim() < 2 or c.dim() < 2:
        raise ValueError(f"the ratio rule multiplies matrices, got shapes {tuple(b.shape)} and {tuple(c.shape)}")
    # (..., i, j, 1) and (..., 1, j, k): memory for every product
    products = ratio_product(b[..., None], c[..., None, :, :])
    return with_value((b @ c).detach(), products.sum(-2))


def attention_in_steps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    matmul: Callable,
    softmax: Callable,
) -> Tensor:
    """Compute torch's fused attention, whose parameters these are, by two products and a softmax that are given."""
    if enable_gqa:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
    scores = matmul(query, key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(scores.new_ones(scores.shape[-2:]).tril() == 0, -torch.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool  # not to -inf: a query without any key would give NaN
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min) if boolean else scores + attn_mask
    return matmul(softmax(scores), value)


# --- operations that have no rule of their own, in a model or in a score ----------------------------------------------

_DEGREES = (1.0, 2.0, 0.5, -1.0, 3.0, 4.0, -2.0, -0.5, 0.0)  # 1 first: most operations without a rule are linear


def by_degree_or_tangent(run: Any, func: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on active tensors, with relevance by its degree or, where it has none, by its tangent.

    Where scaling all inputs by s scales the output by s^n, Euler's theorem says sum_i x_i df/dx_i = n f: the gradient
    would pass on n times the relevance, so 1/n of it is. Anything else, such as log_softmax, is replaced by its
    tangent: y is the sum of x_i df/dx_i and of a remainder that depends on no input, whose relevance goes to a
    constant 1 of ``run``, the ``Propagation``. What an operation of degree 0 passes on sums to 0; a warning names it.
    """
    values, structure = tree_flatten((args, kwargs))
    places = [i for i, value in enumerate(values) if active(value)]
    inputs = [values[i] for i in places]
    result = func(*args, **kwargs)
    results, result_structure = tree_flatten(result)
    outputs = [value for value in results if active(value)]
    if not inputs or not outputs:
        return result

    def operation(new_inputs: Sequence[Tensor]) -> Any:
        new_args, new_kwargs = tree_unflatten(_replaced(values, places, new_inputs), structure)
        return func(*new_args, **new_kwargs)

    n = degree(operation, inputs, outputs)
    if n == 1:
        return result
    if n:
        return operation([scaled(x, 1 / n) for x in inputs])
    if n == 0:
        warnings.warn(
            f"{func.__name__} gives the same whatever its input is multiplied by, and relevance has no rule for it: "
            "what it passes on sums to 0, and all of it counts as absorbed; write it with a division by a "
            "norm, x / x.norm(), which is held constant, or explain its input",
            stacklevel=2,
        )
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in inputs]
        ends = [y for y in tree_leaves(operation(leaves)) if active(y)]
    one = run.constant(outputs[0].new_ones((), dtype=torch.promote_types(outputs[0].dtype, torch.float32)))

    def back(*g: Tensor) -> tuple:
        # The graph is kept: every number that is explained takes a backward pass of its own.
        g_inputs = torch.autograd.grad(ends, leaves, g, retain_graph=True, allow_unused=True)
        of_outputs = sum(_total(y.detach(), g_y) for y, g_y in zip(ends, g, strict=True))
        of_inputs = sum(_total(x.detach(), g_x) for x, g_x in zip(leaves, g_inputs, strict=True))
        return (of_outputs - of_inputs).to(one), *g_inputs

    by_tangent = _Rule.apply(back, tuple(y.detach() for y in ends), (), one, *inputs)
    output_places = [i for i, value in enumerate(results) if active(value)]
    return tree_unflatten(_replaced(results, output_places, by_tangent), result_structure)


def degree(operation: Callable, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float | None:
    """Return the n for which scaling the inputs by 2 scales all outputs by 2^n; None if there is no such n.

    Doubling is exact in floating point, so the tolerance is next to none.

    >>> x, square = torch.tensor([1.0, 3.0], requires_grad=True), lambda inputs: inputs[0].square()
    >>> degree(square, [x], [square([x])]), degree(lambda inputs: inputs[0].exp(), [x], [x.exp()])
    (2.0, None)
    """
    with torch.no_grad():
        results = [value for value in tree_leaves(operation([2 * x for x in inputs])) if isinstance(value, Tensor)]
        of_doubled = [value for value in results if value.is_floating_point() or value.is_complex()]
        if len(of_doubled) != len(outputs):
            return None
        pairs = list(zip(of_doubled, outputs, strict=True))
        return next((n for n in _DEGREES if all(_same(y2, y * 2**n) for y2, y in pairs)), None)


def active(value: object) -> bool:
    """Return whether a value is a tensor that relevance can reach."""
    return isinstance(value, Tensor) and value.requires_grad


def _same(values: Tensor, expected: Tensor) -> bool:
    finite = values.isfinite() & expected.isfinite()
    largest = expected.masked_fill(~finite, 0.0).abs().amax() if expected.numel() else 0.0
    near = (values - expected).abs() <= 2 * torch.finfo(expected.dtype).eps * largest
    return bool((near | (values == expected)).all())  # == holds for equal infinities, whose difference is NaN


def _replaced(values: Sequence[Any], places: Sequence[int], new: Sequence[Any]) -> list:
    """Return the values with new ones in some places."""
    given = dict(zip(places, new, strict=True))
    return [given.get(i, value) for i, value in enumerate(values)]


def _total(x: Tensor, g: Tensor | None) -> Tensor | float:
    """Return the sum of x * g; entries of minus infinity, as in masks, whose g is 0, count as 0."""
    return 0.0 if g is None else (x * g).masked_fill(g == 0, 0.0).sum()
