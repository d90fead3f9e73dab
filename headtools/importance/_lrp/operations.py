"""Which function of torch follows which rule, and the context that makes it so: ``with rules("attnlrp"):``.

A model is not rewritten: a ``TorchFunctionMode`` intercepts every function of torch that it, or a score, calls, and the
table at the end of this file says by its name what runs in its place. To follow one number: ``__torch_function__``
finds the rule, the rule runs the operation and puts a formula of ``rules.py`` in the place of its derivative.

Relevance ends in tensors that can be asked for their gradient: the inputs, and constants (biases, masks, anything added
that does not depend on the input). So constants are replaced by copies that require a gradient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headtools.heads.sites import sites
from headtools.importance._lrp.rules import (
    Layer,
    Rules,
    active,
    alpha_beta,
    alpha_beta_by_rows,
    alpha_beta_sum,
    attention_in_steps,
    by_degree_or_tangent,
    epsilon_rule,
    identity,
    layer_norm,
    layer_norm_unchanged,
    named,
    ratio_matmul,
    ratio_product,
    scaled,
    with_value,
)

# Modules of activation functions, which may consist of several operations, such as GPT-2's: each is one operation.
_ACTIVATION = re.compile("gelu|relu|silu|swish|mish|tanh|sigmoid|softplus|activation", re.IGNORECASE)


@contextmanager
def rules(rule_set: str | Rules = "attnlrp", model: nn.Module | None = None) -> Iterator[Propagation]:
    """Make gradients of what is computed while the context lasts carry relevance: R(x) = x * gradient.

    ``rule_set``: "attnlrp", "cp", "epsilon", "alphabeta", "zplus", "voita", "ratio", "gradient" (no rule) or your own
    ``Rules``. Freeze the weights first (``model.requires_grad_(False)``): the relevance of a product is halved where
    both factors require gradients. ``model``: its activation modules of several operations then count as one, and its
    tables of position biases (T5) as part of attention, not as an input. The context yields an object whose ``inputs``
    (looked up in tables) and ``constants`` (added) are the tensors in which relevance ends. Nothing outside the context
    changes.

    "voita" is the rule of Voita et al.'s code, by sign and bounded; "ratio" is the one that their appendix prints, by
    size and without a bound where terms cancel: in six layers rounding alone can exceed the explained number. For
    commercial use see the note on patents in ``relevance``.

    Raises ``ValueError`` for unknown rules and for torch's ``multi_head_attention_forward``, whose operations are
    hidden.

    >>> layer = nn.Linear(2, 1).requires_grad_(False)
    >>> layer.weight[:], layer.bias[:] = torch.tensor([[3.0, 1.0]]), 1.0
    >>> x = torch.tensor([2.0, 4.0], requires_grad=True)
    >>> with rules("cp") as propagation:
    ...     y = layer(x)
    >>> g_x, g_bias = torch.autograd.grad(y.sum(), [x, *propagation.constants])
    >>> y.item(), (x * g_x).tolist(), (propagation.constants[0] * g_bias).item()
    (11.0, [6.0, 4.0], 1.0)
    """
    propagation = Propagation(named(rule_set))
    if model is not None:
        with suppress(TypeError, ValueError):  # a model without attention
            for site in sites(model):
                for module in site.module.modules():
                    if isinstance(module, nn.Embedding):
                        propagation.position_tables.add(id(module.weight))
    with ExitStack() as stack:
        if propagation.rules.others and model is not None:
            for module in model.modules():
                if _ACTIVATION.search(type(module).__name__) and not [*module.children(), *module.parameters()]:
                    _run_as_one_operation(module, stack)
        yield stack.enter_context(propagation)


def _run_as_one_operation(module: nn.Module, stack: ExitStack) -> None:
    """Let an activation module pass relevance on as R(x) = R(y), until ``stack`` closes: it runs on a detached x."""
    given: list[Tensor] = []  # the x of the call under way

    def before(_module: nn.Module, args: tuple) -> tuple | None:
        given[:] = filter(active, args[:1])
        return (given[0].detach(), *args[1:]) if given else None

    def after(_module: nn.Module, args: tuple, y: Tensor) -> Tensor | None:
        if not given:
            return None
        x = given.pop()
        if y.shape != x.shape:  # no activation function
            return type(module).forward(module, x, *args[1:])
        return identity(x, y)

    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after).remove)


class Propagation(TorchFunctionMode):
    """Runs each operation by its rule, and collects the tensors in which relevance ends.

    ``inputs`` are what was looked up in embedding tables. ``constants`` are the biases and everything else that was
    added to activations without depending on the input, position tables that are plain parameters among them.
    """

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules
        self.inputs: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.position_tables: set[int] = set()  # ids of embedding weights that are no input, such as T5's biases
        self.in_score = False  # set once the model has run

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            raise ValueError("torch's own multi_head_attention_forward hides its operations: use separate projections")
        in_place = name.endswith("_") and not name.endswith("__") and args and active(args[0])
        plain_name = name[:-1] if in_place else name  # add_ -> add
        rule = RULES.get(plain_name) or (
            OTHER_RULES.get(name) or OTHER_RULES.get(plain_name, by_degree_or_tangent)
            if self.rules.others
            else _gradient
        )
        # What no relevance can reach runs as it is, and nothing is stored for it; a lookup is where relevance ends.
        if rule is not _embedding and rule is not _gradient:
            values = [*args, *kwargs.values()]
            for value in (*args, *kwargs.values()):
                values += value if isinstance(value, (list, tuple)) else ()
            rule = rule if any(map(active, values)) else _gradient
        if rule is _gradient:
            return func(*args, **kwargs)
        if not in_place:
            return rule(self, func, *args, **kwargs)
        modules = (torch, F, Tensor)
        out_of_place = next((getattr(module, plain_name) for module in modules if hasattr(module, plain_name)), None)
        if out_of_place is None:
            return func(*args, **kwargs)
        # The rule is applied to a copy of the old value, which its backward pass needs, and the result is written back.
        return args[0].copy_(rule(self, out_of_place, args[0].clone(), *args[1:], **kwargs))

    def constant(self, value: Any) -> Any:
        """Return a constant as a copy that collects its own relevance."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.requires_grad:
            return value
        self.constants.append(value.detach().requires_grad_())
        return self.constants[-1]


