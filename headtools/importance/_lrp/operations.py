"""Which rule each operation follows: a mode that intercepts the operations of a model (see ``rules``).

Requirements:

1. Models are not rewritten: every operation of torch that a model, or a score, calls is intercepted by name.
2. Relevance ends in tensors that can be asked for their gradient: the inputs, and constants (biases, masks, anything
   added that does not depend on the input). So constants are replaced by copies that require a gradient.
3. Operations that no relevance can reach (``active``) run as they are, and nothing is stored for them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headtools.importance._lrp.functions import (
    alpha_beta,
    alpha_beta_by_rows,
    alpha_beta_sum,
    identity,
    layer_norm,
    ratio_attention,
    ratio_matmul,
    ratio_product,
    scale_relevance,
    stabilised,
)
from headtools.importance._lrp.rule_set import Rules
from headtools.importance._lrp.tangent import shared_by_tangent

# Operations intercepted under every set of rules: their name -> the method of ``Propagation`` that runs them
_ALWAYS = {
    **dict.fromkeys(("add", "sub", "rsub", "__rsub__"), "_sum"),
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), "_linear"),
    **dict.fromkeys(("mul", "multiply", "matmul", "bmm", "mm", "mv", "dot", "einsum"), "_product"),
    **dict.fromkeys(("addmm", "baddbmm"), "_addmm"),
    **dict.fromkeys(("embedding", "embedding_bag"), "_embedding"),
    **dict.fromkeys(("cat", "concat", "stack", "hstack", "vstack"), "_cat"),
    **dict.fromkeys(("softmax", "special_softmax"), "_softmax"),
    "layer_norm": "_layer_norm",
    "scaled_dot_product_attention": "_attention",
}
_ACTIVATIONS = (
    "relu",
    "relu6",
    "gelu",
    "silu",
    "tanh",
    "sigmoid",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "softplus",
    "mish",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "log_sigmoid",
    "softsign",
    "clamp",
    "clip",
    "clamp_min",
    "clamp_max",
)
_NORMS = ("rms_norm", "normalize", "group_norm", "instance_norm", "batch_norm")  # each scales its input
# Operations that are plain gradients under ``Rules(others=False)``
_OTHERS = {
    **dict.fromkeys(_ACTIVATIONS + _NORMS, "_elementwise"),
    **dict.fromkeys(("div", "divide", "true_divide"), "_quotient"),
    **dict.fromkeys(("__rdiv__", "__rtruediv__"), "_reversed_quotient"),
    **dict.fromkeys(("rsqrt", "reciprocal", "pow"), "_power"),
    **dict.fromkeys(("masked_fill", "where"), "_fill"),
    "__setitem__": "_setitem",
    "cosine_similarity": "_cosine",
}
# Linear operations, whose gradient is their rule. How any operation named nowhere scales is tested where it runs
# (tangent.py).
_LINEAR = {
    "view",
    "view_as",
    "reshape",
    "transpose",
    "permute",
    "t",
    "movedim",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "expand",
    "expand_as",
    "contiguous",
    "__getitem__",
    "__get__",
    "split",
    "chunk",
    "unbind",
    "narrow",
    "select",
    "index_select",
    "gather",
    "repeat",
    "repeat_interleave",
    "roll",
    "flip",
    "tril",
    "triu",
    "to",
    "type",
    "type_as",
    "float",
    "double",
    "half",
    "bfloat16",
    "clone",
    "dropout",
    "neg",
    "sum",
    "mean",
    "abs",
    "max",
    "min",
    "amax",
    "amin",
    "topk",
    "sort",
    "_grouped_mm",
    "copy_",
    "requires_grad_",
    "detach_",
    "zero_",
    "size",
    "dim",
    "numel",
    "detach",
}


class Propagation(TorchFunctionMode):
    """Runs each operation by its rule, and collects the tensors in which relevance ends.

    ``inputs`` are what was looked up in embedding tables. ``constants`` are the biases and everything else that was
    added to activations without depending on the input, position tables that are plain parameters among them.
    ``tables`` are the ids of embedding weights that are not an input (T5's position bias).
    """

    def __init__(self, rules: Rules, tables: Collection[int] = ()) -> None:
        super().__init__()
        self.rules, self.tables = rules, tables
        self.methods = _ALWAYS | _OTHERS if rules.others else _ALWAYS
        self.inputs: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.in_score = False  # set once the model has run

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            raise ValueError("torch's own multi_head_attention_forward hides its operations: use separate projections")
        in_place = name.endswith("_") and not name.endswith("__") and args and active(args[0])
        plain_name = name[:-1] if in_place else name  # add_ -> add
        if plain_name not in self.methods and (not self.rules.others or not _LINEAR.isdisjoint((name, plain_name))):
            return func(*args, **kwargs)
        handler = getattr(self, self.methods.get(plain_name, "_without_rule"))
        if not in_place:
            return handler(func, *args, **kwargs)
        modules = (torch, F, Tensor)
        out_of_place = next((getattr(module, plain_name) for module in modules if hasattr(module, plain_name)), None)
        if out_of_place is None:
            return func(*args, **kwargs)
        # The rule is applied to a copy of the old value, which its backward pass needs, and the result is written back.
        return args[0].copy_(handler(out_of_place, args[0].clone(), *args[1:], **kwargs))

    def constant(self, value: Any) -> Any:
        """Return a constant as a copy that collects its own relevance."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.requires_grad:
            return value
        self.constants.append(value.detach().requires_grad_())
        return self.constants[-1]

    def _without_rule(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        return shared_by_tangent(func, args, kwargs, self._new_one)

    def _new_one(self, like: Tensor) -> Tensor:
        """Return a new constant 1, which collects the relevance that no input of an operation gets."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        return self.constant(torch.ones((), dtype=dtype, device=like.device))

    def _embedding(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        out = func(*args, **kwargs)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        # A table of position biases (T5) is no input: what it gives is part of the scores.
        if id(weight) in self.tables:
            return out
        self.inputs.append(out.detach().requires_grad_())
        return self.inputs[-1]

    def _weighted(
        self, layer: Callable, x: Tensor, weight: Tensor, bias: Tensor | None, matrix: Tensor | None = None
    ) -> Tensor:
        """Run ``layer(x, weight, bias)``, a linear map; ``matrix`` (out, in) is its weight if it works row by row."""
        if not active(x):
            return layer(x, weight, bias)
        rules = self.rules
        if rules.linear == "ratio" and bias is not None:  # R(y) goes to x as if the map had no bias
            without_bias = self._weighted(layer, x, weight, None, matrix)
            with torch.no_grad():
                y = layer(x, weight, bias)
            return identity(without_bias, y)
        bias = self.constant(bias.detach() if isinstance(bias, nn.Parameter) else bias)
        if rules.linear == "alphabeta":
            given = (x, bias, weight.detach(), layer, rules.alpha)
            return alpha_beta(*given) if matrix is None else alpha_beta_by_rows(*given, matrix.detach())
        y = layer(x, weight, bias)
        return stabilised(y, rules.epsilon) if rules.linear == "epsilon" else y

    def _linear(
        self, func: Callable, input: Tensor, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        matrix = weight if func.__name__ == "linear" else None
        return self._weighted(lambda x, w, b: func(x, w, b, *args, **kwargs), input, weight, bias, matrix)

    def _addmm(self, func: Callable, bias: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        names = ("mat1", "mat2") if func.__name__ == "addmm" else ("batch1", "batch2")
        x, y, *args = *args, *(kwargs.pop(name) for name in names[len(args) :])
        if active(x) and active(y) and self.rules.others:
            x, y = scale_relevance(x, 0.5), scale_relevance(y, 0.5)
        elif active(x) and y.dim() == 2 and not args and not kwargs:
            return self._weighted(lambda x, w, b: x @ w if b is None else func(b, x, w), x, y, bias, y.T)
        return func(self.constant(bias) if active(x) or active(y) else bias, x, y, *args, **kwargs)

    def _product(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 2 and isinstance(args[1], (list, tuple)):  # einsum's operands in a list
            args = (args[0], *args[1])
        factors = [i for i, value in enumerate(args) if active(value)]
        if not self.rules.others or not factors:
            return func(*args, **kwargs)
        if len(factors) > 1 and self.rules.attention == "ratio":
            ratio = {"mul": ratio_product, "multiply": ratio_product, "matmul": ratio_matmul, "bmm": ratio_matmul}
            if func.__name__ not in ratio:
                raise ValueError(f"the ratio rule knows products by mul, matmul and bmm, not by {func.__name__}")
            return ratio[func.__name__](*args)
        if len(factors) > 1:  # the gradient would give all of R to each of them
            scaled = [scale_relevance(x, 1 / len(factors)) if i in factors else x for i, x in enumerate(args)]
            return func(*scaled, **kwargs)
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
            return self._weighted(layer, x, w, None)
        # attention weights (held constant, or x would not be the only factor) times values
        return alpha_beta(x, None, w, layer, self.rules.alpha) if self.rules.sums else func(*args, **kwargs)

    def _attention(
        self, func: Callable, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        if not self.rules.others and self.rules.attention == "through":
            return func(query, key, value, *args, **kwargs)
        args = tuple(x.detach() if active(x) else x for x in args)  # a position bias in the mask
        kwargs = {name: x.detach() if active(x) else x for name, x in kwargs.items()}
        if self.rules.attention == "ratio":
            with torch.no_grad():
                out = func(query, key, value, *args, **kwargs)
            return identity(ratio_attention(query, key, value, *args, **kwargs), out)
        if self.rules.attention == "through":
            # Two products, each of which halves: 1/2 for the values, 1/4 for the queries and for the keys.
            fractions = ((query, 0.25), (key, 0.25), (value, 0.5))
            scaled = [scale_relevance(x, fraction) if active(x) else x for x, fraction in fractions]
            return func(*scaled, *args, **kwargs)
        query, key = query.detach(), key.detach()
        if not (self.rules.sums and active(value)):
            return func(query, key, value, *args, **kwargs)

        def layer(v: Tensor, _weight: Tensor | None, _bias: Tensor | None) -> Tensor:
            def cast(x: Any) -> Any:  # queries, keys and an additive mask must have the type of the values
                return x.to(v.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

            cast_kwargs = {name: cast(x) for name, x in kwargs.items()}
            return func(cast(query), cast(key), v, *map(cast, args), **cast_kwargs)

        return alpha_beta(value, None, None, layer, self.rules.alpha)

    def _softmax(self, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.in_score and self.rules.others:  # probabilities that are explained, not attention weights
            return self._without_rule(func, input, *args, **kwargs)
        if self.rules.attention == "ratio" and active(input):
            return identity(input, func(input.detach(), *args, **kwargs))
        if self.rules.attention == "constant":
            input = input.detach()
        return func(input, *args, **kwargs)

    def _sum(self, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
        if not active(a) and not active(b):
            return func(a, b, **kwargs)
        # A number or a constant tensor is added to activations: it takes its share, as a bias does.
        x = a if active(a) else b
        a, b = (value if isinstance(value, Tensor) else x.new_tensor(value) for value in (a, b))
        a, b = (value if active(value) else self.constant(value) for value in (a, b))
        if self.rules.sums and func.__name__ == "add" and not kwargs:
            return alpha_beta_sum(a, b, self.rules.alpha)
        return func(a, b, **kwargs)

    def _cat(self, func: Callable, tensors: Collection[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if any(active(value) for value in tensors):
            tensors = [value if active(value) else self.constant(value) for value in tensors]
        return func(tensors, *args, **kwargs)

    def _layer_norm(
        self, func: Callable, input: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        if not active(input):
            return func(input, shape, weight, bias, eps)
        bias = self.constant(bias)
        if not self.rules.others:
            return func(input, shape, weight, bias, eps)
        return layer_norm(input, tuple(shape), weight, bias, eps, self.rules.sums or self.rules.linear == "ratio")

    def _elementwise(self, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not active(input):
            return func(input, *args, **kwargs)
        in_place = kwargs.pop("inplace", False)
        out = identity(input.clone() if in_place else input, func(input.detach(), *args, **kwargs))
        return input.copy_(out) if in_place else out

    def _quotient(self, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
        return func(a, b.detach() if active(b) else b, **kwargs)

    def _reversed_quotient(self, func: Callable, x: Tensor, a: Any) -> Tensor:
        # The divisor of a / x is held constant, and a is no activation: no relevance passes.
        return func(x.detach(), a)

    def _power(self, func: Callable, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        n = -1 if func.__name__ != "pow" else args[0] if args else kwargs.get("exponent")
        if not active(x) or not isinstance(n, (int, float)):
            return self._without_rule(func, x, *args, **kwargs)
        # x^n has the gradient n x^(n-1), so x gets n times R: it is divided by n. A divisor is held constant.
        return func(scale_relevance(x, 1 / n) if n > 0 else x.detach(), *args, **kwargs)

    def _cosine(self, func: Callable, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
        """Run a cosine as the product of two vectors, each divided by its length, which is held constant."""
        y = func(x1.detach(), x2.detach(), dim, eps)
        fraction = 1 / max(active(x1) + active(x2), 1)
        a, b = (scale_relevance(x, fraction) if active(x) else x for x in torch.broadcast_tensors(x1, x2))
        a, b = (x / x.detach().norm(dim=dim, keepdim=True).clamp_min(eps) for x in (a, b))
        product = (a * b).sum(dim)
        return y + (product - product.detach())  # the value of y, to the last bit, with the gradient of the product

    def _fill(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """Run masked_fill or where; a number that is filled in collects its own relevance."""
        like = next((value for value in args if active(value)), None)
        if like is None or kwargs:
            return self._without_rule(func, *args, **kwargs)
        numbers = (int, float)
        args = tuple(like.new_tensor(x) if isinstance(x, numbers) and not isinstance(x, bool) else x for x in args)
        return func(*map(self.constant, args))

    def _setitem(self, func: Callable, x: Tensor, index: Any, value: Any) -> None:
        if active(x) and not active(value):
            value = self.constant(torch.as_tensor(value, dtype=x.dtype, device=x.device))
        func(x, index, value)


def active(value: object) -> bool:
    """Tell whether a value is a tensor that relevance can reach."""
    return isinstance(value, Tensor) and value.requires_grad
