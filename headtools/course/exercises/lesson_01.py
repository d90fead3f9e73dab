"""Exercises of lesson 01: one head's weights, a layer, its record, the sum of heads, what heads cost, no map at all."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import headtools as ht
from headtools.course.exercises.exercise import (
    Exercise,
    Hint,
    NotTried,
    article,
    call,
    expect,
    expect_number,
    same,
    several,
    show,
    tensor,
)
from headtools.course.exercises.lesson_00 import entered, outputs, tiny_translator


def _softmax(answer: Any) -> str | None:
    """attention_weights(q, k, mask): q (T, d), k (S, d), mask (T, S) True where the query may attend -> (T, S)."""
    q = torch.tensor([[2.0, 0, 0, 0], [0, 1, 0, 1]])
    k = torch.tensor([[1.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 1, 1]])
    masks = [torch.ones(2, 3, dtype=torch.bool), torch.tensor([[True, False, True], [True, True, False]])]
    for mask in masks:
        given = {"q": q, "k": k, "mask": mask}
        got = tensor(call(answer, **given), (2, 3), "(query, key)", given)
        scores = (q @ k.T / math.sqrt(4)).double()
        blocked = scores.masked_fill(~mask, -math.inf)
        want = blocked.softmax(-1)
        rule = "The weights differ from softmax(q kᵀ / √d)."
        if bool(mask.all()) and same(got, torch.full((2, 3), 1 / 3)):
            rule = "All keys get the same weight. Is the mask used upside down? True says that the query may attend."
        elif bool(got.isnan().any()):
            upside_down = " Is the mask used upside down? True says that the query may attend." if mask.all() else ""
            rule = f"There is a NaN in the weights: all keys of a query are masked.{upside_down}"
        elif not same(got.sum(-1), torch.ones(2)):
            rule = f"Each row must sum to 1; yours sum to {_list(got.sum(-1))}."
        mistakes = {
            "The weights are too peaked: divide the scores by the square root of d, the length of a query.": (
                (blocked * 2).softmax(-1)
            ),
            "The scores are divided by d; it is the square root of d.": (blocked / 2).softmax(-1),
            "The scores are divided by the root of the number of queries; d is the length of one query.": (
                (blocked * math.sqrt(2)).softmax(-1)
            ),
            "Each column sums to 1; each row should: a query shares out its attention over the keys.": (
                blocked.softmax(0).nan_to_num()
            ),
            "The mask multiplies the scores, and a score of 0 is no small one. A blocked key needs "
            "a score of minus infinity.": (scores * mask).softmax(-1),
            "The softmax is missing: these are scores, not weights.": blocked,
            "These are products of queries and keys. Still to come: the square root of d, the mask, the softmax.": (
                blocked * 2
            ),
            "The mask comes too late: a row no longer sums to 1. Block the scores, then take the softmax.": (
                scores.softmax(-1) * mask
            ),
            "The mask is not used: a query still attends where mask is False.": scores.softmax(-1),
            "The mask is used upside down: True says that the query may attend.": (
                scores.masked_fill(mask, -math.inf).softmax(-1)
            ),
        }
        expect(got, want, mistakes, rule, given)
    large = {"q": q * 1000, "k": k, "mask": masks[1]}
    got = tensor(call(answer, **large), (2, 3), "(query, key)", large)
    want = (q.double() * 1000 @ k.double().T / 2).masked_fill(~masks[1], -math.inf).softmax(-1)
    if not same(got, want):
        return (
            "Right for small scores, but exp of a large score is infinite. Subtract each row's largest score first, or "
            f"use torch.softmax, which does.\nSee it for {show(large)}"
        )
    return None


def _split(answer: Any) -> None:
    """split_heads(x, heads): (B, T, H*d) -> (B, H, T, d)."""
    for batch, tokens, heads, size in ((1, 3, 2, 2), (2, 3, 4, 2)):
        x = torch.arange(batch * tokens * heads * size, dtype=torch.float32).view(batch, tokens, heads * size)
        given = {"x": x, "heads": heads}
        want = x.view(batch, tokens, heads, size).transpose(1, 2)
        turned = "The shape is (batch, token, head, d); the head should come before the token: exchange two axes."
        turned = {(batch, tokens, heads, size): f"{turned}\nSee it for {show(given)}"}
        got = tensor(call(answer, **given), tuple(want.shape), "(batch, head, token, d)", given, turned)
        rule = "Head 0 of the first token should be its first d numbers, head 1 the next d."
        mistakes = {
            "The shape is right but the numbers are shuffled: view cuts in memory order, and mixes tokens into "
            "heads. First cut the last axis in two, then exchange axes.": x.reshape(want.shape),
            "Each head takes every second number; it should take neighbours: head 0 the first d numbers.": (
                x.view(batch, tokens, size, heads).permute(0, 3, 1, 2)
            ),
            "The heads come in the wrong order: head 0 takes the first d numbers.": want.flip(1),
        }
        expect(got, want, mistakes, rule, given)


def _attention(answer: Any) -> str | None:
    """Attention(d, H), whose forward(X, Y, mask) gives the output, the maps and z."""
    if not inspect.isclass(answer):
        raise Hint(f"The class is asked for, Attention; this is {article(answer)}.")
    draw = torch.Generator().manual_seed(0)
    for batch, length, keys, heads, width in ((1, 3, 3, 2, 4), (2, 3, 4, 2, 8)):
        try:
            layer = answer(width, heads)
            maps = [getattr(layer, name) for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
        except AttributeError as error:
            raise Hint(f"{error}: leave __init__ as it is.") from error
        for part in maps:
            part.weight.data = torch.randint(-2, 3, part.weight.shape, generator=draw) / 2
            part.bias.data = torch.randint(-2, 3, part.bias.shape, generator=draw) / 2
        X, Y = (torch.randn(batch, n, width, generator=draw) for n in (length, keys))
        mask = torch.ones(batch, 1, length, keys, dtype=torch.bool)
        mask[0, :, :, -1] = length == keys  # first nothing is forbidden, then a key
        given = {"X": X, "Y": Y, "mask": mask}
        result = several(call(layer.forward, **given), 3, "out, A, z")
        right = _layer(layer, heads, X, Y, mask)
        shapes = ("(B, T, d)", "(B, H, T, S)", "(B, T, H, d/H)")
        turned = {tuple(right[2].transpose(1, 2).shape): "z has its heads before its tokens: exchange axes 1 and 2."}
        # maps first, since the others follow from them
        for i, name in ((1, "A"), (2, "z"), (0, "the output")):
            wrong = turned if name == "z" and right[2].shape[1] != right[2].shape[2] else {}
            got = tensor(result[i], tuple(right[i].shape), shapes[i], given, wrong)
            if got.isnan().any():
                return f"There is NaN in {name}. Is the mask used upside down? True says that the query may attend."
            kinds = [kind for kind in _LAYER_MISTAKES if kind not in ("keys", "values") or length == keys]
            mistakes = {_LAYER_MISTAKES[kind]: _layer(layer, heads, X, Y, mask, kind)[i] for kind in kinds}
            mistakes = {hint: value for hint, value in mistakes.items() if value.shape == right[i].shape}
            expect(got, right[i], mistakes, f"This is not {name} of the formula.", given)
    return None


_LAYER_MISTAKES = {
    "width": "The scores are divided by the root of d; it is the root of d/H, the width of one head.",
    "plain": "The scores are not divided by the root of the width of a head.",
    "mask": "The mask is not used: a query still attends where it is False.",
    "inverted": "The mask is used upside down: True says that the query may attend.",
    "queries": "The softmax runs over the queries; each query shares out its attention over the keys, the last axis.",
    "keys": "The keys come from X; they come from Y, the tokens that are attended to.",
    "values": "The values come from X; they come from Y, the tokens that are attended to.",
    "cut": "Heads are cut in memory order, which mixes tokens. First cut the last axis in two, then exchange axes.",
    "flat": "z is flattened with its heads before its tokens, which mixes tokens: exchange axes 1 and 2 first.",
    "bare": "The output is z with its heads side by side; the output projection is still to come.",
}


def _layer(
    layer: Any, heads: int, X: torch.Tensor, Y: torch.Tensor, mask: torch.Tensor, kind: str = ""
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a layer of attention gives, or what it gives with one mistake."""
    cut = (lambda x: x.reshape(len(x), heads, x.shape[1], -1)) if kind == "cut" else None
    cut = cut or (lambda x: x.unflatten(-1, (heads, -1)).transpose(1, 2))
    q, k, v = cut(layer.q_proj(X)), cut(layer.k_proj(X if kind == "keys" else Y)), cut(layer.v_proj(Y))
    if kind == "values":
        v = cut(layer.v_proj(X))
    scores = q @ k.mT / {"width": math.sqrt(X.shape[-1]), "plain": 1.0}.get(kind, math.sqrt(q.shape[-1]))
    allowed = torch.ones_like(mask) if kind == "mask" else ~mask if kind == "inverted" else mask
    A = scores.masked_fill(~allowed, -math.inf).softmax(-2 if kind == "queries" else -1)
    z = (A @ v).transpose(1, 2)
    flat = z.transpose(1, 2).reshape(z.shape[0], z.shape[1], -1) if kind == "flat" else z.flatten(2)
    return flat if kind == "bare" else layer.out_proj(flat), A, z