# --- linear maps and products: ``run`` is the Propagation, ``func`` the function of torch -----------------------------


def _linear_map(
    run: Propagation, layer: Layer, x: Tensor, weight: Tensor, bias: Tensor | None, matrix: Tensor | None = None
) -> Tensor:
    """Run ``layer(x, weight, bias)``, a linear map; ``matrix`` (out, in) is its weight if it works row by row."""
    if not active(x):
        return layer(x, weight, bias)
    if run.rules.linear == "ratio" and bias is not None:  # R(y) goes to x as if the map had no bias
        with torch.no_grad():
            y = layer(x, weight, bias)
        return identity(layer(x, weight, None), y)
    bias = run.constant(bias.detach() if isinstance(bias, nn.Parameter) else bias)
    if run.rules.linear != "alphabeta":
        y = layer(x, weight, bias)
        return epsilon_rule(y, run.rules.epsilon) if run.rules.linear == "epsilon" else y
    if matrix is None:
        return alpha_beta(layer, x, weight.detach(), bias, run.rules.alpha)
    with torch.no_grad():
        y = layer(x, weight, bias)
    return alpha_beta_by_rows(y, x, matrix.detach(), bias, run.rules.alpha)


def _linear(
    run: Propagation, func: Callable, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **more: Any
) -> Tensor:
    matrix = weight if func.__name__ == "linear" else None
    return _linear_map(run, lambda x, w, b: func(x, w, b, *args, **more), input, weight, bias, matrix)


