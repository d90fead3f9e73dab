"""Exercises of lesson 07: the epsilon rule, the alpha-beta rule, what a softmax lets through, shares with signs."""

from __future__ import annotations

from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, call, expect, show, tensor


def _epsilon(answer: Any) -> None:
    """epsilon_rule(x, weight, bias, relevance, epsilon): R of x for R of y = weight x + bias."""
    cases = (
        ([2.0, 1.0], [[3.0, -1.0], [1.0, -4.0]], [2.0, -2.0], [6.0, 3.0], 1.0),
        ([1.0, -2.0, 3.0], [[1.0, 1.0, 2.0], [-2.0, 0.5, -1.0]], [0.5, -0.5], [2.0, 4.0], 0.5),
    )
    for case in cases:
        x, weight, bias, relevance = (torch.tensor(part) for part in case[:4])
        given = {"x": x, "weight": weight, "bias": bias, "relevance": relevance, "epsilon": case[4]}
        apart = "These are the messages from each output to each input. Add them up over the outputs."
        got = tensor(call(answer, **given), tuple(x.shape), "(in,)", given, {tuple(weight.shape): apart})
        y = weight @ x + bias
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


def _softmax(answer: Any) -> None:
    """softmax_rule(scores, relevance): R of scores for R of their softmax."""
    cases = (([1.0, 0.0, -2.0], [0.5, 0.2, 0.1]), ([0.5, 2.0], [1.0, -0.25]))
    for case in cases:
        scores, relevance = (torch.tensor(part) for part in case)
        given = {"scores": scores, "relevance": relevance}
        got = tensor(call(answer, **given), tuple(scores.shape), "(n,)", given)
        weights, total = scores.softmax(-1), relevance.sum()
        want = scores * (relevance - weights * total)
        rule = "Entry i gets its score times (its own relevance minus its weight times the sum of all relevance)."
        mistakes = {
            "This passes relevance on unchanged. A softmax is no function of one entry: each weight depends on all "
            "scores.": relevance,
            "The score itself is missing in front of the bracket.": relevance - weights * total,
            "The sum of all relevance is missing: entry i loses its weight times the whole.": (
                scores * (relevance - weights * relevance)
            ),
            "Entry i loses its weight times the sum of relevance; here it loses all of the sum.": (
                scores * (relevance - total)
            ),
            "The softmax is multiplied in once more. R already holds it: R = s times g.": (
                scores * weights * (relevance - (weights * relevance).sum())
            ),
            "The sign of the loss is turned round: the weight's part is taken away.": (
                scores * (relevance + weights * total)
            ),
            "In front of the bracket stand the scores, not their softmax.": weights * (relevance - weights * total),
            "This is scaled so that nothing leaks. Leave the leak in: it is what you came to see.": (
                want * total / want.sum()
            ),
        }
        expect(got, want, mistakes, rule, given)


def _shares(answer: Any) -> None:
    """layer_shares(relevance): signed R (step, head) of a layer -> shares (head,), by size, step by step."""
    cases = ([[4.0, -1.0, 5.0], [0.5, 0.25, -0.25]], [[2.0, -6.0], [1.0, 1.0], [-3.0, 1.0]])
    for case in cases:
        relevance = torch.tensor(case)
        given = {"relevance": relevance}
        each = "These are the numbers of every step. One for each head is asked for: their mean."
        got = tensor(call(answer, **given), (relevance.shape[1],), "(head,)", given, {tuple(relevance.shape): each})
        size = relevance.abs()
        want = (size / size.sum(1, keepdim=True)).mean(0)
        rule = "In every step divide each head's size by the sum of sizes over heads; then average over steps."
        mistakes = {
            "Steps are added up first, so a step with much relevance counts for more. Divide each step by itself.": (
                size.sum(0) / size.sum()
            ),
            "The sum below the line keeps its signs, so it can come near zero. Add up sizes.": (
                (relevance / relevance.sum(1, keepdim=True)).mean(0)
            ),
            "Only the sum below the line is of sizes; the heads above it keep their signs.": (
                (relevance / size.sum(1, keepdim=True)).mean(0)
            ),
            "The size is taken after the mean over steps, where signs have cancelled already.": (
                relevance.mean(0).abs() / relevance.mean(0).abs().sum()
            ),
            "Sizes above the line, but signs below it.": (size / relevance.sum(1, keepdim=True)).mean(0),
            "This is a sum over steps; the mean is asked for.": (size / size.sum(1, keepdim=True)).sum(0),
            "Each head is divided by its own sum over steps. A share is taken among the heads of one step.": (
                (size / size.sum(0)).mean(0)
            ),
        }
        expect(got, want, mistakes, rule, given)


EXERCISES = (
    Exercise("07.epsilon", "the epsilon rule of one layer", _epsilon),
    Exercise("07.signs", "share by sign", _signs),
    Exercise("07.softmax", "what a softmax lets through", _softmax),
    Exercise("07.shares", "shares of a layer, signs and all", _shares),
)
