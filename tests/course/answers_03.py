"""Answers to the exercises of lesson 03: right ones, and wrong ones with what their hint must say."""

import math
from collections import Counter

import torch
from scipy import stats

import headtools as ht
from headtools.course import my_heads
from headtools.course.my_heads import relation_pairs


def pairs_in_a_loop(sentences, offset):
    out = []
    for number, sentence in enumerate(sentences):
        for query in range(max(0, -offset), len(sentence.words) - max(0, offset)):
            out.append((number, query, [query + offset]))
    return out


def every_query(sentences, offset):
    return [(b, i, {i + offset}) for b, s in enumerate(sentences) for i in range(len(s.words))]


def pairs_round_the_edge(sentences, offset):
    return [(b, i, {(i + offset) % len(s.words)}) for b, s in enumerate(sentences) for i in range(len(s.words))]


def hits_in_a_loop(attended, pairs):
    layers, heads = attended.shape[1:3]
    return [
        [[int(attended[b, layer, h, i]) in keys for h in range(heads)] for layer in range(layers)]
        for b, i, keys in pairs
    ]


def hits_by_mask(attended, pairs):
    sentence, query, keys = zip(*pairs, strict=True)
    wanted = torch.zeros(len(pairs), 99, dtype=torch.bool)
    for n, some in enumerate(keys):
        wanted[n, list(some)] = True
    key = attended[list(sentence), :, :, list(query)]
    return wanted[torch.arange(len(pairs))[:, None, None], key]


def one_key(attended, pairs):
    return torch.stack([attended[b, :, :, i] == min(keys) for b, i, keys in pairs])


def bootstrap(rows, times=1000, kind="", seed=5):
    """An interval with one mistake, in another style than the reference: from how often each row is drawn."""
    n, mean = len(rows), rows.mean(0)
    error, generator = rows.std(0) / math.sqrt(n), torch.Generator().manual_seed(seed)
    places = torch.randint(n, (times, n), generator=generator)
    counts = torch.zeros(times, n).double().scatter_add_(1, places, torch.ones(times, n).double())
    counts = torch.ones_like(counts) if kind == "permuted" else counts
    means = counts @ rows / n
    variances = torch.stack(
        [(counts * (column - m[:, None]).square()).sum(1) for column, m in zip(rows.T, means.T, strict=True)], 1
    )
    error = error * math.sqrt(n) if kind in ("no root", "sample without root") else error
    its = (variances / (n - 1) / (1 if kind == "no root" else n)).sqrt()
    its = its if kind in ("no floor", "no floor, zeros", "nan") else torch.maximum(its, error / 4)
    its = error if kind == "sample's error" else its
    t = (means - mean) / its
    big = 0 if kind == "no floor, zeros" else 99
    t = means if kind == "percentile" else t if kind == "nan" else t.nan_to_num(0, big, -big)
    ends = t.quantile(torch.tensor([0.025, 0.975], dtype=rows.dtype), dim=0)
    if kind == "percentile":
        return ends[0], ends[1]
    student = -9 if kind == "no guard" else stats.t.ppf(0.975, n - 1)
    below, above = torch.clamp(ends[0], max=-student), torch.clamp(ends[1], min=student)
    below = torch.full_like(below, -student) if kind == "upper end Student's" else below
    above = torch.full_like(above, student) if kind == "lower end Student's" else above
    below = above if kind == "ends the same" else below  # "the larger", at the lower quantile too
    if kind == "as they come":
        return mean + below * error, mean + above * error
    scale = error * math.sqrt(n) if kind == "spread" else error
    return mean - above * scale, mean - below * scale


def wrong_interval(kind):
    return lambda rows, times: bootstrap(rows, times, kind=kind)


def equal_rows_fail(rows, times):
    low, high = bootstrap(rows, times)
    return low * (rows.std(0) / rows.std(0)), high


