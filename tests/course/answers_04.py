"""Answers to the exercises of lesson 04: right ones, and wrong ones with what their hint must say."""

import random

import torch

from headtools.course import my_heads
from headtools.course.my_heads import counterfactual, pair_cost


def swap_in_steps(words, how, vocabulary, draw):
    if how == "shuffled":
        mixed = list(words)
        draw.shuffle(mixed)
        return mixed
    if how == "random":
        return draw.choices(vocabulary, k=len(words))
    word = draw.choice(words)
    return [word for _ in words]


def swap(**changes):
    """The right function, with another answer for one way."""

    def answer(words, how, vocabulary, draw):
        change = changes.get(how)
        return change(words, vocabulary, draw) if change else swap_in_steps(words, how, vocabulary, draw)

    return answer


def spoils(words, how, vocabulary, draw):
    draw.shuffle(words)
    return words


def cost_in_steps(cost, a, b):
    none = cost([]).double()
    rises = torch.zeros(len(none), 4).double()
    for column, heads in enumerate([[a], [b], [a, b]]):
        rises[:, column] = cost(heads) - none
    rises[:, 3] = rises[:, 2] - rises[:, 0] - rises[:, 1]
    return rises


def unsubtracted(cost, a, b):
    each = [cost(heads) for heads in ([a], [b], [a, b])]
    return torch.stack([*each, each[2] - each[0] - each[1]], 1)


def twice(cost, a, b):
    rows = pair_cost(cost, a, b)
    rows[:, 3] = cost([a, b]) - cost([a]) - cost([b])
    return rows


def fourth(change):
    def answer(cost, a, b):
        rows = pair_cost(cost, a, b)
        rows[:, 3] = change(rows)
        return rows

    return answer


def frames_in_steps(frames, slots, n, seed=0):
    draw, made = random.Random(seed), {name: [] for name in frames}
    while len(made[next(iter(frames))]) < n:
        words = {gap: draw.choice(some) for gap, some in slots.items()}
        if len(set(words.values())) < len(words):
            continue
        for name in frames:
            made[name].append(frames[name].format_map(words).split(" "))
    return made


def fresh_words(frames, slots, n, seed=0):
    return {name: frames_in_steps({name: f}, slots, n, seed + i)[name] for i, (name, f) in enumerate(frames.items())}


def doubled(frames, slots, n, seed=0):
    draw, made = random.Random(seed), {name: [] for name in frames}
    for _ in range(n):
        words = {gap: draw.choice(some) for gap, some in slots.items()}
        for name in frames:
            made[name].append(frames[name].format(**words).split())
    return made


def seeded_inside(frames, slots, n, seed=0):
    one = counterfactual(frames, slots, 1, seed)
    return {name: sentences * n for name, sentences in one.items()}


def rarest(pick=max, enough=lambda top, least: top >= least, few=lambda keys, n: 2 * len(keys) <= n, made=None):
    """Right where nothing is given; each argument puts in one mistake."""

    def answer(sentences, rank, least):
        pairs = []
        for b, s in enumerate(sentences):
            ranks = [rank(word) for word in s.words]
            keys = {i for i, r in enumerate(ranks) if r == pick(ranks)}
            if enough(max(ranks), least) and few(keys, len(ranks)):
                for i in range(len(ranks)):
                    pairs += [(b, i, keys)] if made is None else made(b, i, keys)
        return pairs

    return answer


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


