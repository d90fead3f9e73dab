"""Exercises of lesson 04: words without grammar, rare words, what two heads cost together, sentences that decide."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, expect, tensor
from headtools.course.exercises.lesson_03 import Pair, compare_pairs, make_sentence

_WORDS = ["the", "old", "dog", "chased", "a", "cat", "today"]
_VOCABULARY = ["sea", "ran", "green", "under", "she", "lamp", "near", "two", "boat", "slept"]


def _swap(answer: Any) -> None:
    """swap_words(words, how, vocabulary, draw): as many words, without the grammar of the sentence."""

    def run(how: str, seed: int) -> list[str]:
        words = list(_WORDS)
        result = _drawn(answer, words, how, list(_VOCABULARY), random.Random(seed))
        if words != _WORDS:
            raise Hint("Your function changes the list that it is given. Work on a copy: the sentence is needed again.")
        if isinstance(result, str) or not isinstance(result, list | tuple):
            raise Hint(f'A list of words is asked for, this is {article(result)}, for how = "{how}".')
        if len(result) != len(_WORDS):
            raise Hint(f'Of {len(_WORDS)} words you return {len(result)}, for how = "{how}": {list(result)}.')
        return list(result)

    for how in ("shuffled", "random", "repeated"):
        drawn = [run(how, seed) for seed in range(8)]
        shown = f'\nSee it for words = {_WORDS} and how = "{how}", where you give {drawn[0]}.'
        if len({tuple(words) for words in drawn}) == 1:
            same = "This is the sentence itself." if drawn[0] == _WORDS else "Each call gives the same words."
            raise Hint(f"{same} Let `draw` decide; how, hint 2 says.{shown}")
        if run(how, 3) != drawn[3]:
            raise Hint(f"The same seed gives other words each time. Draw with `draw` only, not with random.{shown}")
        if how == "shuffled" and any(Counter(words) != Counter(_WORDS) for words in drawn):
            raise Hint(f"These are not the words of the sentence. Keep each once, in another order.{shown}")
        if how == "random":
            if any(word not in _VOCABULARY for words in drawn for word in words):
                raise Hint(f"Random words come from the vocabulary, not from the sentence.{shown}")
            if all(len(set(words)) == 1 for words in drawn):
                raise Hint(f"One word is drawn for all places. Draw for each place anew.{shown}")
        if how == "repeated":
            if any(len(set(words)) > 1 for words in drawn):
                raise Hint(f"Repeated is one word, as often as the sentence has words.{shown}")
            if any(words[0] not in _WORDS for words in drawn):
                raise Hint(f"The word that is repeated is one of the sentence's own.{shown}")


def _drawn(answer: Any, *given: Any) -> Any:
    return call(answer, **dict(zip(("words", "how", "vocabulary", "draw"), given, strict=True)))


def _rarest(answer: Any) -> None:
    """rarest_pairs(sentences, rank, least): from every word to the rarest ones, in the sentences that count."""
    how_rare = {"the": 0, "dog": 3, "saw": 5, "Zoe": 900, "Ana": 900, "fox": 700, "ran": 600}
    texts = [
        "the dog saw Zoe",
        "the dog saw",
        "fox saw Zoe and Ana ran",
        "Zoe Ana saw",
        "Zoe saw Ana ran",
        "the fox saw the dog",
    ]
    sentences = [make_sentence(text) for text in texts]

    def rank(word: str) -> int:
        return how_rare.get(word, 1)

    def pairs(least: int, pick: Any = max, tie: Any = lambda keys, n: 2 * len(keys) <= n) -> list[Pair]:
        found = []
        for b, words in enumerate(text.split() for text in texts):
            ranks = [rank(word) for word in words]
            keys = frozenset(i for i, r in enumerate(ranks) if r == pick(ranks))
            if max(ranks) >= least and tie(keys, len(words)):
                found += [(b, i, keys) for i in range(len(words))]
        return found

    for least in (500, 700, 0):
        result = call(answer, sentences=list(sentences), rank=rank, least=least)
        want = pairs(least)
        mistakes = {
            "This is the most frequent word. A high rank is a rare word: many are more frequent.": pairs(least, min),
            "A sentence in which more than half of the words tie for rarest does not count.": pairs(
                least, tie=lambda keys, n: True
            ),
            "Exactly half of the words may tie; more than half may not.": pairs(
                least, tie=lambda keys, n: 2 * len(keys) < n
            ),
            "A highest rank of exactly `least` counts.": pairs(least + 1),
            "Sentences without a rare word are in it. Does the highest rank reach `least`?": pairs(0),
            "Where words tie for rarest, all their places are keys, in one set.": [
                (b, i, frozenset({min(keys)})) for b, i, keys in want
            ],
            "Where words tie for rarest, make one pair with all their places, not a pair for each.": [
                (b, i, frozenset({key})) for b, i, keys in want for key in keys
            ],
            "Every word of the sentence is a query, the rarest one as well.": [
                (b, i, keys) for b, i, keys in want if i not in keys
            ],
            "The rarest word is the key. The queries are all words of the sentence.": [
                (b, i, keys) for b, i, keys in want if i in keys
            ],
        }
        rule = "Ranks of a sentence, their maximum, the places that have it; then a pair for each word, if it counts."
        compare_pairs(result, want, mistakes, rule, sentences, least=least, ranks=how_rare)


def _pair(answer: Any) -> None:
    """pair_cost(cost, a, b): rows (n, 4), without a, without b, without both, and beyond the sum of the two."""
    a, b = ("encoder", 0, 1), ("encoder", 3, 2)
    base = torch.tensor([0.5, 0.0, 0.25])
    of = {
        (): base,
        (a,): base + torch.tensor([0.25, 0.0, 0.0]),
        (b,): base + torch.tensor([0.0, 0.5, 0.0]),
        (a, b): base + torch.tensor([2.0, 0.5, 1.0]),
    }

    def cost(heads: Any) -> torch.Tensor:
        known = of.get(tuple(tuple(head) for head in sorted(heads)))
        if known is None:
            raise Hint(f"cost takes a list of heads, [], [a], [b] or [a, b]; you ask for {heads!r}.")
        return known.clone()

    given = {"cost": cost, "a": a, "b": b}
    mistakes = {
        (4,): "This is a mean over examples. Keep a row for each: an interval needs them.",
        (4, 3): "The axes are exchanged: one row for each example, four numbers in it.",
        (3, 3): "There are three columns; the fourth is what both cost beyond the sum of the two.",
    }
    shown = {"cost of no head": base, "of [a]": of[a,], "of [b]": of[b,], "of [a, b]": of[a, b]}
    got = tensor(call(answer, **given), (3, 4), "(example, 4)", shown, mistakes)
    without = [(of[heads] - base).double() for heads in ((a,), (b,), (a, b))]
    raw = [of[heads].double() for heads in ((a,), (b,), (a, b))]
    want = torch.stack([*without, without[2] - without[0] - without[1]], -1)
    known = {
        "Subtract what is wrong with all heads on: a cost is a rise.": torch.stack(
            [*raw, raw[2] - raw[0] - raw[1]], -1
        ),
        "The rises are right. In the fourth the base is subtracted twice: take the rises, both - a - b.": torch.stack(
            [*without, raw[2] - raw[0] - raw[1]], -1
        ),
        "The signs are turned: a cost is what is lost, without the head minus with it.": -want,
        "The fourth has its sign turned: above 0 where both cost more than their sum.": torch.stack(
            [*without, without[0] + without[1] - without[2]], -1
        ),
        "The fourth is what both cost; take off what each costs alone.": torch.stack([*without, without[2]], -1),
    }
    expect(got, want, known, "Four runs: no head off, a off, b off, both off. Each minus the first.", shown)


def _frames(answer: Any) -> None:
    """counterfactual(frames, slots, n, seed): {frame: [words, ...]} that differ in the frame alone."""
    frames = {"near": "the {who} saw the {what} .", "apart": "the {who} with the {rival} saw the {what} ."}
    slots = {"who": ["sailor", "queen", "cook"], "what": ["box", "rope", "lamp"], "rival": ["box", "rope", "lamp"]}
    result = call(answer, frames=dict(frames), slots={k: list(v) for k, v in slots.items()}, n=12, seed=0)
    if not isinstance(result, Mapping) or set(result) != set(frames):
        raise Hint(
            f"A dict is asked for with an entry for each frame, {' and '.join(frames)}; this is {article(result)}."
        )
    if not any(result.values()):
        raise NotTried
    for name, sentences in result.items():
        if len(sentences) != 12:
            raise Hint(f'{len(sentences)} sentences for the frame "{name}"; n = 12 are asked for.')
        if any(isinstance(sentence, str) for sentence in sentences):
            raise Hint(f"A sentence is a list of words: split it. Yours is {sentences[0]!r}.")
        if any("{" in word for sentence in sentences for word in sentence):
            raise Hint(f"A gap is not filled: {' '.join(sentences[0])}")
    near, apart = ([list(sentence) for sentence in result[name]] for name in frames)
    if near == near[:1] * 12:
        raise Hint("All sentences are the same. Make the random generator once, before the loop, not in it.")
    for one, two in zip(near, apart, strict=True):
        shown = f"\nSee it for {' '.join(one)!r} and {' '.join(two)!r}."
        if (one[1], one[4]) != (two[1], two[7]):
            raise Hint(f"The frames have other words: draw once for a sentence, then fill all frames with it.{shown}")
        if two[7] == two[4]:
            raise Hint(f"One word fills two gaps of a sentence: choose among those that are not taken.{shown}")
    rivals = {sentence[4] for sentence in apart}
    if len(rivals) < 2 or len({sentence[1] for sentence in near}) < 2:
        raise Hint(f"A gap has the same word in every sentence.{shown}")
    again = call(answer, frames=dict(frames), slots={k: list(v) for k, v in slots.items()}, n=12, seed=0)
    other = call(answer, frames=dict(frames), slots={k: list(v) for k, v in slots.items()}, n=12, seed=1)
    if again != result:
        raise Hint("Called twice with the same seed it gives other sentences: random.Random(seed) is the generator.")
    if other == result:
        raise Hint("Another seed gives the same sentences: random.Random(seed) is the generator.")


EXERCISES = (
    Exercise("04.swap", "words without their grammar", _swap, "swap_words"),
    Exercise("04.rarest", "the rarest word", _rarest, "rarest_pairs"),
    Exercise("04.pair", "what two heads cost together", _pair, "pair_cost"),
    Exercise("04.frames", "sentences that tell rules apart", _frames, "counterfactual"),
)