def normal(rows, times):
    half = 1.96 * rows.std(0) / math.sqrt(len(rows))
    return rows.mean(0) - half, rows.mean(0) + half


def package_bootstrap(rows, times=1000):
    return ht.bootstrap(rows)


def relations_by_list(sentences, relation, way):
    words = [(b, i) for b, s in enumerate(sentences) for i in range(len(s.words))]
    ours = [(b, i) for b, i in words if sentences[b].relations[i] == relation and sentences[b].heads[i]]
    up = [(b, i, {sentences[b].heads[i] - 1}) for b, i in ours]
    return up if way == "up" else [(b, *key, (i,)) for b, i, key in up]


def from_one(sentences, relation, way):
    return [
        (b, *((q, {k + 1}) if way == "up" else (q + 1, {k}))) for b, q, (k,) in relation_pairs(sentences, relation, way)
    ]


def grouped(sentences, relation, way):
    keys = {}
    for b, query, some in relations_by_list(sentences, relation, way):
        keys.setdefault((b, query), set()).update(some)
    return [(*where, some) for where, some in keys.items()]


def with_root(sentences, relation, way):
    pairs = []
    for b, s in enumerate(sentences):
        for i, (parent, name) in enumerate(zip(s.heads, s.relations, strict=True)):
            if name == relation:
                pairs.append((b, i, {parent - 1}) if way == "up" else (b, parent - 1, {i}))
    return pairs


def every_relation(sentences, relation, way):
    return [p for name in ("det", "nsubj", "obj") for p in relation_pairs(sentences, name, way)]


def offset_by_counter(fitted, scored):
    best = Counter(min(keys) - q for _, q, keys in fitted).most_common(1)[0][0]
    return best, torch.tensor([float(q + best in keys) for _, q, keys in scored]).mean()


def without_sign(fitted, scored):
    best = Counter(abs(min(keys) - q) for _, q, keys in fitted).most_common(1)[0][0]
    return best, sum(abs(min(keys) - q) == best for _, q, keys in scored) / len(scored)