def _record(answer: Any) -> str | None:
    """record(model): a context manager with what each site did, seen[site.key].maps and .z."""
    model, batch = tiny_translator()
    plain = outputs(model, batch)
    with entered(answer, model) as seen:
        inside = outputs(model, batch)
    if not same(inside, plain, 1e-6):
        return "Inside the block the model computes something else. A hook that only looks returns nothing."
    with ht.record(model) as right:
        outputs(model, batch)
    if not isinstance(seen, Mapping):
        raise Hint(f"Yield seen, the dict with an entry for each site; this is {article(seen)}.")
    if seen and not any(vars(entry) for entry in seen.values() if hasattr(entry, "__dict__")):
        raise NotTried
    for site in ht.sites(model):
        if site.key not in seen:
            return f"There is no entry {site.key}. Is there a hook for each site, and is the key site.key?"
        for name, shape in (("maps", "(B, H, T, S)"), ("z", "(B, T, H, d/H)")):
            got, want = getattr(seen[site.key], name, None), getattr(right[site.key], name)
            where = f"seen[{site.key}].{name}"
            if got is None:
                others = [other for other in seen if getattr(seen[other], name, None) is not None]
                if len(others) == 1:
                    return (
                        f"Only seen[{others[0]}] has {name}. A hook made in a loop sees the loop's variables as they "
                        "are when it runs, which is later: give it its own site and entry as default arguments."
                    )
                return f"{where} is not there, or None after the model has run."
            if not isinstance(got, torch.Tensor):
                return f"{where} is {article(got)}; a tensor {shape} is asked for."
            if name == "z" and tuple(got.shape) == tuple(want.flatten(2).shape):
                return f"{where} has its heads side by side: give each its own axis, site.split(args[0])."
            others = [getattr(right[other], name) for other in ht.sites(model) if other is not site]
            if not same(got, want) and any(same(got, of_other) for of_other in others):
                return (
                    f"{where} is what another site computed. A hook made in a loop sees the loop's variables as they "
                    "are when it runs: give it its own entry as a default argument."
                )
            if tuple(got.shape) != tuple(want.shape):
                return f"{where} has the shape {tuple(got.shape)}; it should be {shape} = {tuple(want.shape)}."
            written = ht.contributions(site, right[site].z).sum(2) + site.out.bias
            if name == "z" and same(got.flatten(2), written.detach(), 1e-4):
                return f"{where} is what the layer writes, after W_O. z is what enters site.out: a pre-hook sees it."
            if not same(got, want):
                enters = " z is what enters site.out: args[0] of a pre-hook there." if name == "z" else ""
                return f"{where} is not what this site computed.{enters}"
            if got.requires_grad:
                return f"{where} keeps the whole graph that computed it alive: store a detached tensor."
    before = {key: (seen[key].maps, seen[key].z) for key in seen}
    outputs(model, {name: value[:, :2] for name, value in batch.items()})
    if any(seen[key].maps is not maps or seen[key].z is not z for key, (maps, z) in before.items()):
        return "After the block the model is still recorded. Remove each hook after the yield: hook.remove()"
    with suppress(ZeroDivisionError), entered(answer, model):
        raise ZeroDivisionError
    if any(module._forward_hooks or module._forward_pre_hooks for module in model.modules()):
        return "An error inside the block leaves hooks behind. Put the yield into try: and the removing into finally:"
    return None