def _addmm(run: Propagation, func: Callable, bias: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    names = ("mat1", "mat2") if func.__name__ == "addmm" else ("batch1", "batch2")
    x, y, *args = *args, *(kwargs.pop(name) for name in names[len(args) :])
    if active(x) and active(y) and run.rules.others:
        x, y = scaled(x, 0.5), scaled(y, 0.5)
    elif active(x) and y.dim() == 2 and not args and not kwargs:
        return _linear_map(run, lambda x, w, b: x @ w if b is None else func(b, x, w), x, y, bias, y.T)
    return func(run.constant(bias) if active(x) or active(y) else bias, x, y, *args, **kwargs)


def _product(run: Propagation, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
    if len(args) == 2 and isinstance(args[1], (list, tuple)):  # einsum's operands in a list
        args = (args[0], *args[1])
    factors = [i for i, value in enumerate(args) if active(value)]
    if not run.rules.others or not factors:
        return func(*args, **kwargs)
    if len(factors) > 1 and run.rules.attention == "ratio":
        ratio = {"mul": ratio_product, "multiply": ratio_product, "matmul": ratio_matmul, "bmm": ratio_matmul}
        if func.__name__ not in ratio:
            raise ValueError(f"the ratio rule knows products by mul, matmul and bmm, not by {func.__name__}")
        return ratio[func.__name__](*args)
    if len(factors) > 1:  # the gradient would give all of R to each of them
        return func(*(scaled(x, 1 / len(factors)) if i in factors else x for i, x in enumerate(args)), **kwargs)
    others = [i for i, value in enumerate(args) if i != factors[0] and isinstance(value, Tensor)]
    if func.__name__ in ("mul", "multiply") or len(others) != 1:
        return func(*args, **kwargs)
    (x_index,), (w_index,) = factors, others

    def layer(x: Tensor, w: Tensor | None, _bias: Tensor | None) -> Tensor:
        operands = list(args)
        operands[x_index] = x
        operands[w_index] = args[w_index].to(x.dtype) if w is None else w
        return func(*operands, **kwargs)

    x, w = args[x_index], args[w_index]
    # In x @ W the activations come first, in maps @ values the maps, which are constant here.
    if x_index < w_index:  # activations times weights, a linear layer
        return _linear_map(run, layer, x, w, None)
    # attention weights (held constant, or x would not be the only factor) times values
    return alpha_beta(layer, x, w, None, run.rules.alpha) if run.rules.sums else func(*args, **kwargs)


# --- attention --------------------------------------------------------------------------------------------------------


def _attention(
    run: Propagation, func: Callable, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
) -> Tensor:
    if not run.rules.others and run.rules.attention == "through":
        return func(query, key, value, *args, **kwargs)
    args = tuple(x.detach() if active(x) else x for x in args)  # a position bias in the mask
    kwargs = {name: x.detach() if active(x) else x for name, x in kwargs.items()}
    if run.rules.attention == "ratio":
        with torch.no_grad():
            out = func(query, key, value, *args, **kwargs)
        steps = {"matmul": ratio_matmul, "softmax": lambda scores: identity(scores, scores.detach().softmax(-1))}
        return identity(attention_in_steps(query, key, value, *args, **kwargs, **steps), out)
    if run.rules.attention == "through":
        # Two products, each of which halves: 1/2 for the values, 1/4 for the queries and for the keys.
        fractions = ((query, 0.25), (key, 0.25), (value, 0.5))
        return func(*(scaled(x, fraction) if active(x) else x for x, fraction in fractions), *args, **kwargs)
    query, key = query.detach(), key.detach()
    if not (run.rules.sums and active(value)):
        return func(query, key, value, *args, **kwargs)

    def layer(v: Tensor, _weight: Tensor | None, _bias: Tensor | None) -> Tensor:
        def cast(x: Any) -> Any:  # queries, keys and an additive mask must have the type of the values
            return x.to(v.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        return func(cast(query), cast(key), v, *map(cast, args), **{name: cast(x) for name, x in kwargs.items()})

    return alpha_beta(layer, value, None, None, run.rules.alpha)


def _softmax(run: Propagation, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if run.in_score and run.rules.others:  # probabilities that are explained, not attention weights
        return by_degree_or_tangent(run, func, input, *args, **kwargs)
    if run.rules.attention == "ratio":
        return identity(input, func(input.detach(), *args, **kwargs))
    return func(input.detach() if run.rules.attention == "constant" else input, *args, **kwargs)


# --- sums, and whatever brings constants in ---------------------------------------------------------------------------


def _sum(run: Propagation, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
    # A number or a constant tensor is added to activations: it takes its share, as a bias does.
    x = a if active(a) else b
    a = run.constant(a if isinstance(a, Tensor) else x.new_tensor(a))
    b = run.constant(b if isinstance(b, Tensor) else x.new_tensor(b))
    if run.rules.sums and func.__name__ == "add" and not kwargs:
        return alpha_beta_sum(a, b, run.rules.alpha)
    return func(a, b, **kwargs)


def _cat(run: Propagation, func: Callable, tensors: Collection[Tensor], *args: Any, **kwargs: Any) -> Tensor:
    return func([run.constant(value) for value in tensors], *args, **kwargs)


def _fill(run: Propagation, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
    """Run masked_fill or where; a number that is filled in collects its own relevance."""
    like = next((value for value in args if active(value)), None)
    if like is None or kwargs:
        return by_degree_or_tangent(run, func, *args, **kwargs)
    numbers = (int, float)
    args = tuple(like.new_tensor(x) if isinstance(x, numbers) and not isinstance(x, bool) else x for x in args)
    return func(*map(run.constant, args))


def _setitem(run: Propagation, func: Callable, x: Tensor, index: Any, value: Any) -> None:
    if active(x) and not active(value):
        value = run.constant(torch.as_tensor(value, dtype=x.dtype, device=x.device))
    func(x, index, value)


def _embedding(run: Propagation, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
    out = func(*args, **kwargs)
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    if id(weight) in run.position_tables:  # what it gives is part of the scores of attention
        return out
    run.inputs.append(out.detach().requires_grad_())
    return run.inputs[-1]


# --- normalisations, activation functions, divisions ------------------------------------------------------------------


def _layer_norm(
    run: Propagation, func: Callable, input: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Tensor:
    if not run.rules.others:
        return func(input, shape, weight, run.constant(bias), eps)
    unchanged = run.rules.sums or run.rules.linear == "ratio"
    if unchanged:
        return layer_norm_unchanged(input, tuple(shape), weight, bias, eps)
    return layer_norm(input, tuple(shape), weight, run.constant(bias), eps)


def _elementwise(_run: Propagation, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    if not active(input):
        return func(input, *args, **kwargs)
    in_place = kwargs.pop("inplace", False)
    out = identity(input.clone() if in_place else input, func(input.detach(), *args, **kwargs))
    return input.copy_(out) if in_place else out


def _quotient(_run: Propagation, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
    return func(a, b.detach() if active(b) else b, **kwargs)


def _reversed_quotient(_run: Propagation, func: Callable, x: Tensor, a: Any) -> Tensor:
    # The divisor of a / x is held constant, and a is no activation: no relevance passes.
    return func(x.detach(), a)


def _power(run: Propagation, func: Callable, x: Any, *args: Any, **kwargs: Any) -> Tensor:
    n = -1 if func.__name__ != "pow" else args[0] if args else kwargs.get("exponent")
    if not active(x) or not isinstance(n, (int, float)):
        return by_degree_or_tangent(run, func, x, *args, **kwargs)
    # x^n has the gradient n x^(n-1), so x gets n times R: it is divided by n. A divisor is held constant.
    return func(scaled(x, 1 / n) if n > 0 else x.detach(), *args, **kwargs)


def _cosine(run: Propagation, func: Callable, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Run a cosine as the product of two vectors, each divided by its length, which is held constant."""
    y = func(x1.detach(), x2.detach(), dim, eps)
    fraction = 1 / (active(x1) + active(x2))
    a, b = (scaled(x, fraction) if active(x) else x for x in torch.broadcast_tensors(x1, x2))
    a, b = (x / x.detach().norm(dim=dim, keepdim=True).clamp_min(eps) for x in (a, b))
    return with_value(y, (a * b).sum(dim))


def _gradient(_run: Propagation, func: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run a linear operation, whose gradient is its rule."""
    return func(*args, **kwargs)


# --- the table --------------------------------------------------------------------------------------------------------


def _by_name(rules: dict[Callable, str]) -> dict[str, Callable]:
    return {name: rule for rule, names in rules.items() for name in names.split()}


RULES = _by_name(  # under every set of rules
    {
        _sum: "add sub rsub __rsub__",
        _linear: "linear conv1d conv2d conv3d",
        _product: "mul multiply matmul bmm mm mv dot einsum",
        _addmm: "addmm baddbmm",
        _embedding: "embedding embedding_bag",
        _cat: "cat concat stack hstack vstack",
        _softmax: "softmax special_softmax",
        _layer_norm: "layer_norm",
        _attention: "scaled_dot_product_attention",
    }
)
OTHER_RULES = _by_name(  # plain gradients under Rules(others=False)
    {
        _elementwise: """
            relu relu6 gelu silu tanh sigmoid leaky_relu elu selu celu softplus mish hardtanh hardswish hardsigmoid
            log_sigmoid softsign clamp clip clamp_min clamp_max
            rms_norm normalize group_norm instance_norm batch_norm""",
        _quotient: "div divide true_divide",
        _reversed_quotient: "__rdiv__ __rtruediv__",
        _power: "rsqrt reciprocal pow",
        _fill: "masked_fill where",
        _setitem: "__setitem__",
        _cosine: "cosine_similarity",
        _gradient: """
            view view_as reshape transpose permute t movedim flatten unflatten squeeze unsqueeze expand expand_as
            contiguous __getitem__ __get__ split chunk unbind narrow select index_select gather repeat repeat_interleave
            roll flip tril triu to type type_as float double half bfloat16 clone dropout neg sum mean abs max min amax
            amin topk sort _grouped_mm copy_ requires_grad_ detach_ zero_ size dim numel detach""",
    }
)