ANSWERS = {
    "03.pairs": {
        "right": [my_heads.offset_pairs, pairs_in_a_loop],
        "wrong": [
            (lambda sentences, offset: my_heads.offset_pairs(sentences, -offset), "The sign: offset -1 means"),
            (every_query, "edge of its sentence has no word there"),
            (pairs_round_the_edge, "goes on at the other end"),
            (lambda sentences, offset: my_heads.offset_pairs(sentences[:1], offset), "Only the first sentence"),
            (
                lambda sentences, offset: [(0, q, k) for _, q, k in my_heads.offset_pairs(sentences, offset)],
                "Every pair is of sentence 0",
            ),
            (
                lambda sentences, offset: [
                    (b, q + 1, {min(k) + 1}) for b, q, k in my_heads.offset_pairs(sentences, offset)
                ],
                "counted from 0",
            ),
            (
                lambda sentences, offset: [(b, q, min(k)) for b, q, k in my_heads.offset_pairs(sentences, offset)],
                "keys of a pair are a set",
            ),
            (lambda sentences, offset: [(0, 1)], "three parts"),
            (lambda sentences, offset: 3, "A list of pairs"),
            (lambda sentences, offset: [(0, 0, {0})], "the key is the query plus the offset"),
        ],
    },
    "03.hits": {
        "right": [my_heads.hits, hits_in_a_loop, hits_by_mask],
        "wrong": [
            (one_key, "may have several keys"),
            (lambda a, pairs: my_heads.hits(a, pairs).float().mean(0), "one number a head"),
            (lambda a, pairs: my_heads.hits(a, pairs).any(-1).any(-1), "one answer for a pair"),
            (lambda a, pairs: my_heads.hits(a, pairs).permute(1, 2, 0), "put them first"),
            (lambda a, pairs: ~my_heads.hits(a, pairs), "other way round"),
            (lambda a, pairs: torch.stack([a[b, :, :, i] for b, i, _ in pairs]), "strongest keys themselves"),
            (lambda a, pairs: my_heads.hits(a, [(0, i, keys) for _, i, keys in pairs]), "sentence is not used"),
            (lambda a, pairs: torch.zeros(len(pairs), *a.shape[1:3]), "A tensor is never `in` a set"),
            (lambda a, pairs: torch.rand(len(pairs), *a.shape[1:3]), "is the strongest key. Is it one of the keys"),
            (lambda a, pairs: "many", "a str"),
        ],
    },
    "03.bootstrap": {
        "right": [my_heads.bootstrap, bootstrap, lambda rows, times: torch.stack(bootstrap(rows, times, seed=6))],
        "wrong": [
            (wrong_interval("percentile"), "middle of the resampled means, without t"),
            (wrong_interval("as they come"), "exchange the two"),
            (wrong_interval("sample's error"), "error of its own resample"),
            (wrong_interval("no guard"), "narrower than Student"),
            (wrong_interval("no floor"), "quarter of the sample's"),
            (wrong_interval("no floor, zeros"), "quarter of the sample's. .Your infinite t became 0"),
            (wrong_interval("nan"), "An end is not finite.*quarter of the sample's"),
            (equal_rows_fail, "There is a NaN. Where all rows are equal"),
            (wrong_interval("permuted"), "drawn with replacement"),
            (wrong_interval("ends the same"), "The two ends are the same"),
            (wrong_interval("upper end Student's"), "Student's interval alone"),
            (wrong_interval("lower end Student's"), "Student's interval alone"),
            (wrong_interval("no root"), "the root is missing"),
            (wrong_interval("sample without root"), "the root is missing"),
            (wrong_interval("spread"), "by the root of n|Draw n rows"),
            (normal, "1.96|Student"),
            (lambda rows, times: rows.mean(0), "Two things are asked for|lower and the upper end"),
            (lambda rows, times: bootstrap(rows, times)[::-1], "lower end lies above"),
            (lambda rows, times: (rows.mean(), rows.mean()), r"\(H,\)"),
            (package_bootstrap, "ht.bootstrap is right, and it is the one that you are about to write"),
        ],
    },
    "03.relation": {
        "right": [my_heads.relation_pairs, relations_by_list],
        "wrong": [
            (from_one, "counted from 1"),
            (
                lambda s, relation, way: my_heads.relation_pairs(s, relation, "down" if way == "up" else "up"),
                "ways are exchanged",
            ),
            (with_root, "The root depends on nothing"),
            (grouped, "Each word with the relation makes a pair of its own"),
            (every_relation, "All relations are there"),
            (lambda s, relation, way: [], "makes one pair"),
            (lambda s, relation, way: s[0].nothing, "stopped with AttributeError"),
        ],
    },
    "03.offset": {
        "right": [my_heads.best_offset, offset_by_counter],
        "wrong": [
            (lambda fitted, scored: my_heads.best_offset(scored, scored), "chosen on the pairs that are scored"),
            (lambda fitted, scored: my_heads.best_offset(fitted, fitted), "share is that in fitted"),
            (without_sign, "sign is lost"),
            (lambda fitted, scored: my_heads.best_offset(fitted, scored)[::-1], "two are exchanged"),
            (
                lambda fitted, scored: (
                    -my_heads.best_offset(fitted, scored)[0],
                    my_heads.best_offset(fitted, scored)[1],
                ),
                "query minus key",
            ),
            (
                lambda fitted, scored: (
                    my_heads.best_offset(fitted, scored)[0],
                    my_heads.best_offset(fitted, scored)[1] * len(scored),
                ),
                "divide by the number of pairs",
            ),
            (lambda fitted, scored: my_heads.best_offset(fitted, scored)[1], "Two things"),
            (lambda fitted, scored: (7, 0.5), "Count key - query"),
        ],
    },
}