def _sum(answer: Any) -> None:
    """contributions(site, z): z (B, T, H, d_head) -> what each head adds, (B, T, H, d_model)."""
    model, _ = tiny_translator()
    draw = torch.Generator().manual_seed(0)
    site = ht.sites(model)["encoder", 1]
    heads, size, d_model = site.heads, site.value_dim, site.out.out_features
    for batch, tokens in ((1, 1), (2, 3)):
        z = torch.randint(-3, 4, (batch, tokens, heads, size), generator=draw).float()
        w = torch.randint(-3, 4, (d_model, heads * size), generator=draw).float()
        site.out.weight.data, site.out.bias.data = w, torch.ones(d_model)
        given = {"site": site, "z": z}
        product = z.flatten(2) @ w.T
        want = torch.einsum("bthe,mhe->bthm", z, w.view(d_model, heads, size))
        summed = "This is the sum of the heads. Keep them apart: one vector of length d_model for each head; the sum "
        summed = {tuple(product.shape): f"{summed}comes later."}
        got = tensor(call(answer, **given), tuple(want.shape), "(batch, token, head, d_model)", {}, summed)
        bias = site.out.bias.detach().double()
        mistakes = {
            "Each head has the whole sum. A head adds its own part alone: use its own columns of the weight.": (
                product[:, :, None].expand_as(want)
            ),
            "Each head has an equal share of the sum. A head adds its own part: use its own columns of the weight.": (
                product[:, :, None].expand_as(want) / heads
            ),
            "Each head takes every second column; its columns are neighbours: head 0 the first d_head.": (
                torch.einsum("bthe,meh->bthm", z, w.view(d_model, size, heads))
            ),
            "The bias is added to every head. It belongs to none of them: the layer adds it once.": want + bias,
            "This uses rows of the weight. nn.Linear computes z @ weight.T, so each head owns d_head columns.": (
                torch.einsum("bthe,hem->bthm", z, w.view(heads, size, d_model))
            ),
        }
        rule = "The sum over heads should be z.flatten(2) @ site.out.weight.T, and head h uses its own d_head columns."
        if same(got.sum(2), product):
            rule = "The sum over heads is right, but the parts are not each head's own."
        expect(got, want, mistakes, rule, {"z": z, "site.out.weight": w})


