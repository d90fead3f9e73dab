"""Exercises of lesson 04: a probe's gradient, control labels, a direction removed, syntactic heads from maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, Hint, article, call, expect, same, show, tensor


def _gradient(answer: Any) -> None:
    """gradient(X, Y, W): X (n, d), Y (n, c) one-hot, W (d, c) -> the gradient of the mean cross-entropy, (d, c)."""
    draw = torch.Generator().manual_seed(0)
    for n, d, c in ((3, 2, 2), (5, 4, 3)):
        x = torch.randint(-2, 3, (n, d), generator=draw).float()
        w = torch.randint(-1, 2, (d, c), generator=draw).float()
        y = torch.eye(c)[torch.arange(n) % c]
        given = {"X": x, "Y": y, "W": w}
        got = tensor(call(answer, **given), (d, c), "(d, c)", given)
        p = (x @ w).softmax(-1)
        want = x.T @ (p - y) / n
        rule = "Multiply each word's error, P - Y, with its input, and take the mean over the words."
        mistakes = {
            "This is the gradient of the sum over words. The loss is their mean.": x.T @ (p - y),
            "The sign is turned round: this way the loop would climb. The error is what the probe says minus what "
            "it should say.": -want,
            "Turned round, and summed over words: the error is P - Y, and the loss is a mean.": x.T @ (y - p),
            "These are scores minus labels. Turn the scores of each word into probabilities first.": (
                x.T @ (x @ w - y) / n
            ),
            "The probabilities were normalised over the words. Each word has a distribution over the labels.": (
                x.T @ ((x @ w).softmax(0) - y) / n
            ),
            "This is the input times what the probe says. Subtract what it should say.": x.T @ p / n,
            "The mean was taken over the labels as well: divide by the number of words alone.": want / c,
        }
        expect(got, want, mistakes, rule, given)


def _control(answer: Any) -> str | None:
    """control_labels(words, labels): one random label for each word type, as frequent as among the labels."""
    few = {"words": ["dog", "the", "cat", "the", "dog"], "labels": ["NOUN", "DET", "NOUN", "DET", "NOUN"]}
    _listed(call(answer, **few), few)
    many = {"words": [f"w{i % 2000}" for i in range(6000)], "labels": ["a" if i % 5 else "b" for i in range(6000)]}
    first = _listed(call(answer, **many), many)
    by_word: dict[str, set] = {}
    for word, label in zip(many["words"], first, strict=True):
        by_word.setdefault(word, set()).add(label)
    split = next((word for word, tags in by_word.items() if len(tags) > 1), None)
    if split is not None:
        return (
            f"The word {split!r} has several labels: {sorted(by_word[split])}. A control label belongs to the word "
            "type: draw once for each different word, and give it wherever the word stands."
        )
    if first == many["labels"]:
        return "These are the task's own labels. The control task must have nothing to do with them: draw at random."
    if len(set(first)) == 1:
        return "Every word has the same label, so the control task could be solved without any reading."
    share = Counter(next(iter(tags)) for tags in by_word.values())["b"] / len(by_word)
    if abs(share - 0.2) > 0.06:
        return (
            f"One label in five is 'b', but {share:.0%} of the words drew it. The control task should be as hard to "
            "guess as the real one: draw each label as often as it occurs."
        )
    if sum(a == b for a, b in zip(first, many["labels"], strict=True)) > 0.8 * len(first):  # chance is 0.68
        return "The labels follow those of the task. Draw them without looking at which word has which."
    return None


def _listed(result: Any, given: dict[str, list]) -> list:
    """The result as a list with one known label a word; raises Hint for anything else."""
    if isinstance(result, str) or not (isinstance(result, Sequence) or hasattr(result, "tolist")):
        raise Hint(f"A list of labels is asked for, this is {article(result)}.")
    got = result.tolist() if hasattr(result, "tolist") else list(result)
    shown = f"\nSee it for {show(given)}" if len(given["words"]) < 10 else ""
    if len(got) != len(given["words"]):
        raise Hint(f"{len(got)} labels came for {len(given['words'])} words; needed: one for each.{shown}")
    odd = [label for label in got if label not in given["labels"]]
    if odd:
        raise Hint(f"{odd[0]!r} is none of the task's labels. Draw among those that occur.{shown}")
    return got


def _remove(answer: Any) -> None:
    """remove(z, v): z (n, d) without its component along v (d,), which may have any length."""
    draw = torch.Generator().manual_seed(0)
    for n, d in ((2, 2), (4, 3)):
        z = torch.randint(-3, 4, (n, d), generator=draw).float()
        v = torch.tensor([2.0, 0.0] if d == 2 else [1.0, -2.0, 2.0])
        given = {"z": z, "v": v}
        got = tensor(call(answer, **given), (n, d), "(n, d)", given)
        unit = v / v.norm()
        along = z @ unit
        want = z - along[:, None] * unit
        rest = (got @ v.double()).abs().max()
        rule = (
            f"Along v there is still up to {rest / v.norm():.2f} left; there should be nothing."
            if not same(rest, torch.tensor(0.0))
            else "Nothing is left along v, but something else changed too. Across v, nothing should change."
        )
        mistakes = {
            "This is the part along v, the part to take away. What is left when it is gone?": along[:, None] * unit,
            "v is not of length 1, and it comes in twice: divide by its squared length.": z - (z @ v)[:, None] * v,
            "v comes in twice, so divide by its length twice: by its squared length.": (
                z - (z @ v)[:, None] * v / v.norm()
            ),
            "Every vector lost the whole of v. Each should lose its own component: how far it reaches along v.": (
                z - v
            ),
            "Every vector lost v at length 1. Each should lose its own component: how far it reaches along v.": (
                z - unit
            ),
            "Added instead of taken away: now there is twice as much along v.": z + along[:, None] * unit,
            "Nothing was taken away.": z,
        }
        expect(got, want, mistakes, rule, given)


def _attach(answer: Any) -> None:
    """attach(maps, down, up): maps (K, n, n) query by key, weights (K,) each -> for each word its head, (n,)."""
    for maps, down, up in (tuple(map(torch.tensor, case)) for case in _TREES):
        n = maps.shape[1]
        given = {"maps": maps, "down": down, "up": up}
        got = tensor(call(answer, **given), (n,), "(word,)", given)
        scores = torch.einsum("k,kij->ij", down, maps) + torch.einsum("k,kji->ij", up, maps)  # (candidate, word)
        swapped = scores.T
        self_only = scores.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
        mistakes = {
            "A word is its own head here. Leave out the diagonal before you choose.": scores.argmax(0),
            "down and up are exchanged, or the best was taken along the wrong axis. maps[k, i, j] is how much i looks "
            "at j: for candidate i and word j, that is a look down.": (
                swapped.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf).argmax(0)
            ),
            "Only the looks down are used. The looks up are maps[k, j, i].": (
                torch.einsum("k,kij->ij", down, maps).fill_diagonal_(-torch.inf).argmax(0)
            ),
            "Only the looks up are used. The looks down are maps[k, i, j].": (
                torch.einsum("k,kji->ij", up, maps).fill_diagonal_(-torch.inf).argmax(0)
            ),
            "This takes the worst candidate, not the best.": (
                scores.masked_fill(torch.eye(n, dtype=torch.bool), torch.inf).argmin(0)
            ),
        }
        rule = "For word j take the i with the greatest sum of down[k] maps[k, i, j] + up[k] maps[k, j, i]."
        expect(got, self_only.argmax(0), mistakes, rule, given)


# Maps and weights for which each known mistake gives another answer.
_TREES = (
    ([[[0.6, 0.3, 0.1], [0.0, 0.1, 0.9], [0.1, 0.0, 0.9]]], [1.1], [2.4]),
    (
        [
            [[0.0, 0.0, 0.6, 0.4], [0.8, 0.0, 0.0, 0.2], [0.9, 0.0, 0.1, 0.0], [0.0, 0.0, 0.8, 0.2]],
            [[0.2, 0.2, 0.2, 0.4], [0.1, 0.7, 0.0, 0.2], [0.8, 0.0, 0.2, 0.0], [0.0, 0.2, 0.0, 0.8]],
        ],
        [2.7, 1.1],
        [1.1, 2.9],
    ),
)

EXERCISES = (
    Exercise("04.gradient", "the gradient of a probe", _gradient),
    Exercise("04.control", "labels of a control task", _control),
    Exercise("04.remove", "remove a direction", _remove),
    Exercise("04.attach", "syntactic heads from maps", _attach),
)
