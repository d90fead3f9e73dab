"""Which rule an operation goes through: a mode that sees the operations of a model go by (see ``rules``)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headtools.importance._lrp.functions import (
    alpha_beta,
    alpha_beta_sum,
    by_rows,
    identity,
    layer_norm,
    share,
    stabilised,
)
from headtools.importance._lrp.operation_names import ALWAYS, LINEAR, OTHERS
from headtools.importance._lrp.ratio_rule import ratio_attention, ratio_matmul, ratio_product
from headtools.importance._lrp.rule_set import Rules
from headtools.importance._lrp.tangent import shared_by_tangent

WIDE = 8  # a map that writes so many times more numbers than it reads is a vocabulary: most of its rows have no g


class Propagation(TorchFunctionMode):
    """Sends each operation through its rule, and keeps what the relevance ends in.

    ``inputs`` are the tensors that came in: what was looked up in embedding tables. ``constants`` are the biases and
    everything else that was added to activations without depending on the input, position tables that are plain
    parameters among them. ``tables`` are weights of tables that are no input (T5's position bias).
    """

    def __init__(self, rules: Rules, tables: Collection[int] = ()) -> None:
        super().__init__()
        self.rules, self.tables = rules, tables
        self.inputs: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.in_score = False  # set once the model has run

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        if name == "multi_head_attention_forward":
            raise ValueError("torch's own multi_head_attention_forward hides its operations: use separate projections")
        handler = self._handler(name)
        if handler is not None:
            return handler(func, *args, **kwargs)
        in_place = name.endswith("_") and not name.endswith("__") and args and active(args[0])
        plain = name[:-1] if in_place else name
        handler = self._handler(plain)
        if handler is None:
            if not self.rules.others or not LINEAR.isdisjoint((name, plain)):
                return func(*args, **kwargs)
            handler = self._without_rule
        if not in_place:
            return handler(func, *args, **kwargs)
        outside = next((getattr(where, plain) for where in (torch, F, Tensor) if hasattr(where, plain)), None)
        if outside is None:
            return func(*args, **kwargs)
        return args[0].copy_(handler(outside, args[0].clone(), *args[1:], **kwargs))  # the rule sees what was there

    def _handler(self, name: str) -> Callable | None:
        method = ALWAYS.get(name) or (OTHERS.get(name) if self.rules.others else None)
        return None if method is None else getattr(self, method)

    def constant(self, value: Any) -> Any:
        """Return a constant as a tensor that collects its own relevance."""
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.requires_grad:
            return value
        self.constants.append(value.detach().requires_grad_())
        return self.constants[-1]

    def _without_rule(self, func: Callable, *args: Any, **kwargs: Any) -> Any:
        return shared_by_tangent(func, args, kwargs, self._one)

    def _one(self, like: Tensor) -> Tensor:
        """Return a 1 that keeps what no input of an operation gets."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.constants.append(torch.ones((), dtype=dtype, device=like.device).requires_grad_())
        return self.constants[-1]

    def _embedding(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        out = func(*args, **kwargs)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if id(weight) in self.tables:
            return out
        self.inputs.append(out.detach().requires_grad_())
        return self.inputs[-1]

    def _weighted(
        self, whole: Callable, x: Tensor, weight: Tensor, bias: Tensor | None, matrix: Tensor | None = None
    ) -> Tensor:
        """Run a map with a weight; ``matrix`` (out, in) says that it works row by row."""
        if not active(x):
            return whole(x, weight, bias)
        rules = self.rules
        if rules.linear == "ratio" and bias is not None:  # the whole with its bias, shared out as if it had none
            plain = self._weighted(whole, x, weight, None, matrix)
            with torch.no_grad():
                y = whole(x, weight, bias)
            return identity(plain, y)
        bias = self.constant(bias.detach() if isinstance(bias, nn.Parameter) else bias)
        if rules.linear == "alphabeta":
            if matrix is None:
                return alpha_beta(x, bias, weight.detach(), whole, rules.alpha)
            with torch.no_grad():
                y = whole(x, weight, bias)
            return by_rows(x, bias, matrix.detach(), y, rules.alpha)
        if matrix is not None and len(matrix) >= WIDE * matrix.shape[1] and not matrix.requires_grad:
            with torch.no_grad():
                y = whole(x, weight, bias)
            y = by_rows(x, bias, matrix, y, None)
        else:
            y = whole(x, weight, bias)
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
            x, y = share(x, 0.5), share(y, 0.5)
        elif active(x) and y.dim() == 2 and not args and not kwargs:
            return self._weighted(lambda x, w, b: x @ w if b is None else func(b, x, w), x, y, bias, y.T)
        return func(self.constant(bias) if active(x) or active(y) else bias, x, y, *args, **kwargs)

    def _product(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        if len(args) == 2 and isinstance(args[1], (list, tuple)):  # einsum's operands in a list
            args = (args[0], *args[1])
        places = [i for i, value in enumerate(args) if active(value)]
        if not self.rules.others or not places:
            return func(*args, **kwargs)
        if len(places) > 1 and self.rules.attention == "ratio":
            by = {"mul": ratio_product, "multiply": ratio_product, "matmul": ratio_matmul, "bmm": ratio_matmul}
            if func.__name__ not in by:
                raise ValueError(f"the ratio rule knows products by mul, matmul and bmm, not by {func.__name__}")
            return by[func.__name__](*args)
        if len(places) > 1:
            shared = [share(value, 1 / len(places)) if i in places else value for i, value in enumerate(args)]
            return func(*shared, **kwargs)
        others = [i for i, value in enumerate(args) if i != places[0] and isinstance(value, Tensor)]
        if func.__name__ in ("mul", "multiply") or len(others) != 1:
            return func(*args, **kwargs)
        first = places[0] < others[0]  # activations times weights; else weights of attention times values

        def whole(x: Tensor, w: Tensor | None, _bias: Tensor | None) -> Tensor:
            given = list(args)
            given[places[0]] = x
            given[others[0]] = args[others[0]].to(x.dtype) if w is None else w
            return func(*given, **kwargs)

        x, w = args[places[0]], args[others[0]]
        if first:
            return self._weighted(whole, x, w, None)
        return alpha_beta(x, None, w, whole, self.rules.alpha) if self.rules.sums else func(*args, **kwargs)

    def _attention(
        self, func: Callable, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        if not self.rules.others and self.rules.attention == "through":
            return func(query, key, value, *args, **kwargs)
        args = tuple(given.detach() if active(given) else given for given in args)  # a position bias in the mask
        kwargs = {name: given.detach() if active(given) else given for name, given in kwargs.items()}
        if self.rules.attention == "ratio":
            with torch.no_grad():
                out = func(query, key, value, *args, **kwargs)
            return identity(ratio_attention(query, key, value, *args, **kwargs), out)
        if self.rules.attention == "through":
            parts = ((query, 0.25), (key, 0.25), (value, 0.5))
            return func(*(share(t, s) if active(t) else t for t, s in parts), *args, **kwargs)
        query, key = query.detach(), key.detach()
        if not (self.rules.sums and active(value)):
            return func(query, key, value, *args, **kwargs)

        def whole(v: Tensor, _weight: Tensor | None, _bias: Tensor | None) -> Tensor:
            def like(t: Any) -> Any:  # queries, keys and a mask of numbers are as wide as the values
                return t.to(v.dtype) if isinstance(t, Tensor) and t.is_floating_point() else t

            named = {name: like(given) for name, given in kwargs.items()}
            return func(like(query), like(key), v, *map(like, args), **named)

        return alpha_beta(value, None, None, whole, self.rules.alpha)

    def _softmax(self, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.in_score and self.rules.others:  # probabilities that are explained, not weights of attention
            return self._without_rule(func, input, *args, **kwargs)
        if self.rules.attention == "ratio" and active(input):
            return identity(input, func(input.detach(), *args, **kwargs))
        if self.rules.attention == "constant":
            input = input.detach()
        return func(input, *args, **kwargs)

    def _sum(self, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
        if not active(a) and not active(b):
            return func(a, b, **kwargs)
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

    def _one_to_one(self, func: Callable, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not active(input):
            return func(input, *args, **kwargs)
        inside = kwargs.pop("inplace", False)
        out = identity(input.clone() if inside else input, func(input.detach(), *args, **kwargs))
        return input.copy_(out) if inside else out

    def _quotient(self, func: Callable, a: Any, b: Any, **kwargs: Any) -> Tensor:
        return func(a, b.detach() if active(b) else b, **kwargs)

    def _over(self, func: Callable, x: Tensor, a: Any) -> Tensor:
        return func(x.detach(), a)

    def _power(self, func: Callable, x: Any, *args: Any, **kwargs: Any) -> Tensor:
        n = -1 if func.__name__ != "pow" else args[0] if args else kwargs.get("exponent")
        if not active(x) or not isinstance(n, (int, float)):
            return self._without_rule(func, x, *args, **kwargs)
        return func(share(x, 1 / n) if n > 0 else x.detach(), *args, **kwargs)

    def _cosine(self, func: Callable, x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
        """Run a cosine as the product of two vectors, each divided by its length, which is held constant."""
        y = func(x1.detach(), x2.detach(), dim, eps)
        part = 1 / max(active(x1) + active(x2), 1)
        a, b = (share(x, part) if active(x) else x for x in torch.broadcast_tensors(x1, x2))
        a, b = (x / x.detach().norm(dim=dim, keepdim=True).clamp_min(eps) for x in (a, b))
        product = (a * b).sum(dim)
        return y + (product - product.detach())

    def _filled(self, func: Callable, *args: Any, **kwargs: Any) -> Tensor:
        """Run masked_fill or where; a number that is put in keeps its own relevance."""
        like = next((value for value in args if active(value)), None)
        if like is None or kwargs:
            return self._without_rule(func, *args, **kwargs)
        numbers = (int, float)
        args = tuple(like.new_tensor(v) if isinstance(v, numbers) and not isinstance(v, bool) else v for v in args)
        return func(*map(self.constant, args))

    def _written(self, func: Callable, x: Tensor, index: Any, value: Any) -> None:
        if active(x) and not active(value):
            value = self.constant(torch.as_tensor(value, dtype=x.dtype, device=x.device))
        func(x, index, value)


def active(value: object) -> bool:
    """Tell whether a value is a tensor that relevance can reach."""
    return isinstance(value, Tensor) and value.requires_grad
