"""Answers to the exercises of lesson 04: right ones, and wrong ones with what their hint must say."""

import random

import torch
from edited import of

from headtools.course import my_heads

rarest, swap, pair, frames = map(of, ("rarest_pairs", "swap_words", "pair_cost", "counterfactual"))


def rarest_by_sorting(sentences, rank, least):
    pairs = []
    for b, s in enumerate(sentences):
        order = sorted(range(len(s.words)), key=lambda i: -rank(s.words[i]))
        top = rank(s.words[order[0]])
        keys = [i for i in order if rank(s.words[i]) == top]
        if top < least or len(keys) > len(order) / 2:
            continue
        pairs.extend((b, query, keys) for query in order)
    return pairs


def swap_in_steps(words, how, vocabulary, draw):
    if how == "shuffled":
        mixed = list(words)
        draw.shuffle(mixed)
        return mixed
    if how == "random":
        return draw.choices(vocabulary, k=len(words))
    word = draw.choice(words)
    return [word for _ in words]


def cost_in_steps(cost, a, b):
    none = cost([]).double()
    rises = torch.zeros(len(none), 4).double()
    for column, heads in enumerate([[a], [b], [a, b]]):
        rises[:, column] = cost(heads) - none
    rises[:, 3] = rises[:, 2] - rises[:, 0] - rises[:, 1]
    return rises


def frames_in_steps(frames, slots, n, seed=0):
    draw, made = random.Random(seed), {name: [] for name in frames}
    while len(made[next(iter(frames))]) < n:
        words = {gap: draw.choice(some) for gap, some in slots.items()}
        if len(set(words.values())) < len(words):
            continue
        for name in frames:
            made[name].append(frames[name].format_map(words).split(" "))
    return made


PAIR, FILLED = "(b, i, keys)", "frame.format(**chosen)"
SHUFFLED, RANDOM, REPEATED = (
    "draw.sample(words, len(words))",
    "[draw.choice(vocabulary) for _ in words]",
    "[draw.choice(words)]",
)
FOURTH = "without_both - without_a - without_b"
ANSWERS = {
    "04.rarest": {
        "right": [my_heads.rarest_pairs, rarest_by_sorting],
        "wrong": [
            (rarest("r == max", "r == min"), "most frequent word"),
            (rarest(" and 2 * len(keys) <= len(ranks)", ""), "more than half of the words tie"),
            (rarest("<= len(ranks)", "< len(ranks)"), "Exactly half"),
            (rarest(">= least", "> least"), "exactly `least` counts"),
            (rarest("max(ranks) >= least and ", ""), "without a rare word"),
            (rarest(PAIR, "(b, i, {min(keys)})"), "all their places are keys"),
            (rarest(PAIR, "(b, i, {key}) for key in keys"), "not a pair for each"),
            (rarest("range(len(ranks))", "range(len(ranks)) if i not in keys"), "the rarest one as well"),
            (rarest("range(len(ranks))", "keys"), "The queries are all words"),
            (rarest(PAIR, "(0, i, keys)"), "Ranks of a sentence"),
            (rarest(PAIR, "(b, i)"), "Each pair has three parts"),
        ],
    },
    "04.swap": {
        "right": [my_heads.swap_words, swap_in_steps],
        "wrong": [
            (swap(SHUFFLED, "words"), "This is the sentence itself"),
            (swap(SHUFFLED, "sorted(words)"), "Each call gives the same"),
            (swap(SHUFFLED, "draw.choices(words, k=7)"), "each once, in another order"),
            (swap(RANDOM, "draw.choices(words, k=7)"), "come from the vocabulary"),
            (swap(RANDOM, "[draw.choice(vocabulary)] * 7"), "for each place anew"),
            (swap(RANDOM, "random.choices(vocabulary, k=7)"), "same seed gives other"),
            (swap(f"{REPEATED} * len(words)", "draw.choices(words, k=7)"), "Repeated is one word"),
            (swap(REPEATED, "[draw.choice(vocabulary)]"), "sentence's own"),
            (swap(f"{REPEATED} * len(words)", REPEATED), "you return 1"),
            (swap(REPEATED, "draw.choice(words)"), "A list of words"),
            (
                swap(f"return {SHUFFLED}", "draw.shuffle(words)\n        return words"),
                "changes the list that it is given",
            ),
        ],
    },
    "04.pair": {
        "right": [my_heads.pair_cost, cost_in_steps],
        "wrong": [
            (pair("each - off[0]", "each"), "a cost is a rise"),
            (pair(FOURTH, "off[3] - off[1] - off[2]"), "base is subtracted twice"),
            (pair("each - off[0]", "off[0] - each"), "signs are turned"),
            (pair(FOURTH, "without_a + without_b - without_both"), "fourth has its sign turned"),
            (pair(FOURTH, "without_both"), "take off what each costs alone"),
            (pair("], -1)", "], -1).mean(0)"), "mean over examples"),
            (pair("], -1)", "])"), "axes are exchanged"),
            (pair(f", {FOURTH}", ""), "three columns"),
            (pair("each - off[0]", "2 * (each - off[0])"), "Four runs"),
            (lambda cost, a, b: cost(["a"]), "takes a list of heads|Hint"),
        ],
    },
    "04.frames": {
        "right": [my_heads.counterfactual, frames_in_steps],
        "blank": [lambda *_: None, lambda frames, slots, n, seed=0: {name: [] for name in frames}],
        "wrong": [
            (
                frames(FILLED, "frame.format(**{gap: draw.choice(slots[gap]) for gap in slots})"),
                "draw once for a sentence",
            ),
            (frames(" if word not in chosen.values()", ""), "One word fills two gaps"),
            (frames("chosen: dict", "draw = random.Random(seed)\n        chosen: dict"), "All sentences are the same"),
            (frames("Random(seed)", "Random(3)"), "Another seed gives the same"),
            (frames("Random(seed)", "Random()"), "same seed it gives other"),
            (frames("range(n)", "range(3)"), "n = 12 are asked for"),
            (frames(".split()", ""), "split it"),
            (frames(FILLED, "frame"), "A gap is not filled"),
            (lambda frames, slots, n, seed=0: ["the sailor"], "A dict is asked for"),
        ],
    },
}
