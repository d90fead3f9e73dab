"""Exercises of lesson 01: one head's weights, cutting into heads, the sum of heads, what heads cost."""

from __future__ import annotations

import math
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, call, expect, expect_number, number, same, show, tensor


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
            rule = "There is a NaN in the weights."
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


def _sum(answer: Any) -> None:
    """head_outputs(z, W_o): z (B, T, H, d_head), W_o (d_model, H*d_head) -> (B, T, H, d_model)."""
    draw = torch.Generator().manual_seed(0)
    for batch, tokens, heads, size, d_model in ((1, 1, 2, 2, 4), (2, 3, 4, 2, 5)):
        z = torch.randint(-3, 4, (batch, tokens, heads, size), generator=draw).float()
        w = torch.randint(-3, 4, (d_model, heads * size), generator=draw).float()
        given = {"z": z, "W_o": w}
        product = z.flatten(2) @ w.T
        want = torch.einsum("bthe,mhe->bthm", z, w.view(d_model, heads, size))
        summed = "This is the sum of the heads. Keep them apart: one vector of length d_model for each head; the sum "
        summed = {tuple(product.shape): f"{summed}comes later.\nSee it for {show(given)}"}
        got = tensor(call(answer, **given), tuple(want.shape), "(batch, token, head, d_model)", given, summed)
        mistakes = {
            "Each head has the whole sum. A head adds its own part alone: use its own columns of W_o.": (
                product[:, :, None].expand_as(want)
            ),
            "Each head has an equal share of the sum. A head adds its own part: use its own columns of W_o.": (
                product[:, :, None].expand_as(want) / heads
            ),
            "Each head takes every second column of W_o; its columns are neighbours: head 0 the first d_head.": (
                torch.einsum("bthe,meh->bthm", z, w.view(d_model, size, heads))
            ),
        }
        if d_model == heads * size:
            mistakes[
                "This uses rows of W_o. nn.Linear computes z @ W_o.T, so each head owns d_head columns of W_o."
            ] = torch.einsum("bthe,hem->bthm", z, w.view(heads, size, d_model))
        rule = "The sum over heads should be z.flatten(2) @ W_o.T, and head h uses columns h*d_head to (h+1)*d_head."
        if same(got.sum(2), product):
            rule = "The sum over heads is right, but the parts are not each head's own."
        expect(got, want, mistakes, rule, given)


def _cost(answer: Any) -> None:
    """multiply_adds(T, d, H): multiply-adds of one self-attention layer with d_head = d / H, from q, k, v to W_o."""
    for tokens, d, heads in ((3, 4, 1), (3, 4, 4), (16, 128, 8)):
        given = {"T": tokens, "d": d, "H": heads}
        got = number(call(answer, **given))
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
        expect_number(got, want, mistakes, rule, given, form="g")


def _list(values: torch.Tensor) -> str:
    return ", ".join(f"{v:.2f}" for v in values.tolist())


EXERCISES = (
    Exercise("01.softmax", "the weights of one head", _softmax),
    Exercise("01.split", "cut into heads", _split),
    Exercise("01.sum", "what each head adds", _sum),
    Exercise("01.cost", "count the multiplications", _cost),
)
