"""Exercises of lesson 03: pairs by distance, hits, an interval by bootstrap, pairs by grammar, the best offset."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from headtools.course.exercises.exercise import Exercise, Hint, article, call, number, same, several, show, tensor
from headtools.roles.sentence import Sentence

Pair = tuple[int, int, frozenset]


def make_sentence(text: str, heads: tuple[int, ...] = (), relations: str = "") -> Sentence:
    """Make a sentence of words between spaces, with the words that they depend on and by which relation."""
    words = tuple(text.split())
    none = (0,) * len(words)
    return Sentence(words, heads or none, tuple(relations.split()) or ("dep",) * len(words), ("X",) * len(words), none)


def read_pairs(result: Any) -> list[Pair]:
    """Read pairs (sentence, query, keys) with any collection of keys; raises Hint for anything else."""
    if isinstance(result, str) or not isinstance(result, Iterable):
        raise Hint(f"A list of pairs (sentence, query, keys) is asked for, this is {article(result)}.")
    pairs = list(result)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 3:
            raise Hint(f"Each pair has three parts, (sentence, query, keys); one of yours is {pair!r}.")
        if not isinstance(pair[2], set | frozenset | list | tuple):
            raise Hint(f"The keys of a pair are a set, {{{pair[2]!r}}}: later stories have several. Yours is {pair!r}.")
    return [(int(b), int(query), frozenset(int(key) for key in keys)) for b, query, keys in pairs]


def compare_pairs(
    result: Any, want: list[Pair], mistakes: dict[str, list[Pair]], rule: str, sentences: list[Sentence], **given: Any
) -> None:
    """Compare pairs with those wanted, in any order; raises Hint with the likely mistake, or with the rule."""
    got = read_pairs(result)
    if Counter(got) != Counter(want):
        hint = next((hint for hint, wrong in mistakes.items() if Counter(got) == Counter(wrong)), rule)
        listed = [(b, query, set(keys)) for b, query, keys in got[:6]]
        texts = {"sentences": [" ".join(sentence.words) for sentence in sentences], **given}
        raise Hint(f"{hint}\nSee it for {show(texts)}, where you give {listed}{' ...' if len(got) > 6 else ''}.")


def _offset(answer: Any) -> None:
    """offset_pairs(sentences, offset): [(sentence, query, {query + offset})] for the queries that have such a word."""
    sentences = [make_sentence("the old dog slept"), make_sentence("she ran")]
    for offset in (-1, 1, -2):
        result = call(answer, sentences=list(sentences), offset=offset)
        want = _apart(sentences, offset)
        wrapped = [
            (b, i, frozenset({(i + offset) % len(s.words)}))
            for b, s in enumerate(sentences)
            for i in range(len(s.words))
        ]
        edges = "A query at the edge of its sentence has no word there. Leave it out"
        mistakes = {
            f"The sign: offset {offset} means key = query {offset:+d}.": _apart(sentences, -offset),
            f"{edges}: the key must be from 0 to the last word.": _all(sentences, offset),
            f"{edges}; a key of -1 would be the last word.": [p for p in _all(sentences, offset) if offset < 0],
            f"{edges}; yours goes on at the other end.": wrapped,
            "Words are counted from 0, sentences too.": [(b, q + 1, _moved(k, 1)) for b, q, k in want],
            "Only the first sentence has pairs. Go through all of them.": [pair for pair in want if pair[0] == 0],
            "Every pair is of sentence 0. The first part of a pair is the number of its sentence.": [
                (0, q, k) for _, q, k in want
            ],
        }
        rule = "For each sentence and each of its words: the key is the query plus the offset, where there is one."
        compare_pairs(result, want, mistakes, rule, sentences, offset=offset)


def _apart(sentences: list[Sentence], offset: int) -> list[Pair]:
    lengths = [len(sentence.words) for sentence in sentences]
    return [(b, q, k) for b, q, k in _all(sentences, offset) if 0 <= min(k) < lengths[b]]


def _all(sentences: list[Sentence], offset: int) -> list[Pair]:
    return [(b, i, frozenset({i + offset})) for b, s in enumerate(sentences) for i in range(len(s.words))]


def _moved(keys: frozenset, by: int) -> frozenset:
    return frozenset(key + by for key in keys)


def _hits(answer: Any) -> None:
    """hits(attended, pairs): attended (sentence, layer, head, query) -> (pair, layer, head), is the key a hit?"""
    attended = torch.tensor([[[[1, 0, 1, 2], [0, 0, 1, 2]]], [[[3, 2, 1, 0], [1, 2, 3, 3]]]])  # (2, 1, 2, 4)
    cases = (
        (attended, [(0, 1, {0}), (0, 2, {1}), (1, 0, {3}), (1, 1, {0, 2})]),
        (attended.flip(0), [(1, 3, {2}), (0, 3, {1, 3}), (1, 0, {0, 1})]),
    )
    for given, pairs in cases:
        result = call(answer, attended=given, pairs=list(pairs))
        keys = torch.stack([given[b, :, :, i] for b, i, _ in pairs])  # (pair, layer, head)
        want = _among(keys, pairs)
        where = {"attended": given, "pairs": pairs}
        mistakes = {
            tuple(want.shape[1:]): "This is one number a head. Keep a row for each pair; the mean over pairs comes "
            "later, and an interval needs the rows.",
            (len(pairs),): "There is one answer for a pair; each head of each layer has its own.",
            (*want.shape[1:], len(pairs)): "The pairs are on the last axis; put them first: (pair, layer, head).",
        }
        got = tensor(result, tuple(want.shape), "(pair, layer, head)", where, mistakes)
        if same(got, want.double()):
            continue
        first = [(b, i, {min(keys)}) for b, i, keys in pairs]
        last = [(b, i, {max(keys)}) for b, i, keys in pairs]
        turned = torch.stack([given[b % 2, :, :, min(k)] for b, _, k in pairs])
        known = {
            "A pair may have several keys; any of them is a hit. You look at one.": (_among(keys, first),),
            "A pair may have several keys; any of them is a hit. You look at one. ": (_among(keys, last),),
            "These are the strongest keys themselves. Asked for: is the strongest key among those of the pair?": (
                keys.double(),
            ),
            "It is the other way round: True is a hit.": (~want,),
            "There is no hit at all. A tensor is never `in` a set of numbers: compare numbers with numbers, or tensors "
            "with tensors.": (torch.zeros_like(want),),
            "Queries and keys are exchanged: look where the *query* attends.": (
                torch.stack([torch.isin(t, torch.tensor(i)) for t, (_, i, _) in zip(turned, pairs, strict=True)]),
            ),
            "The sentence is not used: attended has one map of queries for each sentence.": (
                _among(torch.stack([given[0, :, :, i] for _, i, _ in pairs]), pairs),
            ),
        }
        rule = "For a pair (b, i, keys): attended[b, layer, head, i] is the strongest key. Is it one of the keys?"
        hint = next((h.strip() for h, wrongs in known.items() if any(same(got, w.double()) for w in wrongs)), rule)
        raise Hint(f"{hint}\nSee it for {show(where)}")


def _among(keys: Tensor, pairs: list[tuple]) -> Tensor:
    return torch.stack([torch.isin(k, torch.tensor(sorted(some))) for k, (_, _, some) in zip(keys, pairs, strict=True)])


_FLOOR = (
    "A resample of nearly equal rows has hardly any standard error, and its t runs away. Let the error be at least "
    "a quarter of the sample's."
)
_ROOT = "A standard error is the standard deviation divided by the root of n. Somewhere the root is missing."


def _bootstrap(answer: Any) -> None:
    """bootstrap(rows): rows (n, H) -> the lower and upper end of a 95 % interval of their mean, (H,) each."""
    draw = torch.Generator().manual_seed(0)
    skewed = torch.randn(40, 2, generator=draw).double().mul(0.8).exp()
    rare = torch.zeros(12, 2, dtype=torch.double)
    rare[:3, 0] = torch.tensor([1.0, 1.3, 0.8])
    rare[:6, 1] = torch.linspace(0.5, 1.5, 6).double()
    equal = torch.ones(8, 1, dtype=torch.double) * torch.tensor([[0.25, 1.0]])
    kinds = ((skewed, "skewed"), (-skewed, "skewed the other way"), (rare, "rare"), (equal, "equal"))
    for rows, what in kinds:
        result = call(answer, rows=rows, times=10_000)  # so many that a right answer passes whatever it draws
        result = list(result) if getattr(result, "ndim", 0) > 1 else result
        two = several(result, 2, "the lower and the upper end")
        low, high = (tensor(end, (2,), "(H,)", {"rows": rows}) for end in two)
        ends = torch.stack([low, high])
        if bool(ends.isnan().any()) and what == "equal":
            raise Hint(
                "There is a NaN. Where all rows are equal, the resamples' standard errors are 0 and t is 0 / 0: "
                "make it 0 (nan_to_num), and the interval ends at the mean."
            )
        if not bool(ends.isfinite().all()):
            raise Hint(f"An end is not finite. {_FLOOR}")
        mean, error = rows.mean(0), rows.std(0) / math.sqrt(len(rows))
        if bool((low > high).any()):
            raise Hint("The lower end lies above the upper one. The upper quantile of t gives the lower end.")
        if what != "equal" and _near(high - low, torch.zeros(2), error / 10):
            raise Hint(
                "The two ends are the same. t's lower quantile is negative: at that end take the smaller one of it and "
                "minus Student's."
            )
        ends = ends - mean
        wanted = _studentised(rows)
        if _near(ends, wanted, error):
            continue
        known: dict[str, Tensor] = {
            "This is Student's interval alone; at one end t is wider. Are the rows drawn with replacement? Is each t "
            "divided by the standard error of its own resample, with the root of n?": _student(rows),
            _ROOT: _studentised(rows, rooted=False),
            "This is the middle of the resampled means, without t. Divide each resample's distance from the mean by "
            "its own standard error; few or skewed examples are why.": _percentile(rows),
            "The ends are those of t as they come. A sample whose mean is too high has a t above 0, so the upper "
            "quantile of t belongs to the lower end: exchange the two, with a minus.": _studentised(
                rows, exchanged=False
            ),
            "It is narrower than Student's t. Take whichever is wider, at both ends.": _studentised(rows, guard=False),
            _FLOOR: _studentised(rows, floor=0.0),
            f"{_FLOOR} (Your infinite t became 0.)": _studentised(rows, floor=0.0, instead=0.0),
            "This is 1.96 standard errors to each side: no resample is in it.": _student(rows, 1.96),
        }
        hint = next((h for h, wrong in known.items() if _near(ends, wrong, error)), "")
        if _near(ends / math.sqrt(len(rows)), wanted, error):
            hint = "This is the spread of the examples; the mean of n examples varies less, by the root of n."
        if not hint and bool((ends.abs() > 10 * error).any()):
            hint = _FLOOR
        hint = hint or "Draw n rows with replacement, many times; t of each; its quantiles times the standard error."
        worst = (ends - wanted).abs().amax(0).argmax()
        given, right = (" to ".join(f"{end:.2f}" for end in (some + mean)[:, worst]) for some in (ends, wanted))
        raise Hint(f"{hint}\nSee it for {len(rows)} rows that are {what}, where you give {given} and right is {right}.")


def _near(ends: Tensor, wanted: Tensor, error: Tensor) -> bool:
    """Whether two pairs of ends agree as well as two sets of ten thousand draws do, with room to spare."""
    scale = error.clamp_min(1e-9) * (0.12 + 0.07 * (wanted.abs() / error.clamp_min(1e-9)).clamp(max=8))
    return bool(((ends - wanted).abs() <= scale + 1e-9).all())


def _draws(rows: Tensor, times: int = 20_000) -> Tensor:
    n = len(rows)
    return rows[torch.randint(n, (times, n), generator=torch.Generator().manual_seed(1))]


def _studentised(
    rows: Tensor,
    exchanged: bool = True,
    guard: bool = True,
    floor: float = 0.25,
    instead: float = 50.0,
    rooted: bool = True,
) -> Tensor:
    """Give the ends, from the mean, of the interval, or of one with a mistake; an infinite t is ``instead``.

    The root of n is missing in both standard errors where ``rooted`` is False.
    """
    n, mean = len(rows), rows.mean(0)
    error = rows.std(0) / (math.sqrt(n) if rooted else 1)
    resampled = _draws(rows)
    its = (resampled.std(1) / (math.sqrt(n) if rooted else 1)).maximum(floor * error)
    t = ((resampled.mean(1) - mean) / its).nan_to_num(0, instead, -instead)
    below, above = t.quantile(torch.tensor([0.025, 0.975], dtype=t.dtype), dim=0)
    student = _quantile(n) if guard else -math.inf
    if not exchanged:
        return torch.stack([below.clamp_max(-student) * error, above.clamp_min(student) * error])
    return torch.stack([-above.clamp_min(student) * error, -below.clamp_max(-student) * error])


def _percentile(rows: Tensor) -> Tensor:
    means = _draws(rows).mean(1)
    return means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype), dim=0) - rows.mean(0)


def _student(rows: Tensor, quantile: float | None = None) -> Tensor:
    half = (quantile or _quantile(len(rows))) * rows.std(0) / math.sqrt(len(rows))
    return torch.stack([-half, half])


def _quantile(n: int) -> float:
    from scipy import stats

    return float(stats.t.ppf(0.975, n - 1))


def _relation(answer: Any) -> None:
    """relation_pairs(sentences, relation, way): from a word up to the one that it depends on, or down from there."""
    sentences = [
        make_sentence("the dog chased a cat", (2, 3, 0, 5, 3), "det nsubj root det obj"),
        make_sentence("sleep the nights", (0, 3, 1), "root det obj"),
        make_sentence("big old dogs", (3, 3, 0), "amod amod root"),
    ]
    for relation, way in (("det", "up"), ("obj", "down"), ("obj", "up"), ("root", "up"), ("amod", "down")):
        result = call(answer, sentences=list(sentences), relation=relation, way=way)
        want = _related(sentences, relation, way)
        raw = [(b, q, _moved(k, 1)) for b, q, k in want] if way == "up" else [(b, q + 1, k) for b, q, k in want]
        mistakes = {
            "Heads are counted from 1, since 0 is the root, and words from 0: subtract 1.": raw,
            'The ways are exchanged. "up" is from a word to the one that it depends on.': _related(
                sentences, relation, "up" if way == "down" else "down"
            ),
            "Two words that share a query make one pair here. Each word with the relation makes a pair of its own, or "
            "a query with two of them counts once.": _grouped(want),
            "The root depends on nothing: its head is 0, which is no word. Leave it out.": _related(
                sentences, relation, way, root=True
            ),
            "All relations are there. Keep the words whose own relation is the one asked for.": [
                pair for r in ("det", "nsubj", "obj") for pair in _related(sentences, r, way)
            ],
        }
        rule = "A word i with this relation and a head above 0 makes one pair, of i and head - 1, in the order of way."
        compare_pairs(result, want, mistakes, rule, sentences, relation=relation, way=way)


def _grouped(pairs: list[Pair]) -> list[Pair]:
    keys: dict[tuple, frozenset] = {}
    for b, query, some in pairs:
        keys[b, query] = keys.get((b, query), frozenset()) | some
    return [(*where, some) for where, some in keys.items()]


def _related(sentences: list[Sentence], relation: str, way: str, root: bool = False) -> list[Pair]:
    pairs = []
    for b, s in enumerate(sentences):
        for i, (parent, name) in enumerate(zip(s.heads, s.relations, strict=True)):
            if name == relation and (parent or root):
                ends = (i, parent - 1) if way == "up" else (parent - 1, i)
                pairs.append((b, ends[0], frozenset({ends[1]})))
    return pairs


def _best(answer: Any) -> None:
    """best_offset(fitted, scored): the most frequent offset of fitted, and the share of scored that lies there."""
    fitted = _pairs_at((0, 1), (3, 4), (2, 4), (5, 6), (4, 3))
    scored = _pairs_at((1, 3), (0, 2), (6, 8), (2, 4), (2, 3), (5, 4), (3, 2))
    turned = _pairs_at((4, 2), (3, 1), (0, 1)), _pairs_at((5, 3), (1, 3), (2, 3), (6, 4), (4, 2))
    for a, b in ((fitted, scored), (scored, fitted), turned):
        offset, share = map(
            number, several(call(answer, fitted=list(a), scored=list(b)), 2, "the offset and the share")
        )
        best = _most_frequent(a)
        want = (best, _at(b, best))
        if math.isclose(offset, want[0]) and math.isclose(share, want[1], abs_tol=1e-6):
            continue
        other, size = _most_frequent(b), _most_frequent(a, abs)
        chosen = "The offset was chosen on the pairs that are scored: it fits them too well. Choose it on fitted."
        mistakes = {
            chosen: (other, _at(b, other)),
            "The share is that in fitted, where the offset was chosen. Score the other pairs.": (best, _at(a, best)),
            "This is query minus key, an offset turned round.": (-best, want[1]),
            "The sign is lost: two words before is another offset than two words after.": (
                size,
                sum(abs(min(k) - q) == size for _, q, k in b) / len(b),
            ),
            "The second is the number of hits; divide by the number of pairs.": (best, want[1] * len(b)),
            "The two are exchanged: first the offset, then the share.": want[::-1],
        }
        rule = "Count key - query over fitted, take the most frequent, and see how often scored has it."
        got = torch.tensor([offset, share])
        hint = next((hint for hint, wrong in mistakes.items() if same(got, torch.tensor(wrong))), rule)
        raise Hint(f"{hint}\nSee it for {show({'fitted': a, 'scored': b})}, where you give {offset:g} and {share:.3g}.")


def _pairs_at(*pairs: tuple[int, int]) -> list[tuple]:
    return [(0, query, {key}) for query, key in pairs]


def _most_frequent(pairs: list[tuple], of: Callable[[int], int] = int) -> int:
    return Counter(of(min(keys) - query) for _, query, keys in pairs).most_common(1)[0][0]


def _at(pairs: list[tuple], offset: int) -> float:
    return sum(query + offset in keys for _, query, keys in pairs) / len(pairs)


EXERCISES = (
    Exercise("03.pairs", "pairs by distance", _offset, "offset_pairs"),
    Exercise("03.hits", "the score of every head", _hits, "hits"),
    Exercise("03.bootstrap", "an interval for any mean", _bootstrap, "bootstrap"),
    Exercise("03.relation", "pairs by grammar", _relation, "relation_pairs"),
    Exercise("03.offset", "the baseline that makes a head look clever", _best, "best_offset"),
)
