"""Exercises of lesson 11: roles by luck, the honest score of the best head, a loss of your own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from headtools.lesson.exercises.exercise import Exercise, Hint, call, explain, number, show, tensor


def _luck(answer: Any) -> str | None:
    """by_luck(heads, roles, share): heads that pass at least one of so many tests by luck, expected."""
    for heads, roles, share in ((48, 20, 0.025), (144, 60, 0.025), (10, 1, 0.5)):
        given = {"heads": heads, "roles": roles, "share": share}
        got = number(call(answer, **given))
        miss = (1 - share) ** roles
        mistakes = {
            heads * roles * share: "That counts tests that pass. A head that passes two of them is still one head.",
            heads * share: "That is for a single test. Each head takes one test for every role.",
            1 - miss: "That is one head's chance to pass at least one test. How many heads are there?",
            heads * miss: "That counts the heads that pass no test at all.",
            1
            - (1 - share)
            ** (heads * roles): "That is the chance that anything passes at all. A number of heads is asked.",
            heads * share**roles: "That counts heads that pass every test. One is enough.",
        }
        want = heads * (1 - miss)
        if not abs(got - want) <= 1e-6 * max(1, want):
            rule = "First one head: the chance to fail every test. Then its opposite, times the heads."
            close = (text for value, text in mistakes.items() if abs(got - value) <= 1e-6 * max(1, abs(value)))
            hint = next(close, rule)
            return f"{hint}\nSee it for {show(given)}, where you say {got:.4g}."
    return None


def _honest(answer: Any) -> str | None:
    """honest(chosen_on, measured_on): the score of the best head, chosen on one half, measured on the other."""
    for a, b in (([0.2, 0.9, 0.5], [0.8, 0.6, 0.7]), ([0.5, 0.1, 0.4, 0.3], [0.2, 0.9, 0.3, 0.1])):
        given = {"chosen_on": torch.tensor(a), "measured_on": torch.tensor(b)}
        one, two = given.values()
        got = tensor(call(answer, **given), (), "()", given)
        hint = explain(got, two[one.argmax()], {
            "That is the best score of the half you chose on. The choice made it look good.": one.max(),
            "That chooses and measures on the second half. Choose on the first.": two.max(),
            "The halves are exchanged: choose on the first, measure on the second.": one[two.argmax()],
            "That averages both halves, and one of them is the half that made the choice.": (
                (one[one.argmax()] + two[one.argmax()]) / 2
            ),
            "That is the number of the head; its score is asked for.": one.argmax(),
        })  # fmt: skip
        if hint is not None:
            rule = "Find the place of the largest score in one half, and read the other there."
            return f"{hint or rule}\nSee it for {show(given)}"
    return None


def _margin(answer: Any) -> str | None:
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
        raw = call(answer, outputs=SimpleNamespace(logits=table.clone()), batch=batch)
        if tuple(getattr(raw, "shape", (0,))) == ():
            raise Hint(
                f"One number came; a loss gives one for each example, (B,) = ({len(labels)},)\nSee it for {show(given)}"
            )
        got = tensor(raw, (len(labels),), "(B,)", given)
        hint = explain(got, want, {
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
        })  # fmt: skip
        if hint is not None:
            rule = "For each example: the largest logit of a wrong class, minus the logit of the right one."
            return f"{hint or rule}\nSee it for {show(given)}"
    return None


EXERCISES = (
    Exercise("11.luck", "heads with a role by luck", _luck),
    Exercise("11.honest", "the honest score of the best head", _honest),
    Exercise("11.margin", "a loss of your own", _margin),
)