ANSWERS = {
    "04.rarest": {
        "right": [my_heads.rarest_pairs, rarest_by_sorting, rarest()],
        "wrong": [
            (rarest(pick=min), "most frequent word"),
            (rarest(few=lambda keys, n: True), "more than half of the words tie"),
            (rarest(few=lambda keys, n: 2 * len(keys) < n), "Exactly half"),
            (rarest(enough=lambda top, least: top > least), "exactly `least` counts"),
            (rarest(enough=lambda top, least: True), "without a rare word"),
            (rarest(made=lambda b, i, keys: [(b, i, {min(keys)})]), "all their places are keys"),
            (rarest(made=lambda b, i, keys: [(b, i, {key}) for key in keys]), "not a pair for each"),
            (rarest(made=lambda b, i, keys: [(b, i, keys)] if i not in keys else []), "the rarest one as well"),
            (rarest(made=lambda b, i, keys: [(b, i, keys)] if i in keys else []), "The queries are all words"),
            (rarest(made=lambda b, i, keys: [(0, i, keys)]), "Ranks of a sentence"),
            (rarest(made=lambda b, i, keys: [(b, i)]), "Each pair has three parts"),
        ],
    },
    "04.swap": {
        "right": [my_heads.swap_words, swap_in_steps],
        "wrong": [
            (swap(shuffled=lambda words, vocabulary, draw: words), "This is the sentence itself"),
            (swap(shuffled=lambda words, vocabulary, draw: sorted(words)), "Each call gives the same"),
            (swap(shuffled=lambda words, vocabulary, draw: draw.choices(words, k=7)), "each once, in another order"),
            (swap(random=lambda words, vocabulary, draw: draw.choices(words, k=7)), "come from the vocabulary"),
            (swap(random=lambda words, vocabulary, draw: [draw.choice(vocabulary)] * 7), "for each place anew"),
            (swap(random=lambda words, vocabulary, draw: random.choices(vocabulary, k=7)), "same seed gives other"),
            (swap(repeated=lambda words, vocabulary, draw: draw.choices(words, k=7)), "Repeated is one word"),
            (swap(repeated=lambda words, vocabulary, draw: [draw.choice(vocabulary)] * 7), "sentence's own"),
            (swap(repeated=lambda words, vocabulary, draw: [draw.choice(words)]), "you return 1"),
            (swap(repeated=lambda words, vocabulary, draw: draw.choice(words) * 7), "A list of words"),
            (spoils, "changes the list that it is given"),
        ],
    },
    "04.pair": {
        "right": [my_heads.pair_cost, cost_in_steps],
        "wrong": [
            (unsubtracted, "a cost is a rise"),
            (twice, "base is subtracted twice"),
            (lambda cost, a, b: -my_heads.pair_cost(cost, a, b), "signs are turned"),
            (fourth(lambda rows: -rows[:, 3]), "fourth has its sign turned"),
            (fourth(lambda rows: rows[:, 2]), "take off what each costs alone"),
            (lambda cost, a, b: my_heads.pair_cost(cost, a, b).mean(0), "mean over examples"),
            (lambda cost, a, b: my_heads.pair_cost(cost, a, b).T, "axes are exchanged"),
            (lambda cost, a, b: my_heads.pair_cost(cost, a, b)[:, :3], "three columns"),
            (lambda cost, a, b: my_heads.pair_cost(cost, a, b) * 2, "Four runs"),
            (lambda cost, a, b: cost(["a"]), "takes a list of heads|Hint"),
        ],
    },
    "04.frames": {
        "right": [my_heads.counterfactual, frames_in_steps],
        "blank": [lambda *_: None, lambda frames, slots, n, seed=0: {name: [] for name in frames}],
        "wrong": [
            (fresh_words, "draw once for a sentence"),
            (doubled, "One word fills two gaps"),
            (seeded_inside, "All sentences are the same"),
            (lambda f, s, n, seed=0: my_heads.counterfactual(f, s, n, 3), "Another seed gives the same"),
            (lambda f, s, n, seed=0: my_heads.counterfactual(f, s, n, random.random()), "same seed it gives other"),
            (lambda f, s, n, seed=0: my_heads.counterfactual(f, s, 3, seed), "n = 12 are asked for"),
            (
                lambda f, s, n, seed=0: {
                    k: [" ".join(w) for w in v] for k, v in my_heads.counterfactual(f, s, n).items()
                },
                "split it",
            ),
            (lambda f, s, n, seed=0: {k: [v.split()] * n for k, v in f.items()}, "A gap is not filled"),
            (lambda f, s, n, seed=0: ["the sailor"], "A dict is asked for"),
        ],
    },
}
