"""Exercises of lesson 08: who writes an answer, two rules of relevance, a backward pass that shares, one head."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import headtools as ht
from headtools.course.exercises.exercise import (
    Exercise,
    Hint,
    NotTried,
    _empty,
    article,
    call,
    expect,
    same,
    several,
    show,
    tensor,
)
from headtools.organism.toy_decoder import ToyDecoder


def _direct(answer: Any) -> str | None:
    """direct_logit(model, norm, batch, right, wrong): {key: (B, H)}, what heads write of a difference of two logits."""
    for heads, seed in ((2, 0), (4, 1)):
        model = _loud_decoder(heads, seed)
        ids = torch.randint(6, (3, 5), generator=torch.Generator().manual_seed(seed))
        words = {"right": torch.tensor([0, 1, 2]), "wrong": torch.tensor([5, 4, 0])}
        given = {"model": model, "norm": model.last_norm, "batch": {"input_ids": ids}} | words
        got = call(answer, **given)
        if not isinstance(got, Mapping):
            raise Hint(f"A dict is asked for, {{site.key: (B, H)}}, this is {article(got)}.")
        if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
            return "Your function leaves a hook in the model. Remove it when the model has run."
        want = _written(model, ids, **words)
        if set(got) != set(want):
            return f"The keys are {list(got)}; one for each site is asked for, site.key: {list(want)}."
        wrong = {hint: _written(model, ids, **words, mistake=name) for name, hint in _DIRECT_MISTAKES.items()}
        about = {"input_ids": ids} | words
        for key, rows in want.items():
            apart = "These are vectors. Read each with u: the dot product over the features of the stream."
            every = "These are all tokens. The answer is written at the last one: [:, -1]."
            shapes = {(*rows.shape, 8): apart, (3, 5, heads): every}
            value = tensor(got[key], tuple(rows.shape), "(B, H)", about, shapes)
            rule = "What a head writes at the last token, times u: the difference of two words, the gain, one over s."
            expect(value, rows, {hint: parts[key] for hint, parts in wrong.items()}, rule, about)
    return None


_DIRECT_MISTAKES = {
    "scale": "The scale is missing: the norm divides by s, the standard deviation of what it reads.",
    "alone": "Each head is divided by a scale of its own. s belongs to the whole stream, what the norm reads.",
    "mean": "The mean is not taken off. The norm takes it off everything that it reads, so off what a head writes.",
    "gain": "The norm's gain is missing: norm.weight multiplies each feature after the division.",
    "right": "This is the logit of the right word. The difference is asked for: subtract the wrong word's row.",
    "turned": "The sign is turned: right minus wrong.",
    "first": "This is the first token. The answer is written at the last one, [:, -1].",
    "sample": "The standard deviation is over n - 1. A LayerNorm divides by n: unbiased=False.",
    "bias": "The norm's bias is added to every head. It is written by none of them.",
    "through": "Each head is put through the norm by itself, which divides it by a scale of its own and adds the bias. "
    "s belongs to the whole stream, and the bias to no head: work out mean, gain and s by hand.",
}


def _loud_decoder(heads: int, seed: int) -> ToyDecoder:
    """A small decoder with random weights, whose final norm has a gain and a bias that show."""
    model = ToyDecoder(heads=heads, width=8, symbols=6, length=5, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (*model.layers.parameters(), model.last_norm.weight, model.last_norm.bias):
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return model.requires_grad_(False)


def _written(model: ToyDecoder, ids: Tensor, right: Tensor, wrong: Tensor, mistake: str = "") -> dict[tuple, Tensor]:
    """What each head writes of the difference, {key: (B, H)}, or what comes out with one mistake."""
    at, norm, read = 0 if mistake == "first" else -1, model.last_norm, []
    hook = norm.register_forward_pre_hook(lambda _module, args: read.append(args[0][:, at]))
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(ids)
    hook.remove()

    def scale(x: Tensor) -> Tensor:
        return (x.var(-1, unbiased=mistake == "sample", keepdim=True) + norm.eps).sqrt()

    words = model.unembed.weight
    u = words[right] - (0 if mistake == "right" else words[wrong])
    u = (-u if mistake == "turned" else u)[:, None]  # (B, 1, D)
    rows = {}
    for site in ht.sites(model):
        o = ht.contributions(site, seen[site.key].z)[:, at]  # (B, H, D)
        y = o if mistake == "mean" else o - o.mean(-1, keepdim=True)
        y = y if mistake == "gain" else y * norm.weight
        if mistake != "scale":
            y = y / (scale(o) if mistake in ("alone", "through") else scale(read[0])[:, None])
        rows[site.key] = ((y + norm.bias if mistake in ("bias", "through") else y) * u).sum(-1)
    return rows


def _epsilon(answer: Any) -> None:
    """epsilon_rule(x, weight, bias, relevance, epsilon): R of x for R of y = weight x + bias."""
    cases = (
        ([2.0, 1.0], [[3.0, -1.0], [1.0, -4.0]], [2.0, -2.0], [6.0, 3.0], 1.0),
        ([1.0, -2.0, 3.0], [[1.0, 1.0, 2.0], [-2.0, 0.5, -1.0]], [0.5, -0.5], [2.0, 4.0], 0.5),
        ([1.0, 2.0], [[2.0, -1.0], [1.0, 1.0]], [0.0, 1.0], [3.0, 2.0], 0.5),  # the first y is 0
    )
    for case in cases:
        x, weight, bias, relevance = (torch.tensor(part) for part in case[:4])
        given = {"x": x, "weight": weight, "bias": bias, "relevance": relevance, "epsilon": case[4]}
        apart = "These are the messages from each output to each input. Add them up over the outputs."
        got = tensor(call(answer, **given), tuple(x.shape), "(in,)", given, {tuple(weight.shape): apart})
        y = weight @ x + bias
        if not got.isfinite().all():
            raise Hint(
                "There is a division by 0. y is 0 here, and so is its torch.sign: epsilon has to move it all the same, "
                f"upwards.\nSee it for {show(given)}"
            )
        sign = torch.where(y < 0, -1.0, 1.0)

        def shared(below: torch.Tensor, x: torch.Tensor = x, w: torch.Tensor = weight, r: torch.Tensor = relevance):
            return x * (w.T @ (r / below))

        want = shared(y + case[4] * sign)
        rule = "Output k sends input i the part x_i w_ki of it, divided by y_k after epsilon has moved it."
        mistakes = {
            "Epsilon is added to y as it is. A y below zero must move down, away from zero: mind its sign.": (
                shared(y + case[4])
            ),
            "Epsilon is missing: this is the plain ratio rule.": shared(y),
            "The bias is missing below the line. It is part of y, and what is its own goes to nobody.": (
                shared(weight @ x + case[4] * torch.where(weight @ x < 0, -1.0, 1.0))
            ),
            "This is what one unit of x gets. Multiply by x itself.": want / x,
            "The size of y stands below the line, so parts of a negative y change their sign.": (
                shared(y.abs() + case[4])
            ),
            "The weights are missing: a part is the product of an input and its weight.": (
                x * (relevance / (y + case[4] * sign)).sum()
            ),
            "Each input got the same. Share in proportion to the parts x_i w_ki.": (
                torch.full_like(x, float(relevance.sum() / len(x)))
            ),
            "The answer is scaled so that nothing is lost. What epsilon and the bias take is lost here.": (
                want * relevance.sum() / want.sum()
            ),
        }
        expect(got, want, mistakes, rule, given)


def _signs(answer: Any) -> str | None:
    """share_by_sign(terms, relevance, alpha): the messages of one unit under the alpha-beta rule."""
    cases = (
        ([6.0, -1.0], 10.0, 2.0),
        ([3.0, -2.0, 1.0, -6.0], -4.0, 0.5),
        ([1.0, 3.0], 8.0, 2.0),
        ([-1.0, -4.0], 10.0, 0.5),
    )
    for terms, relevance, alpha in cases:
        z = torch.tensor(terms)
        given = {"terms": z, "relevance": relevance, "alpha": alpha}
        got = tensor(call(answer, **given), tuple(z.shape), "(n,)", given)
        if got.isnan().any():
            return f"There is a NaN: with terms of one sign only, the other sum is 0.\nSee it for {show(given)}"
        plus, minus = z.clamp(min=0), z.clamp(max=0)
        both = bool((plus > 0).any() and (minus < 0).any())
        of_plus, of_minus = (part / part.sum() if part.any() else part for part in (plus, minus))
        beta = alpha - 1
        want = (alpha * of_plus - beta * of_minus if both else of_plus + of_minus) * relevance
        rule = "The positive terms share alpha of the relevance in proportion, the negative ones the rest."
        mistakes = {
            "These terms have one sign only. Nothing takes the other part of the relevance, so they get all of it.": (
                (alpha * of_plus - beta * of_minus) * relevance
            ),
            "This shares in proportion to the sum of all terms, where signs cancel. Divide by the sum of each sign.": (
                z / z.sum() * relevance
            ),
            "Mind the sign of the second part: the negative terms share 1 - alpha of the relevance.": (
                (alpha * of_plus + beta * of_minus) * relevance
            ),
            "The negative terms get nothing: this is z+, whatever alpha is.": of_plus * relevance,
            "Both signs share alpha. The two parts must sum to 1.": alpha * (of_plus + of_minus) * relevance,
            "The parts are exchanged: alpha is the part of the positive terms.": (
                (alpha * of_minus - beta * of_plus) * relevance
            ),
            "The relevance is missing: these are fractions of it.": want / relevance,
            "Sizes share here, whatever their sign. Give each sign a sum of its own.": (
                z.abs() / z.abs().sum() * relevance
            ),
            "Terms of one sign got the same. Share in proportion to their size.": (
                (
                    (alpha if both else 1.0) * (z > 0) / max(int((z > 0).sum()), 1)
                    + ((1 - alpha) if both else 1.0) * (z < 0) / max(int((z < 0).sum()), 1)
                )
                * relevance
            ),
        }
        expect(got, want, mistakes, rule, given)
    return None


def _share(answer: Any) -> str | None:
    """Share, whose backward takes g of y = W x + b and gives that of x and of b, by a rule."""
    if not inspect.isclass(answer) or not issubclass(answer, torch.autograd.Function):
        raise Hint(f"The class is asked for, Share, a torch.autograd.Function; this is {article(answer)}.")
    if _empty(answer.backward):
        raise NotTried
    W, b = torch.tensor([[3.0, -1.0], [1.0, -4.0]]), torch.tensor([1.0, -2.0])
    for rule, number in (("epsilon", 0.5), ("alpha-beta", 2.0), ("alpha-beta", 0.5)):
        for x in (torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, -2.0], [3.0, 0.0]])):
            g = torch.ones(len(x), 2) if len(x) == 1 else torch.tensor([[2.0, -1.0], [1.0, 0.5]])
            given = {"g": g, "x": x, "W": W, "b": b, "rule": rule, "number": number}
            leaves = [leaf.clone().requires_grad_() for leaf in (x, b)]
            try:
                y = answer.apply(leaves[0], W.clone(), leaves[1], rule, number)
                result = torch.autograd.grad(y, leaves, g.clone(), allow_unused=True)
            except NotImplementedError:
                raise NotTried from None
            except Exception as error:
                if "incorrect number of gradients" in str(error):
                    return (
                        "backward returns one thing for each argument of forward: x, W, b, rule, number. Where nothing "
                        "goes back, that is None."
                    )
                raise Hint(f"It stopped with {type(error).__name__}: {error}\nfor {show(given)}") from error
            want = _shared(x, W, b, g, rule, number)
            wrong = {hint: _shared(x, W, b, g, rule, number, name) for name, hint in _SHARE_MISTAKES.items()}
            for i, (name, leaf) in enumerate({"x": x, "b": b}.items()):
                if result[i] is None:
                    return f"Nothing goes back to {name}: it stands at its own place among what backward returns."
                got = tensor(result[i], tuple(leaf.shape), f"like {name}", given)
                if got.isnan().any():
                    return f"There is a NaN in what goes back to {name}. An input of 0 carries no relevance: use ratio."
                mistakes = {hint: values[i] for hint, values in wrong.items() if not same(values[i], want[i])}
                rule_of = f"This is not the g of {name}: its messages, summed, over {name} itself."
                expect(got, want[i], mistakes, rule_of, given)
    return None


_SHARE_MISTAKES = {
    "gradient": "This is the gradient, and so LRP-0, whatever the rule says. Call messages with the rule.",
    "relevance": "This is the relevance. What goes back is g, with R = x g: divide by x.",
    "given": "g is taken for the relevance of y. Make it relevance first: R = y g.",
    "left out": "The bias is in y and no term of it. It is one more term of each unit, beside the x_i w_i.",
    "bare": "The bias is no term here. It is one more term of each unit, beside the x_i w_i.",
    "swapped": "The parts of x and of the bias are exchanged: which column of the terms is the bias?",
}


def _shared(
    x: Tensor, W: Tensor, b: Tensor, g: Tensor, rule: str, number: float, mistake: str = ""
) -> tuple[Tensor, Tensor]:
    """What goes back to x and to b, or with one mistake."""
    if mistake == "gradient":
        return g @ W, g.sum(0)
    bias = torch.zeros_like(b) if mistake in ("bare", "left out") else b
    z = torch.cat([x[:, None] * W, bias.expand(len(x), -1)[..., None]], -1).double()
    y = z.sum(-1, keepdim=True)
    R = {"given": g, "left out": (x @ W.T + b) * g}.get(mistake, y[..., 0] * g)[..., None]
    if rule == "epsilon":
        parts = z / (y + number * torch.where(y < 0, -1.0, 1.0)) * R
    else:
        plus, minus = z.clamp(min=0), z.clamp(max=0)
        P, N = plus.sum(-1, keepdim=True), minus.sum(-1, keepdim=True)
        alpha = torch.where((P > 0) & (N < 0), number, (P > 0).double())
        parts = (alpha * (plus / P).nan_to_num(0.0) + (1 - alpha) * (minus / N).nan_to_num(0.0)) * R
    R_x, R_b = parts[..., :-1].sum(1), parts[..., -1].sum(0)
    if mistake == "swapped":
        R_x, R_b = parts[..., 1:].sum(1), parts[..., 0].sum(0)
    if mistake == "relevance":
        return R_x, R_b
    return (R_x / x).nan_to_num(0.0, 0.0, 0.0), (R_b / b).nan_to_num(0.0, 0.0, 0.0)


def _attention(answer: Any) -> str | None:
    """attention_rule(q, k, v, relevance, fixed): R of queries, keys and values, for R of z."""
    cases = (
        ([[2.0, 0.0, 1.0]], [[1.0, 0, 0], [0, 1.0, 1.0]], [[1.0, 2.0], [3.0, -1.0]], [[2.0, 1.0]]),
        (
            [[1.0, 0.5, 0], [0, -1.0, 2.0]],
            [[1.0, 0, 0], [0, 1.0, 0], [0.5, 0, 1.0]],
            [[1.0, 0.5], [2.0, 1.0], [1.0, 3.0]],
            [[1.0, 2.0], [-1.0, 3.0]],
        ),
    )
    for fixed in (True, False):
        for case in cases:
            q, k, v, relevance = map(torch.tensor, case)
            given = {"q": q, "k": k, "v": v, "relevance": relevance, "fixed": fixed}
            got = several(call(answer, **given), 3, "the relevance of q, of k and of v")
            want = _through(q, k, v, relevance, fixed)
            wrong = {hint: _through(q, k, v, relevance, fixed, name) for name, hint in _ATTENTION_MISTAKES.items()}
            for i, name in enumerate("qkv"):
                shape = tuple(given[name].shape)
                value = tensor(got[i], shape, f"like {name}", given)
                if value.isnan().any():
                    return f"There is a NaN in the relevance of {name}.\nSee it for {show(given)}"
                mistakes = {hint: parts[i] for hint, parts in wrong.items() if not same(parts[i], want[i])}
                what = "the map held fixed" if fixed else "softmax followed by its gradient"
                expect(value, want[i], mistakes, f"This is not the relevance of {name}, with {what}.", given)
    return None


_ATTENTION_MISTAKES = {
    "half": "Values get half where the map is fixed. It is a constant then, no second factor, and all goes to them.",
    "free": "The map is to be held fixed here: queries and keys get nothing, values everything.",
    "fixed": "fixed is False here, and the map is held fixed all the same.",
    "double": "Nothing is halved. Each product of two activations gives half to each factor: A v, and q k.",
    "once": "Queries and keys get too much: q k is a second product, which halves once more.",
    "weights": "The values share by the weights alone. A term of z is a weight times a value, and R = v g.",
    "scale": "The scores are not divided by the root of the width of a query.",
    "back": "The root is missing on the way back: scores are q k over the root of the width.",
    "through": "Softmax passes all relevance on here. Take away each weight's part of the row's sum.",
    "queries": "The sum that softmax takes away runs over the keys of one query, the last axis.",
    "given": "relevance is taken for g. R(z) = z g: divide by z first.",
}


def _through(
    q: Tensor, k: Tensor, v: Tensor, relevance: Tensor, fixed: bool, mistake: str = ""
) -> tuple[Tensor, Tensor, Tensor]:
    """The relevance of queries, keys and values, or what comes out with one mistake."""
    q, k, v, relevance = (part.double() for part in (q, k, v, relevance))
    fixed = {"free": False, "fixed": True}.get(mistake, fixed)
    root = math.sqrt(q.shape[-1])
    A = (q @ k.T / (1 if mistake == "scale" else root)).softmax(-1)
    g = relevance if mistake == "given" else relevance / (A @ v)
    R_v = A.T @ relevance if mistake == "weights" else v * (A.T @ g)
    if fixed:
        return torch.zeros_like(q), torch.zeros_like(k), R_v / 2 if mistake == "half" else R_v
    first = 1 if mistake == "double" else 2
    second = 1 if mistake in ("double", "once") else 2
    R_A = A * (g @ v.T) / first
    back = R_A if mistake == "through" else R_A - A * R_A.sum(0 if mistake == "queries" else -1, keepdim=True)
    back = back / (1 if mistake in ("back", "scale") else root)
    return q * (back @ k) / second, k * (back.T @ q) / second, R_v / first


EXERCISES = (
    Exercise("08.direct", "who writes it", _direct, "direct_logit", ("direct_logit_attribution",)),
    Exercise("08.share", "a backward pass that shares", _share, "Share", ("rules",)),
    Exercise("08.attention", "relevance through one head", _attention, "attention_rule", ("rules",)),
    Exercise("08.epsilon", "the epsilon rule of one layer", _epsilon),
    Exercise("08.signs", "share by sign", _signs),
)
