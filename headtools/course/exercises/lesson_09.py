"""Exercises of lesson 09: which heads stay, survivors against a draw, how much work is left without some heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headtools.course.exercises.exercise import Exercise, call, expect, expect_number, number, tensor


def _left(answer: Any) -> None:
    """left(scores, keep): which heads stay, (layer, head) of 0 and 1, when only the keep highest scores do."""
    cases = (
        ([[0.3, 0.9, 0.8], [0.7, 0.1, 0.2]], 2),
        ([[0.5, -0.9, 0.1, 0.4], [0.0, 0.2, -0.3, 0.05]], 2),
        ([[3.0, 1.0], [4.0, 2.0]], 4),
        ([[3.0, 1.0], [4.0, 2.0]], 0),
    )
    for rows, keep in cases:
        scores = torch.tensor(rows)
        given = {"scores": scores, "keep": keep}
        got = tensor(call(answer, **given), tuple(scores.shape), "(layer, head)", given)
        want = _best(scores, keep)
        equal_share = keep // len(scores)
        rule = f"The {keep} highest scores of the whole table stay: 1 there, 0 elsewhere."
        mistakes = {
            "These are the heads that go. Mark those that stay.": 1 - want,
            "The lowest scores stay here, but those should go first.": _best(-scores, keep),
            "As many stay as should go: keep counts the heads that stay.": _best(scores, scores.numel() - keep),
            "Each layer keeps as many here. Compare the heads of all layers with one another.": (
                torch.stack([_best(row, equal_share) for row in scores])
            ),
            "That is a list of places, the best head's first. You need the rank of each head: sort that list again.": (
                scores.flatten().argsort(descending=True) < keep
            )
            .float()
            .view(scores.shape),
            "A score below 0 says that the model does better without the head, so it goes first. Do not "
            "take its size.": _best(scores.abs(), keep),
            "One head too many stays.": _best(scores, min(keep + 1, scores.numel())),
            "One head too few stays.": _best(scores, max(keep - 1, 0)),
        }
        expect(got, want, mistakes, rule, given)


def _best(scores: Tensor, keep: int) -> Tensor:
    """1 for the ``keep`` highest scores of a tensor of any shape, 0 for the others."""
    mask = torch.zeros(scores.numel())
    mask[scores.flatten().argsort(descending=True)[:keep]] = 1.0
    return mask.view(scores.shape)


def _chance(answer: Any) -> None:
    """chance(n, r, k, hit): how likely k of n heads, drawn at random, hold hit or more of the r heads with a role."""
    for n, r, k, hit in ((7, 3, 3, 2), (8, 2, 3, 1), (10, 4, 5, 4), (5, 2, 3, 0), (48, 16, 13, 9)):
        given = {"n": n, "r": r, "k": k, "hit": hit}
        got = number(call(answer, **given))
        exactly = [math.comb(r, i) * math.comb(n - r, k - i) / math.comb(n, k) for i in range(k + 1)]
        with_replacement = [math.comb(k, i) * (r / n) ** i * (1 - r / n) ** (k - i) for i in range(k + 1)]
        want = sum(exactly[hit:])
        mistakes = {
            "That is the chance of exactly as many. As many or more are asked for: add them up.": exactly[hit],
            "That is the chance of more. As many count too.": sum(exactly[hit + 1 :]),
            "That is the chance of fewer.": sum(exactly[:hit]),
            "That is the chance of as many or fewer. Look at the other end.": sum(exactly[: hit + 1]),
            "That draws the same head again and again. A head that is drawn is gone: draw without putting it back.": (
                sum(with_replacement[hit:])
            ),
            "That is how many are expected, k * r / n. How likely is it to have hit or more?": k * r / n,
            "That counts the draws. Divide by how many there are in all.": want * math.comb(n, k),
        }
        rule = "Of all ways to draw k heads, count those with i from r, k - i from the rest, i from hit up."
        expect_number(got, want, mistakes, rule, given, rel_tol=1e-6)


def _work(answer: Any) -> None:
    """work(heads, length, width, inner): multiplications of a layer with some of its 8 heads, as a share of all 8."""
    for heads, length, width, inner in ((4, 10, 128, 256), (0, 64, 512, 2048), (8, 5, 64, 64), (2, 256, 128, 256)):
        given = {"heads": heads, "length": length, "width": width, "inner": inner}
        got = number(call(answer, **given))
        one = width // 8
        project, attend, feed = 4 * length * width * one, 2 * length**2 * one, 2 * length * width * inner

        def share(head: float, rest: float, heads: int = heads) -> float:
            return (heads * head + rest) / (8 * head + rest)

        want = share(project + attend, feed)
        mistakes = {
            "That leaves out the feed-forward part, which stays as it is whatever heads go.": heads / 8,
            "That leaves out scores and weighted sums, 2 * length² * (width / 8) a head.": share(project, feed),
            "That leaves out the four projections.": share(attend, feed),
            "A head has four projections: to query, key and value, and back.": share(project * 3 / 4 + attend, feed),
            "Scores and weighted sums are two products: queries with keys, weights with values.": (
                share(project + attend / 2, feed)
            ),
            "The feed-forward part has two matrices, in and out.": share(project + attend, feed / 2),
            "Each head projects to width / 8, not to the whole width.": share(8 * project + attend, feed),
            "The two products of a head are only width / 8 wide, too.": share(project + 8 * attend, feed),
            "A head is width / 8 wide, in its projections and in its products.": share(8 * (project + attend), feed),
            "That is the share that is saved. How much is left?": 1 - want,
            "That is how much faster it would be. The share of the work that is left is asked for.": 1 / want,
        }
        rule = "Count one head and the feed-forward part; then heads of one by 8 of one, the rest in both."
        expect_number(got, want, mistakes, rule, given, rel_tol=1e-6)


EXERCISES = (
    Exercise("09.left", "which heads stay", _left),
    Exercise("09.work", "how much work is left", _work),
    Exercise("09.chance", "survivors against a draw", _chance),
)
