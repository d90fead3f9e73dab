"""Exercises of lesson 10: two heads in one, a direction taken out, which side an edit was on, where to patch."""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, Hint, article, call, expect, tensor


def _draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).mul(10).round().div(10)


def _merge(answer: Any) -> None:
    """merged(W_V, W_O, rank): (2, d, r) and (2, r, d) of two heads with one map -> (d, d), the best of that rank."""
    for d, rank, seed in ((4, 1, 0), (6, 2, 3)):
        given = {"W_V": _draw(2, d, rank, seed=seed), "W_O": _draw(2, rank, d, seed=seed + 1), "rank": rank}
        value, output = given["W_V"].double(), given["W_O"].double()
        each = value @ output
        total = each.sum(0)
        u, s, vt = torch.linalg.svd(total)
        want = u[:, :rank] * s[:rank] @ vt[:rank]
        got = tensor(call(answer, **given), (d, d), "(d, d)", given)
        rule = (
            "With one map, two heads are one head whose matrix is the sum of theirs. Which matrix of this rank comes "
            "nearest to that sum?"
        )
        mistakes = {
            "That is the sum of both, and its rank is too high for one head: keep its strongest part.": total,
            "That is half of it. Both heads write, so their outputs are added, not averaged.": want / 2,
            "That is the mean of both: outputs are added, and the rank is still that of two heads.": total / 2,
            "Values and outputs are summed on their own, and then multiplied. That also sends what one head reads "
            "to where the other writes.": value.sum(0) @ output.sum(0),
            "Values and outputs are averaged on their own. That also sends what one head reads to where the other "
            "writes.": value.mean(0) @ output.mean(0),
            "This is what the first head does; the second is lost.": each[0],
            "This is what the second head does; the first is lost.": each[1],
            "The directions are right, but their strengths are missing.": u[:, :rank] @ vt[:rank],
            "These are the weakest directions: singular values come with the strongest first.": (
                u[:, -rank:] * s[-rank:] @ vt[-rank:]
            ),
        }
        expect(got, want, mistakes, rule, given)


def _remove(answer: Any) -> None:
    """stop_writing(W_O, v): (r, d) and (d,) of any length -> (r, d) that writes nothing along v, all else as before."""
    for r, d, seed in ((1, 3, 0), (2, 4, 1)):
        given = {"W_O": _draw(r, d, seed=seed), "v": _draw(d, seed=seed + 2)}
        old, v = given["W_O"].double(), given["v"].double()
        along, length = torch.outer(old @ v, v), v @ v
        want = old - along / length
        got = tensor(call(answer, **given), (r, d), "(r, d)", given)
        rule = "Each row of W_O is something the head can write. Take from it its part along v, and no more."
        mistakes = {
            "v is not of length 1 here: the part along it is too large by its length squared.": old - along,
            "v is not of length 1 here: its length comes in twice, once for each time v is used.": (
                old - along / length.sqrt()
            ),
            "That is the part along v alone; it is what should go.": along / length,
            "v itself is taken from every row, however much of it the row has.": old - v,
            "The part along v is doubled: mind the sign.": old + along / length,
            "That turns the part along v around. Taking it away once leaves nothing of it.": old - 2 * along / length,
            "Nothing has changed.": old,
        }
        expect(got, want, mistakes, rule, given)


def _side(answer: Any) -> str | None:
    """side(before, after): two W_OV (d, d), one direction removed -> "read" or "write"."""
    sides = []
    for d, rank, seed in ((3, 2, 0), (5, 3, 5), (4, 4, 9)):
        before = _draw(d, rank, seed=seed) @ _draw(rank, d, seed=seed + 1)
        direction = _draw(d, seed=seed + 2)
        direction = direction / direction.norm()
        edits = {
            "read": before - torch.outer(direction, direction @ before),
            "write": before - torch.outer(before @ direction, direction),
        }
        for want, after in edits.items():
            got = call(answer, before=before, after=after)
            if not isinstance(got, str):
                raise Hint(f'"read" or "write" is asked for, this is {article(got)}.')
            sides.append((got.strip().lower(), want))
    answers = {got for got, _ in sides}
    if answers - {"read", "write"}:
        return f'"read" or "write" is asked for, you say {min(answers - {"read", "write"})!r}.'
    if all(got == want for got, want in sides):
        return None
    if all(got != want for got, want in sides):
        return (
            "You have the two exchanged. Rows are multiplied from the left, x @ W_OV: what is read meets the rows of "
            "the matrix, what is written comes out along its columns."
        )
    if len(answers) == 1:
        return f"You say {answers.pop()!r} of every edit, and half of them are on the other side."
    wrong = sum(got != want for got, want in sides)
    return (
        f"{wrong} of {len(sides)} edits are told wrongly. The difference of the two matrices has rank 1, a product of "
        "two vectors: one of them is the direction removed, and the matrix after the edit has nothing left along it."
    )


ONE, TWO, HEAD = "the old dog slept .", "the old fox slept .", ("encoder", 5, 1)


@cache
def _translations() -> tuple:
    """Return a function from positions to the patched translation of ONE, and what both sentences give unpatched."""
    import headtools as ht

    model, tokenizer = ht.load()
    with torch.no_grad(), ht.record(model, want="z", only=[HEAD[:2]]) as there:
        model.get_encoder()(**tokenizer([TWO], return_tensors="pt"))

    def patched(positions: frozenset) -> list[str]:
        with ht.patch(model, [HEAD], there, sorted(positions)):
            return ht.translate(model, tokenizer, [ONE])[0].split()

    return patched, [text.split() for text in ht.translate(model, tokenizer, [ONE, TWO])]


def _position(answer: Any) -> str | None:
    """positions: the tokens of ONE at which the head is patched so that only the word for *old* changes, as in TWO."""
    listed = answer.tolist() if hasattr(answer, "tolist") else answer
    try:
        listed = [operator.index(listed)] if not isinstance(listed, (list, tuple, set, frozenset)) else listed
        positions = frozenset(operator.index(p) for p in listed if not isinstance(p, bool))
    except TypeError:
        raise Hint(f"A list of positions is asked for, such as [4]; this is {article(answer)}.") from None
    words = ONE.split()
    if not positions:
        return "The list is empty, so nothing is patched."
    if not all(0 <= p <= len(words) for p in positions):  # the end mark is a token, too
        return f"The words of {ONE!r} have the positions 0 to {len(words) - 1}."
    patched, (first, second) = _translations()
    old = len(first) - 2  # the other language puts the adjective behind its noun
    if patched(positions) == [*first[:old], second[old], *first[old + 1 :]]:
        return None
    if words.index("dog") in positions:
        return "The noun is where this head looks. It writes what it found where it looks from."
    if words.index("old") not in positions:
        return "The word for 'old' has not changed. Which word does the head look from, when it tells 'old' its gender?"
    return f"Now more than one word is changed: the translation is {' '.join(patched(positions))!r}. Patch fewer."


EXERCISES = (
    Exercise("10.merge", "two heads in one", _merge),
    Exercise("10.remove", "stop writing a direction", _remove),
    Exercise("10.side", "read or written?", _side),
    Exercise("10.position", "where to patch", _position),
)