def _cost(answer: Any) -> None:
    """multiply_adds(T, d, H): multiply-adds of one self-attention layer with d_head = d / H, from q, k, v to W_o."""
    for tokens, d, heads in ((3, 4, 1), (3, 4, 4), (16, 128, 8)):
        given = {"T": tokens, "d": d, "H": heads}
        project, mix = tokens * d * d, tokens * tokens * d
        want = 4 * project + 2 * mix
        mistakes = {
            "This charges every head the full width. A head is only d / H wide: H of them cost what one does.": (
                want * heads
            ),
            "Twice the number: one multiplication and the addition that follows it count as one.": 2 * want,
            "Three projections are counted: query, key, value. There is a fourth, after the heads.": (
                3 * project + 2 * mix
            ),
            "The scores or the averages are missing: q with each k, then the weights with each v.": 4 * project + mix,
            "The scores and the averages are counted for one head; there are H.": 4 * project + 2 * mix // heads,
            "The projections are counted for one head; there are H.": 4 * project // heads + 2 * mix,
            "Only the projections are counted. Each query also meets each key, and each weight each value.": (
                4 * project
            ),
            "Only scores and averages are counted. Four projections, each d by d, come before and after.": 2 * mix,
        }
        rule = "Count each product of matrices: (a, b) times (b, c) takes a * b * c multiply-adds."
        expect_number(call(answer, **given), want, mistakes, rule, given, form="g")


