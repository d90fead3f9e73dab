"""Exercises of lesson 11: roles by luck, the honest score of the best head, a loss of your own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, call, expect, expect_number, number, show, tensor


def _luck(answer: Any) -> None:
    """by_luck(heads, roles, share): heads that pass at least one of so many tests by luck, expected."""
    for heads, roles, share in ((48, 20, 0.025), (144, 60, 0.025), (10, 1, 0.5)):
        given = {"heads": heads, "roles": roles, "share": share}
        got = number(call(answer, **given))
        miss = (1 - share) ** roles
        mistakes = {
            "That counts tests that pass. A head that passes two of them is still one head.": heads * roles * share,
            "That is for a single test. Each head takes one test for every role.": heads * share,
            "That is one head's chance to pass at least one test. How many heads are there?": 1 - miss,
            "That counts the heads that pass no test at all.": heads * miss,
            "That is the chance that anything passes at all. A number of heads is asked.": (
                1 - (1 - share) ** (heads * roles)
            ),
            "That counts heads that pass every test. One is enough.": heads * share**roles,
        }
        rule = "First one head: the chance to fail every test. Then its opposite, times the heads."
        expect_number(got, heads * (1 - miss), mistakes, rule, given, rel_tol=1e-6, abs_tol=1e-6)


def _honest(answer: Any) -> None:
    """honest(chosen_on, measured_on): the score of the best head, chosen on one half, measured on the other."""
    for a, b in (([0.2, 0.9, 0.5], [0.8, 0.6, 0.7]), ([0.5, 0.1, 0.4, 0.3], [0.2, 0.9, 0.3, 0.1])):
        given = {"chosen_on": torch.tensor(a), "measured_on": torch.tensor(b)}
        one, two = given.values()
        got = tensor(call(answer, **given), (), "()", given)
        rule = "Find the place of the largest score in one half, and read the other there."
        mistakes = {
            "That is the best score of the half you chose on. The choice made it look good.": one.max(),
            "That chooses and measures on the second half. Choose on the first.": two.max(),
            "The halves are exchanged: choose on the first, measure on the second.": one[two.argmax()],
            "That averages both halves, and one of them is the half that made the choice.": (
                (one[one.argmax()] + two[one.argmax()]) / 2
            ),
            "That is the number of the head; its score is asked for.": one.argmax(),
        }
        expect(got, two[one.argmax()], mistakes, rule, given)


def _margin(answer: Any) -> None:
    """margin(outputs, batch): the best wrong logit minus the right one, an example each."""
    for logits, labels in (
        ([[2.0, 5.0, 1.0], [0.5, -1.0, 0.0]], [1, 2]),
        ([[1.0, -2.0], [0.0, 3.0], [4.0, 2.0]], [0, 0, 1]),
    ):
        batch = {"labels": torch.tensor(labels)}
        table = torch.tensor(logits)
        given = {"logits": table, "labels": batch["labels"]}
        right = table.gather(1, batch["labels"][:, None])[:, 0]
        others = table.scatter(1, batch["labels"][:, None], -torch.inf)
        want = others.max(1).values - right
        result = call(answer, outputs=SimpleNamespace(logits=table.clone()), batch=batch)
        one = f"One number came; a loss gives one for each example, (B,) = ({len(labels)},)\nSee it for {show(given)}"
        got = tensor(result, (len(labels),), "(B,)", given, {(): one})
        rule = "For each example: the largest logit of a wrong class, minus the logit of the right one."
        mistakes = {
            "The sign is turned: a loss is low where the model is right.": -want,
            "The right class is among those you compare it with, so the margin never falls below 0.": (
                table.max(1).values - right
            ),
            "A right logit that is set to 0 can still be the largest. Set it to something that no logit is below.": (
                table.scatter(1, batch["labels"][:, None], 0.0).max(1).values - right
            ),
            "That is the right logit itself. Compare it with the best wrong one.": right,
            "That is the best wrong logit alone. Take the right one from it.": others.max(1).values,
            "That is the cross-entropy. Here a margin is asked for.": (
                torch.nn.functional.cross_entropy(table, batch["labels"], reduction="none")
            ),
        }
        expect(got, want, mistakes, rule, given)


EXERCISES = (
    Exercise("11.luck", "heads with a role by luck", _luck),
    Exercise("11.honest", "the honest score of the best head", _honest),
    Exercise("11.margin", "a loss of your own", _margin),
)
