"""Answers to the exercises of lesson 03: right ones, and wrong ones with what their hint must say."""

from collections import Counter

import torch


def right_positional(maps, offset):
    looks = maps.argmax(-1)
    query = torch.arange(maps.shape[1])
    there = (query + offset >= 0) & (query + offset < maps.shape[2])
    return (looks == query + offset)[:, there].float().mean(-1)


def positional_in_a_loop(maps, offset):
    out = []
    for head in maps.tolist():
        hits = [row.index(max(row)) == i + offset for i, row in enumerate(head) if 0 <= i + offset < len(row)]
        out.append(sum(hits) / len(hits))
    return out


def edges_counted(maps, offset):
    return (maps.argmax(-1) == torch.arange(maps.shape[1]) + offset).float().mean(-1)


def right_baseline(fitted, scored):
    offset = Counter(k - q for q, k in fitted).most_common(1)[0][0]
    return sum(k - q == offset for q, k in scored) / len(scored)


def baseline_by_max(fitted, scored):
    offsets = [k - q for q, k in fitted]
    best = max(offsets, key=offsets.count)
    return torch.tensor([float(k - q == best) for q, k in scored]).mean()


def without_sign(fitted, scored):
    offset = Counter(abs(k - q) for q, k in fitted).most_common(1)[0][0]
    return sum(abs(k - q) == offset for q, k in scored) / len(scored)


def right_words(weights, words):
    member = torch.nn.functional.one_hot(words).float()
    return (member / member.sum(0)).T @ weights @ member


def words_in_a_loop(weights, words):
    n = int(words.max()) + 1
    return [[float(weights[words == i][:, words == j].sum(1).mean()) for j in range(n)] for i in range(n)]


def both(weights, words, kind):
    n = int(words.max()) + 1
    return [[float(getattr(weights[words == i][:, words == j], kind)()) for j in range(n)] for i in range(n)]


def exchanged(weights, words):
    n = int(words.max()) + 1
    return [[float(weights[words == i][:, words == j].sum(0).mean()) for j in range(n)] for i in range(n)]


def right_aer(proposed, sure, possible):
    return 1 - (len(proposed & sure) + len(proposed & (possible | sure))) / (len(proposed) + len(sure))


def aer_in_a_loop(proposed, sure, possible):
    found = sum((link in sure) + (link in sure or link in possible) for link in proposed)
    return 1.0 - found / (len(proposed) + len(sure))


ANSWERS = {
    "03.positional": {
        "right": [right_positional, positional_in_a_loop],
        "wrong": [
            (edges_counted, "without such a key"),
            (lambda maps, offset: right_positional(maps, -offset), "The sign"),
            (lambda maps, offset: maps.diagonal(offset, -2, -1).mean(-1), "mean weight"),
            (lambda maps, offset: edges_counted(maps, offset) * 4, "number of hits"),
            (lambda maps, offset: right_positional(maps.transpose(1, 2), offset), "strongest query|The sign"),
            (lambda maps, offset: right_positional(maps, offset) / 2 + 0.3, "each row's strongest key"),
            (lambda maps, offset: right_positional(maps, offset).mean(), "The shape is"),
            (lambda maps: 1, "stopped with TypeError"),
        ],
    },
    "03.baseline": {
        "right": [right_baseline, baseline_by_max],
        "wrong": [
            (lambda fitted, scored: right_baseline(scored, scored), "fits them too well"),
            (lambda fitted, scored: right_baseline(fitted, fitted), "share in fitted"),
            (without_sign, "The sign is lost"),
            (lambda fitted, scored: right_baseline([(k, q) for q, k in fitted], scored), "turned round"),
            (lambda fitted, scored: right_baseline(fitted, scored) * len(scored), "number of hits|offset itself"),
            (lambda fitted, scored: Counter(k - q for q, k in fitted).most_common(1)[0][0], "offset itself|number of"),
            (lambda fitted, scored: 0.77, "Count key - query over fitted.*you say 0.77"),
            (lambda fitted, scored: "often", "A number is asked for, this is a str"),
        ],
    },
    "03.aer": {
        "right": [right_aer, aer_in_a_loop],
        "wrong": [
            (lambda proposed, sure, possible: 1 - right_aer(proposed, sure, possible), "1 minus that"),
            (
                lambda proposed, sure, possible: (
                    1 - (len(proposed & sure) + len(proposed & possible)) / (len(proposed) + len(sure))
                ),
                "Sure links are possible, too",
            ),
            (
                lambda proposed, sure, possible: 1 - 2 * len(proposed & sure) / (len(proposed) + len(sure)),
                "Only sure links count",
            ),
            (
                lambda proposed, sure, possible: (
                    1
                    - (len(proposed & sure) + len(proposed & (possible | sure)))
                    / (len(proposed) + len(possible | sure))
                ),
                "the possible set",
            ),
            (lambda proposed, sure, possible: 1 - len(proposed & (possible | sure)) / len(proposed), "precision"),
            (lambda proposed, sure, possible: 1 - len(proposed & sure) / len(sure), "recall"),
            (lambda proposed, sure, possible: 7, "Add the two overlaps"),
            (lambda proposed, sure, possible: "few", "A number is asked for"),
        ],
    },
    "03.words": {
        "right": [right_words, words_in_a_loop, lambda weights, words: right_words(weights, words).numpy()],
        "wrong": [
            (lambda weights, words: both(weights, words, "mean"), "Both sides are averaged"),
            (lambda weights, words: both(weights, words, "sum"), "Both sides are summed"),
            (exchanged, "sides are exchanged"),
            (lambda weights, words: right_words(weights, words).T, "Queries and keys are exchanged"),
            (lambda weights, words: both(weights, words, "max"), "each row then sums to 1"),
            (lambda weights, words: weights, "The shape is"),
        ],
    },
    "03.dies": {
        "right": [
            {"stays": "4.3", "dies": "3.4"},
            {"stays": 4.3, "dies": 3.4},
            {"dies": ("encoder", 3, 4), "stays": (4, 3)},
            {"stays": "encoder 4.3", "dies": "encoder 3.4"},
        ],
        "blank": [None, {"stays": ..., "dies": ...}, {"stays": "4.3", "dies": None}],
        "wrong": [
            ({"stays": "5.0", "dies": "3.4"}, "sharpest map"),
            ({"stays": "2.5", "dies": "3.4"}, "clearest role"),
            ({"stays": "5.7", "dies": "3.4"}, "stand-in"),
            ({"stays": "3.4", "dies": "5.0"}, "nothing either way"),
            ({"stays": "5.0", "dies": "4.3"}, "sharpest map"),
            ({"stays": "4.3", "dies": "2.5"}, "more than nothing"),
            ({"stays": "4.3", "dies": "4.3"}, "cannot be both"),
            ({"stays": "3.4", "dies": "4.3"}, "nothing either way"),
            ({"stays": "5.1", "dies": "3.4"}, "Choose among 2.5"),
            ({"stays": "4.3"}, "A dict is asked for"),
            ("4.3", "A dict is asked for"),
        ],
    },
}