class _Largest(TorchDispatchMode):
    """Sees how many numbers the largest tensor has that an answer makes."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Mapping | None = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):  # what it keeps, not what a view of it seems to have
                self.numbers = max(self.numbers, one.untyped_storage().nbytes() // one.element_size())
        return made


def _blocks(answer: Any) -> None:
    """in_blocks(q, k, v, size): q (T, d), k (S, d), v (S, e) -> softmax(q k' / sqrt d) v, (T, e), and each row's
    log-sum-exp, (T,), from blocks of ``size`` keys."""
    draw = torch.Generator().manual_seed(0)
    for T, S, size, scale in ((2, 4, 2, 1.0), (3, 7, 3, 2.0), (2, 6, 4, 4000.0)):
        q, k, v = (torch.randn(n, 4, generator=draw, dtype=torch.double).mul(10).round().div(10) for n in (T, S, S))
        given = {"q": q * scale, "k": k, "v": v[:, :3], "size": size}
        result = several(call(answer, **given), 2, "the output and each row's log-sum-exp")
        got = tensor(result[0], (T, 3), "(T, e)", given)
        log_sum = tensor(result[1].squeeze(-1) if hasattr(result[1], "squeeze") else result[1], (T,), "(T,)", given)
        if not bool(got.isfinite().all() and log_sum.isfinite().all()):
            raise Hint(
                "A number is not finite: exp of a large score is more than a float holds. Subtract the row's "
                "largest score so far, before exp."
            )
        scores, v = given["q"] @ k.T / 2, given["v"]
        blocks = list(zip(scores.split(size, 1), v.split(size), strict=True))
        largest = scores.amax(1, keepdim=True)
        own = [(s - s.amax(1, keepdim=True)).exp() for s, _ in blocks]  # each block by its own largest score
        unscaled = (
            sum(w @ values for w, (_, values) in zip(own, blocks, strict=True)) / sum(w.sum(1) for w in own)[:, None]
        )
        mistakes = {
            "Each block has weights that sum to 1 by themselves. A softmax has one denominator for all keys.": sum(
                s.softmax(1) @ values for s, values in blocks
            )
            / len(blocks),
            "Only the last block counts. What the blocks before it summed has to be kept.": blocks[-1][0].softmax(1)
            @ blocks[-1][1],
            "Blocks have different largest scores, and are added as if they had one. When a larger score comes, what "
            "was summed so far shrinks: times exp(old - new).": unscaled,
            "The root of d is missing: scores are q k' / sqrt d.": (2 * scores).softmax(1) @ v,
            "This is the sum of the weighted values; divide by the sum of the weights at the end.": (
                (scores - largest).exp() @ v
            ),
        }
        expect(got, scores.softmax(1) @ v, mistakes, "It is not the softmax of the whole row, times v.", given)
        known = {
            "The log of the sum lacks the score that was subtracted: add the largest.": (
                (scores - largest).exp().sum(1).log()
            ),
            "This is the sum itself; its logarithm is asked for.": (scores - largest).exp().sum(1),
            "This is the largest score. Add the logarithm of the sum of exp(score - largest).": largest[:, 0],
        }
        expect(log_sum, scores.logsumexp(1), known, "The second is log(sum(exp(scores))) of each row.", given)
    with _Largest() as seen:
        call(answer, q=torch.ones(30, 2), k=torch.ones(40, 2), v=torch.ones(40, 2), size=5)
    if seen.numbers >= 30 * 40:
        raise Hint(
            f"The numbers are right, and a tensor of {seen.numbers} numbers was made for 30 queries and 40 keys: "
            "that is the map. Take the product with one block of keys at a time."
        )


def _list(values: torch.Tensor) -> str:
    return ", ".join(f"{v:.2f}" for v in values.tolist())


EXERCISES = (
    Exercise("01.softmax", "the weights of one head", _softmax),
    Exercise("01.split", "cut into heads", _split, "split_heads"),
    Exercise("01.attention", "assemble the layer", _attention, "Attention"),
    Exercise("01.record", "record every head", _record, "record"),
    Exercise("01.sum", "what each head adds", _sum, "contributions"),
    Exercise("01.blocks", "attention without its map", _blocks),
    Exercise("01.cost", "count the multiplications", _cost),
)
