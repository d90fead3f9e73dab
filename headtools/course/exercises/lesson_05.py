"""Exercises of lesson 05: the induction score, its chance level, and where a curve jumps."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, call, expect, expect_number, number, show, tensor


def _induction(answer: Any) -> None:
    """induction_score(maps, length): maps (head, query, key) over a segment twice -> (head,), second copy only."""
    for length, heads in ((3, 2), (4, 3)):
        maps = torch.randn(heads, 2 * length, 2 * length, generator=torch.Generator().manual_seed(length))
        causal = torch.ones(2 * length, 2 * length).tril().bool()
        maps = maps.masked_fill(~causal, -torch.inf).softmax(-1).mul(100).round().div(100)
        given = {"maps": maps, "length": length}
        below = {k: maps.diagonal(-k, 1, 2).double() for k in range(2 * length)}
        want = below[length - 1][:, 1:].mean(-1)
        one = f"One number came, and there are {heads} heads: take the mean over queries alone."
        got = tensor(call(answer, **given), (heads,), "(head,)", given, {(): f"{one}\nSee it for {show(given)}"})
        second = maps[:, length:].double()
        rule = "Query t of the second copy should look at key t - length + 1; average that attention over t."
        mistakes = {
            "This is the attention to the earlier copy of the query itself, a duplicate-token score. Induction "
            "looks one place after that copy.": below[length].mean(-1),
            "This looks one place before the earlier copy; induction looks one place after it.": (
                below[min(length + 1, 2 * length - 1)].mean(-1)
            ),
            "One query too many: the last one of the first copy has seen nothing twice. Start at the second copy.": (
                below[length - 1].mean(-1)
            ),
            "This is the attention to the token just before, a previous-token score.": below[1].mean(-1),
            "This is the attention of each query to itself.": below[0].mean(-1),
            "The sum is divided by all queries, but only those of the second copy have somewhere to look.": (
                below[length - 1][:, 1:].sum(-1) / (2 * length)
            ),
            "This is a sum over queries; the score is their mean.": below[length - 1][:, 1:].sum(-1),
            "This looks ahead, where a decoder sees nothing: query and key are exchanged.": torch.zeros(heads).double(),
            "This counts the largest weight of each query, wherever it is.": second.max(-1).values.mean(-1),
        }
        expect(got, want, mistakes, rule, given)


def _chance(answer: Any) -> None:
    """chance(length): the induction score of attention spread evenly over the tokens so far."""
    for length in (2, 3, 24):
        given = {"length": length}
        got = number(call(answer, **given))
        queries = range(length, 2 * length)
        want = sum(1 / (t + 1) for t in queries) / length
        mistakes = {
            "That is one over the whole sequence. Query t sees only the t + 1 tokens up to itself.": 1 / (2 * length),
            "That is one over the segment. Query t chooses among all t + 1 tokens up to itself.": 1 / length,
            "Query t sees t tokens before it and itself: t + 1 of them.": sum(1 / t for t in queries) / length,
            "The queries of the first copy are counted too; the score reads only those of the second.": (
                sum(1 / (t + 1) for t in range(2 * length)) / (2 * length)
            ),
            "This is a sum over queries; the score is their mean.": sum(1 / (t + 1) for t in queries),
            "That is the integral, which is only close to the sum.": math.log(2) / length,
            "That is one over the mean number of tokens seen. Average the chances, not the counts.": (
                1 / (1.5 * length + 0.5)
            ),
        }
        rule = "Query t gives each of the tokens it sees the same weight; average over the second copy."
        expect_number(got, want, mistakes, rule, given, rel_tol=1e-6)


def _jump(answer: Any) -> None:
    """jump(steps, loss): the step from which the loss falls fastest, per step, to the next measurement."""
    cases = (
        ([0, 100, 200, 300, 400, 500], [4.0, 2.6, 2.5, 4.1, 3.0, 2.4]),
        ([0, 100, 200, 300, 400], [4.0, 3.9, 1.5, 1.0, 0.9]),
        ([0, 10, 20, 100, 200], [4.0, 3.9, 3.0, 1.0, 1.0]),
    )
    for steps, loss in cases:
        given = {"steps": torch.tensor(steps), "loss": torch.tensor(loss)}
        got = number(call(answer, **given))
        falls = [a - b for a, b in pairwise(loss)]
        widths = [b - a for a, b in pairwise(steps)]
        rates = [drop / width for drop, width in zip(falls, widths, strict=True)]
        steepest = rates.index(max(rates))
        mistakes = {
            "Steps are not equally far apart: divide each fall by the steps it took.": steps[falls.index(max(falls))],
            "That is the number of the measurement; its step is asked for.": steepest,
            "That is where the fall ends; give the step where it begins.": steps[steepest + 1],
            "That is where the loss is lowest. Look for where it falls fastest.": steps[loss.index(min(loss))],
            "That is where the loss rises most, or falls least: mind the sign.": steps[rates.index(min(rates))],
        }
        rule = "Divide each fall by the steps it took, and return the step at which the steepest one begins."
        expect_number(got, steps[steepest], mistakes, rule, {"steps": steps, "loss": loss}, form="g", rel_tol=0)


EXERCISES = (
    Exercise("05.induction", "the induction score", _induction),
    Exercise("05.chance", "the score of a head that does nothing", _chance),
    Exercise("05.jump", "where the loss falls fastest", _jump),
)
