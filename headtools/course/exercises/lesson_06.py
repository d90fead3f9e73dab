"""Exercises of lesson 06: the score, its form at the maps, an input for a bug, a removal, what two heads share."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, expect, number, show, tensor

EACH = "These are the numbers of every example. One for each head is asked for: their mean."


def _importance(answer: Any) -> None:
    """importance(losses, examples, heads): mean over examples of abs(dL/dgate) at gate 1 -> (head,)."""
    for examples, heads in ((2, 3), (4, 3)):
        slopes = _tenths(examples, heads, seed=examples)
        bends = _tenths(examples, heads, seed=heads).abs() + 1

        def losses(gates: Tensor, slopes: Tensor = slopes, bends: Tensor = bends) -> Tensor:
            gates = torch.as_tensor(gates)
            away = 1 - gates
            return (slopes.to(gates.dtype) * gates + bends.to(gates.dtype) * away**2).sum(-1)

        given = {"losses": losses, "examples": examples, "heads": heads}
        shown = {"the slopes at gate 1, one row for each example": slopes}
        each = f"These are the numbers of every example. One for each head is asked for.\nSee it for {show(shown)}"
        sizes = {"examples": examples, "heads": heads}
        got = tensor(call(answer, **given), (heads,), "(head,)", sizes, {(examples, heads): each})
        want = slopes.double().abs().mean(0)
        s, b = slopes.double(), bends.double()
        rule = "Gates of 1, one row for each example; the slope of the losses; its size; the mean over examples."
        mistakes = {
            "The examples are added up before the absolute value, so they cancel. Does each example have gates of "
            "its own, and does the absolute value come before the mean?": s.mean(0).abs(),
            "The examples are added up before the absolute value, so they cancel. Each needs gates of its own.": (
                s.sum(0).abs()
            ),
            "This mean has a sign. A head that half of the examples need and half suffer from would count as idle: "
            "take absolute values first.": s.mean(0),
            "This is a sum over the examples; the score is their mean.": s.abs().sum(0),
            "The mean over the examples is taken twice. Add up the losses; after the absolute value, take the "
            "mean.": s.abs().mean(0) / examples,
            "This is the slope at gate 0, where the head is off. It is asked for at gate 1.": (s - 2 * b).abs().mean(0),
            "This is what the loss does when the gate goes all the way to 0. Here the slope at 1 is asked for.": (
                (b - s).abs().mean(0)
            ),
            "This is the mean of squares; the score is the mean of absolute values.": (s**2).mean(0),
            "This is a root of a mean of squares; the score is a mean of absolute values.": (s**2).mean(0).sqrt(),
        }
        expect(got, want, mistakes, rule, shown)


def _cancel(answer: Any) -> str | None:
    """Slopes (example, head) for which abs after the sum ranks head 1 above head 0, and abs before it head 0."""
    if callable(answer):
        answer = call(answer)
    if answer is None or answer is ...:
        raise NotTried
    try:
        slopes = torch.as_tensor(answer).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"A tensor of slopes is asked for, this is {article(answer)}.") from None
    if slopes.dim() != 2 or slopes.shape[1] != 2:
        return f"The shape is {tuple(slopes.shape)}, it should be (example, head) with two heads."
    if not slopes.isfinite().all():
        return "There is a NaN or an infinity among the slopes."
    if len(slopes) < 2:
        return "With one example nothing can cancel. Write two or more."
    right, buggy = slopes.abs().mean(0).tolist(), slopes.mean(0).abs().tolist()
    correct = f"Head 0 has {right[0]:.3g} and head 1 has {right[1]:.3g}"
    bug = f"the colleague's code gives them {buggy[0]:.3g} and {buggy[1]:.3g}"
    if not right[0] > right[1]:
        turned = slopes.shape[0] == 2 and slopes.abs().mean(1)[0] > slopes.abs().mean(1)[1]
        rows = " Rows are examples and columns are heads: has the table been turned?" if turned else ""
        return f"Head 0 should matter more than head 1. {correct} by the mean of absolute values.{rows}"
    if buggy[0] == buggy[1]:
        return f"{correct}, as asked, but {bug}: a tie. Head 1 should come first."
    if not buggy[1] > buggy[0]:
        mixed = (slopes[:, 0] > 0).any() and (slopes[:, 0] < 0).any()
        how = "They cancel, but too little." if mixed else "Slopes cancel where their signs differ."
        return f"{correct}, as asked, but {bug}: it still ranks head 0 first. {how}"
    return None


def _forms(answer: Any) -> None:
    """from_maps(maps, slopes), both (example, head, query, key) -> (head,): mean over examples of abs(<A, dL/dA>)."""
    for examples, heads, queries, keys in ((2, 2, 2, 2), (3, 2, 2, 4)):
        generator = torch.Generator().manual_seed(queries + keys)
        maps = torch.randn(examples, heads, queries, keys, generator=generator).softmax(-1).mul(100).round().div(100)
        slopes = _tenths(examples * heads * queries, keys, seed=keys).view(examples, heads, queries, keys)
        given = {"maps": maps, "slopes": slopes}
        shown = {"maps[:, 0]": maps[:, 0], "slopes[:, 0]": slopes[:, 0]}
        got = tensor(call(answer, **given), (heads,), "(head,)", shown, {(examples, heads): EACH})
        a, g = maps.double(), slopes.double()
        product = a * g
        rule = "Multiply maps and slopes, add up over queries and keys, take the size, then the mean over examples."
        mistakes = {
            "This is the mean size of dL/dA alone. A slope becomes a change only when it is multiplied by how much "
            "there is to lose, here the attention itself.": g.abs().mean((0, 2, 3)),
            "This is the summed size of dL/dA alone. A slope becomes a change only when it is multiplied by how "
            "much there is to lose, here the attention itself.": g.abs().sum((2, 3)).mean(0),
            "The attention is missing: this is the sum of the slopes alone.": g.sum((2, 3)).abs().mean(0),
            "The absolute value stands inside the sum over queries and keys. All entries share one gate: add first.": (
                product.abs().sum((2, 3)).mean(0)
            ),
            "The absolute value is taken of every query. All queries of an example share one gate: add them first.": (
                product.sum(3).abs().sum(2).mean(0)
            ),
            "The examples are added up before the absolute value, so they cancel.": product.sum((0, 2, 3)).abs(),
            "The mean over examples is taken before the absolute value, so they cancel.": (
                product.sum((2, 3)).mean(0).abs()
            ),
            "This has a sign; the score is a mean of absolute values.": product.sum((2, 3)).mean(0),
            "This is a sum over the examples; the score is their mean.": product.sum((2, 3)).abs().sum(0),
            "This is a mean over queries and keys. A gate moves all entries at once, so they add up.": (
                product.mean((2, 3)).abs().mean(0)
            ),
        }
        expect(got, product.sum((2, 3)).abs().mean(0), mistakes, rule, shown)


def _removal(answer: Any) -> None:
    """removal(slopes, bends), both (example, head) -> (head,): mean over examples of -slope + bend / 2."""
    for examples, heads in ((3, 2), (4, 3)):
        slopes, bends = _tenths(examples, heads, seed=examples), _tenths(examples, heads, seed=heads + 7).abs()
        given = {"slopes": slopes, "bends": bends}
        got = tensor(call(answer, **given), (heads,), "(head,)", given, {(examples, heads): EACH})
        s, b = slopes.double(), bends.double()
        rule = "Take a step of -1: minus the slope plus half of the bend, then the mean over examples."
        mistakes = {
            "The gate moves from 1 down to 0, a step of -1: the slope enters with a minus.": (s + b / 2).mean(0),
            "This is the first order alone. Half of the bend belongs to it.": (-s).mean(0),
            "The bend counts half: the second term of a Taylor expansion is step² / 2 times the second derivative.": (
                b - s
            ).mean(0),
            "The square of the step is +1, so the bend enters with a plus.": (-s - b / 2).mean(0),
            "The bend counts half, and the slope enters with a minus, since the gate moves down.": (s + b).mean(0),
            "A cost may be negative: where a head does harm, the loss falls without it. Take no absolute value.": (
                (b / 2 - s).abs().mean(0)
            ),
            "The slopes keep their sign here: an expansion knows no absolute values.": (s.abs() + b / 2).mean(0),
            "This is a sum over the examples; the cost is their mean.": (b / 2 - s).sum(0),
        }
        expect(got, (b / 2 - s).mean(0), mistakes, rule, given)


def _interaction(answer: Any) -> str | None:
    """interaction(whole, without_a, without_b, without_both), each (example,) -> a number."""
    names = ("whole", "without_a", "without_b", "without_both")
    for seed in (1, 2):
        rows = _tenths(4, 3, seed).abs()
        given = dict(zip(names, rows, strict=True))
        raw = call(answer, **given)
        if isinstance(raw, torch.Tensor) and raw.shape == (3,):
            return "These are the numbers of every example. One number is asked for: their mean."
        got = number(raw)
        w, a, b, both = (row.double().mean().item() for row in rows)
        mistakes = {
            "The sign is turned round. What both cost together comes first.": a + b - both - w,
            "The loss of the whole model is missing. Each cost is a loss without a head minus the whole model's.": (
                both - a - b
            ),
            "The loss of the whole model counts once too often or too rarely. Write the three costs down first.": (
                both - a - b - w
            ),
            "This is what both cost together. Take off what each costs alone.": both - w,
            "This is the sum of what each costs alone.": a + b - 2 * w,
            "This is a sum over the examples; take their mean.": 3 * (both - a - b + w),
        }
        if not math.isclose(got, both - a - b + w, abs_tol=1e-4):
            rule = (
                "Write down the three costs, each against the whole model; then joint cost minus the two single ones."
            )
            hint = next((text for text, number in mistakes.items() if math.isclose(got, number, abs_tol=1e-4)), rule)
            return f"{hint}\nSee it for {show(given)}"
    return None


def _tenths(rows: int, columns: int, seed: int) -> Tensor:
    """Small numbers of both signs that print in full and are all different."""
    order = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed)) + 1
    signs = (-1.0) ** torch.arange(rows * columns)
    return (order * signs / 10).view(rows, columns)


EXERCISES = (
    Exercise("06.importance", "the score in three lines", _importance),
    Exercise("06.forms", "the score from attention maps", _forms),
    Exercise("06.cancel", "an input that shows the bug", _cancel),
    Exercise("06.removal", "a removal to second order", _removal),
    Exercise("06.interaction", "what two heads share", _interaction),
)
