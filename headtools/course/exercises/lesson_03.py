"""Exercises of lesson 03: the positional score, a baseline, the alignment error rate, word maps, a head's fate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, Hint, NotTried, call, expect, expect_number, number, tensor


def _positional(answer: Any) -> None:
    """positional(maps, offset): maps (head, query, key) -> (head,), share of queries whose strongest key is there."""
    previous = torch.tensor([[0.6, 0.1, 0.1, 0.2], [0.7, 0.1, 0.1, 0.1], [0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.6, 0.1]])
    mixed = torch.tensor([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.7, 0.1], [0.4, 0.3, 0.2, 0.1], [0.1, 0.3, 0.2, 0.4]])
    maps = torch.stack([previous, mixed])
    for offset in (-1, 1, -2):
        given = {"maps": maps, "offset": offset}
        got = tensor(call(answer, **given), (2,), "(head,)", given)
        mistakes = {
            f"The sign: offset {offset} means key = query {offset:+d}.": _share(maps, -offset),
            "Queries without such a key are in the mean: the edge has no word there. Leave them out.": (
                _share(maps, offset, divisor=4)
            ),
            "This is the mean weight at the offset. Asked for: how often the *strongest* weight is there.": (
                maps.diagonal(offset, -2, -1).mean(-1)
            ),
            "This is the number of hits; divide by the number of queries that have such a key.": (
                _share(maps, offset, divisor=1)
            ),
            "The strongest query of each key is taken. Each query (row) has one strongest key: argmax over the last "
            "axis.": _share(maps.transpose(-1, -2), offset),
        }
        rule = "Take each row's strongest key, and compare it with the query's own position plus the offset."
        expect(got, _share(maps, offset), mistakes, rule, given)


def _share(maps: torch.Tensor, offset: int, divisor: int | None = None) -> torch.Tensor:
    size = maps.shape[-1]
    query = torch.arange(size)
    there = (query + offset >= 0) & (query + offset < size)
    hits = (maps.argmax(-1) == query + offset) & there
    return hits.sum(-1).double() / (int(there.sum()) if divisor is None else divisor)


def _baseline(answer: Any) -> None:
    """baseline_share(fitted, scored): lists of (query, key) -> share of scored at the best offset of fitted."""
    fitted = [(0, 1), (3, 4), (2, 4), (5, 6), (4, 3)]
    scored = [(1, 3), (0, 2), (6, 8), (2, 4), (2, 3), (5, 4), (3, 2)]
    cases = [(fitted, scored), (scored, fitted), ([(4, 2), (3, 1), (0, 1)], [(5, 3), (1, 3), (2, 3), (6, 4), (4, 2)])]
    for given in ({"fitted": a, "scored": b} for a, b in cases):
        a, b = given["fitted"], given["scored"]
        got = number(call(answer, fitted=list(a), scored=list(b)))
        best = _most_frequent_offset(a)
        want = _at(b, best)
        mistakes = {
            "The offset was chosen on the sentences that are scored: it fits them too well. Choose it on fitted.": (
                _at(b, _most_frequent_offset(b))
            ),
            "This is the share in fitted, where the offset was chosen. Score the other pairs.": _at(a, best),
            "The sign is lost: two words before is another offset than two words after.": (
                sum(abs(k - q) == abs(best) for q, k in b) / len(b)
            ),
            "This is query minus key, an offset turned round.": _at(b, -best),
            "This is the number of hits; divide by the number of pairs.": _at(b, best) * len(b),
            "This is the offset itself; asked for is how often it is right.": float(best),
        }
        rule = "Count key - query over fitted, take the most frequent, and see how often scored has it."
        expect_number(got, want, mistakes, rule, given, form="g", abs_tol=1e-6)


def _most_frequent_offset(pairs: list[tuple[int, int]]) -> int:
    return Counter(k - q for q, k in pairs).most_common(1)[0][0]


def _at(pairs: list[tuple[int, int]], offset: int) -> float:
    return sum(k - q == offset for q, k in pairs) / len(pairs)


def _aer(answer: Any) -> None:
    """aer(proposed, sure, possible): sets of links (target, source) -> the alignment error rate, a number."""
    cases = (
        ({(0, 0), (1, 2), (2, 1)}, {(0, 0), (2, 1)}, {(1, 2), (3, 3)}),
        ({(0, 1), (1, 0), (2, 2), (3, 3)}, {(0, 0), (1, 0), (2, 2)}, {(3, 3), (0, 0), (1, 0), (2, 2)}),
        ({(0, 0), (1, 1)}, {(0, 1), (1, 1), (2, 0)}, set()),
    )
    for proposed, sure, possible in cases:
        given = {"proposed": proposed, "sure": sure, "possible": possible}
        got = number(call(answer, **{name: set(links) for name, links in given.items()}))
        allowed = possible | sure
        in_sure, in_possible = len(proposed & sure), len(proposed & allowed)
        sizes = len(proposed) + len(sure)
        want = 1 - (in_sure + in_possible) / sizes
        mistakes = {
            "This is the share that is right; the error rate is 1 minus that.": 1 - want,
            "Sure links are possible, too: the second overlap is with possible or sure.": (
                1 - (in_sure + len(proposed & possible)) / sizes
            ),
            "Divided by the sizes of the proposed and the possible set; it is the proposed and the sure set.": (
                1 - (in_sure + in_possible) / (len(proposed) + len(allowed))
            ),
            "Only sure links count as found: a proposed link that is possible is no error.": 1 - 2 * in_sure / sizes,
            "This is one minus precision; sure links that were not found are errors as well.": (
                1 - in_possible / len(proposed)
            ),
            "This is one minus recall; proposed links that are not even possible are errors as well.": (
                1 - in_sure / len(sure)
            ),
        }
        rule = "Add the two overlaps, divide by the sizes of proposed and sure together, and take 1 minus that."
        expect_number(got, want, mistakes, rule, given, abs_tol=1e-6)


def _words(answer: Any) -> None:
    """word_map(weights, words): weights (query, key) of tokens, words (token,) -> (W, W) between words."""
    draw = torch.Generator().manual_seed(0)
    for words in ([0, 1, 1, 2], [0, 0, 0, 1, 2, 2]):
        word = torch.tensor(words)
        weights = (torch.rand(len(words), len(words), generator=draw) * 3).softmax(-1).round(decimals=2)
        given = {"weights": weights, "words": word}
        size = int(word.max()) + 1
        raw = call(answer, **given)
        got = tensor(raw, (size, size), "(word, word)", given)
        member = torch.nn.functional.one_hot(word).double()
        share = member / member.sum(0)
        w = weights.double()
        first = torch.tensor([words.index(i) for i in range(size)])
        rule = "Add the columns of one word, then average the rows of one word; each row then sums to 1."
        mistakes = {
            "Both sides are averaged, so that rows no longer sum to 1: weights *to* a word's pieces are summed.": (
                share.T @ w @ share
            ),
            "Both sides are summed: a word of two pieces would send twice as much. Average over the pieces that "
            "send.": member.T @ w @ member,
            "The two sides are exchanged: sum over a key word's pieces, average over a query word's.": (
                member.T @ w @ share
            ),
            "Only first pieces are used: the weight on the others is lost.": w[first][:, first],
            "Only the first piece is a query: average over all of a word's pieces.": (w @ member)[first],
            "Queries and keys are exchanged: rows are query words.": (share.T @ w @ member).T,
        }
        expect(got, share.T @ w @ member, mistakes, rule, given)


# Of five encoder heads, switched off one at a time: who costs the organism the most words, and who none at all. Beside
# each of the other answers, what misled; tests/course/test_check.py counts on the model that it is so.
FIVE = ("2.5", "3.4", "4.3", "5.0", "5.7")
FATE = {"stays": "4.3", "dies": "3.4"}
_STAYS = {
    "5.0": "This head has the sharpest map of the five. A sharp map is not a useful one. What this head finds, "
    "5.4 finds as well, and 5.4 stays on.",
    "2.5": "This head has the clearest role: 98 hits in 100 cases. Yet few words of a translation need the object.",
    "5.7": "This head attends to the previous word. So does 4.2, which stays on. A head with a stand-in costs little.",
    "3.4": "No role says nothing either way. Count what the translation loses without this head.",
}
_DIES = {
    "4.3": "No role of our list fits this head, so the list has no name for its work. Count what the work is worth."
}
_LITTLE = "This head costs little, but more than nothing: the interval of its loss lies above 0. Another costs nothing."


def _dies(answer: Any) -> str | None:
    """A dict {"stays": label, "dies": label}: of FIVE, the head that costs most alone, and one that costs nothing."""
    if not isinstance(answer, Mapping) or set(answer) != set(FATE):
        raise Hint(f'A dict is asked for, {{"stays": ..., "dies": ...}}, with one of {", ".join(FIVE)} for each.')
    labels = {fate: _label(head) for fate, head in answer.items()}
    for fate, head in labels.items():
        if head not in FIVE:
            raise Hint(f"{head!r} {fate}? Choose among {', '.join(FIVE)}.")
    if labels["stays"] == labels["dies"]:
        return "One head cannot be both: the first costs the most of the five, the second nothing."
    if labels["stays"] != FATE["stays"]:
        return f"For the one that stays you say {labels['stays']}. {_STAYS[labels['stays']]}"
    if labels["dies"] != FATE["dies"]:
        return f"For the one that dies you say {labels['dies']}. {_DIES.get(labels['dies'], _LITTLE)}"
    return None


def _label(head: Any) -> str:
    """Write "4.3" for "4.3", "encoder 4.3", 4.3, (4, 3) and ("encoder", 4, 3)."""
    if head is None or head is ...:
        raise NotTried
    if isinstance(head, tuple | list):
        return ".".join(str(part) for part in head if part != "encoder")
    return str(head).removeprefix("encoder").strip()


EXERCISES = (
    Exercise("03.positional", "the positional score", _positional),
    Exercise("03.baseline", "the baseline that makes a head look clever", _baseline),
    Exercise("03.aer", "the alignment error rate", _aer),
    Exercise("03.words", "from tokens to words", _words),
    Exercise("03.dies", "which head dies", _dies),
)
