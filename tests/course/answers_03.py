"""Answers to the exercises of lesson 03: right ones, and wrong ones with what their hint must say."""

import math
from collections import Counter

import torch
from edited import of
from scipy import stats

import headtools as ht
from headtools.course import my_heads

pairs, hits, interval, relation, baseline = map(
    of, ("offset_pairs", "hits", "bootstrap", "relation_pairs", "best_offset")
)


def pairs_in_a_loop(sentences, offset):
    out = []
    for number, sentence in enumerate(sentences):
        for query in range(max(0, -offset), len(sentence.words) - max(0, offset)):
            out.append((number, query, [query + offset]))
    return out


def hits_in_a_loop(attended, pairs):
    layers, heads = attended.shape[1:3]
    return [
        [[int(attended[b, layer, h, i]) in keys for h in range(heads)] for layer in range(layers)]
        for b, i, keys in pairs
    ]


def bootstrap(rows, times=1000, seed=5):
    """Another style: from how often each row is drawn."""
    n, mean = len(rows), rows.mean(0)
    error, generator = rows.std(0) / math.sqrt(n), torch.Generator().manual_seed(seed)
    places = torch.randint(n, (times, n), generator=generator)
    counts = torch.zeros(times, n).double().scatter_add_(1, places, torch.ones(times, n).double())
    means = counts @ rows / n
    variances = [(counts * (column - m[:, None]).square()).sum(1) for column, m in zip(rows.T, means.T, strict=True)]
    its = torch.maximum((torch.stack(variances, 1) / (n - 1) / n).sqrt(), error / 4)
    t = ((means - mean) / its).nan_to_num(0, 99, -99)
    below, above = t.quantile(torch.tensor([0.025, 0.975], dtype=rows.dtype), dim=0)
    student = stats.t.ppf(0.975, n - 1)
    return mean - torch.clamp(above, min=student) * error, mean - torch.clamp(below, max=-student) * error


def package_bootstrap(rows, times=1000):
    return ht.bootstrap(rows)


def relations_by_list(sentences, relation, way):
    words = [(b, i) for b, s in enumerate(sentences) for i in range(len(s.words))]
    ours = [(b, i) for b, i in words if sentences[b].relations[i] == relation and sentences[b].heads[i]]
    up = [(b, i, {sentences[b].heads[i] - 1}) for b, i in ours]
    return up if way == "up" else [(b, *key, (i,)) for b, i, key in up]


def offset_by_counter(fitted, scored):
    best = Counter(min(keys) - q for _, q, keys in fitted).most_common(1)[0][0]
    return best, torch.tensor([float(q + best in keys) for _, q, keys in scored]).mean()


ROWS, STRONGEST = "torch.stack(rows)", "torch.isin(attended[b, ..., i], torch.tensor(sorted(keys)))"
UPPER, LOWER = "above.clamp_min(student)", "below.clamp_max(-student)"  # of t: they give the lower and the upper end
ENDS = f"mean - {UPPER} * error, mean - {LOWER} * error"
DRAWN = "torch.randint(n, (times, n), generator=torch.Generator().manual_seed(0))"
ERROR, FLOOR, FINITE = "rows.std(0) / math.sqrt(n)", ".maximum(error / 4)", ".nan_to_num(0, 0, 0)"
ITS_ERROR, SHARE = (
    "(resampled.std(1) / math.sqrt(n))",
    "sum(query + best in keys for _, query, keys in scored) / len(scored)",
)
ANSWERS = {
    "03.pairs": {
        "right": [my_heads.offset_pairs, pairs_in_a_loop],
        "wrong": [
            (pairs("pairs = []", "pairs, offset = [], -offset"), "The sign: offset -1 means"),
            (pairs(" if 0 <= i + offset < length", ""), "edge of its sentence has no word there"),
            (
                pairs("{i + offset}", "{(i + offset) % length}", " if 0 <= i + offset < length", ""),
                "goes on at the other end",
            ),
            (pairs("enumerate(sentences)", "enumerate(sentences[:1])"), "Only the first sentence"),
            (pairs("(b, i, ", "(0, i, "), "Every pair is of sentence 0"),
            (pairs("(b, i, {i + offset})", "(b, i + 1, {i + 1 + offset})"), "counted from 0"),
            (pairs("{i + offset}", "i + offset"), "keys of a pair are a set"),
            (lambda sentences, offset: [(0, 1)], "three parts"),
            (lambda sentences, offset: 3, "A list of pairs"),
            (lambda sentences, offset: [(0, 0, {0})], "the key is the query plus the offset"),
        ],
    },
    "03.hits": {
        "right": [my_heads.hits, hits_in_a_loop],
        "wrong": [
            (hits("sorted(keys)", "min(keys)"), "may have several keys"),
            (hits(ROWS, f"{ROWS}.float().mean(0)"), "one number a head"),
            (hits(ROWS, f"{ROWS}.any(-1).any(-1)"), "one answer for a pair"),
            (hits(ROWS, f"{ROWS}.permute(1, 2, 0)"), "put them first"),
            (hits(ROWS, f"~{ROWS}"), "other way round"),
            (hits(STRONGEST, "attended[b, ..., i]"), "strongest keys themselves"),
            (hits("attended[b, ", "attended[0, "), "sentence is not used"),
            (hits(ROWS, f"torch.zeros_like({ROWS})"), "A tensor is never `in` a set"),
            (hits(ROWS, f"torch.rand({ROWS}.shape)"), "is the strongest key. Is it one of the keys"),
            (lambda a, pairs: "many", "a str"),
        ],
    },
    "03.bootstrap": {
        "right": [my_heads.bootstrap, bootstrap, lambda rows, times: torch.stack(bootstrap(rows, times, seed=6))],
        "wrong": [
            (
                interval(
                    "student =", "return resampled.mean(1).quantile(torch.tensor([0.025, 0.975]).double(), 0)\n    _ ="
                ),
                "middle of the resampled means, without t",
            ),
            (interval(ENDS, f"mean + {LOWER} * error, mean + {UPPER} * error"), "exchange the two"),
            (interval(ITS_ERROR + FLOOR, "error"), "error of its own resample"),
            (interval("stats.t.ppf(0.975, n - 1)", "-9.0"), "narrower than Student"),
            (interval(FLOOR, "", FINITE, ".nan_to_num(0, 99, -99)"), "quarter of the sample's"),
            (interval(FLOOR, ""), "quarter of the sample's. .Your infinite t became 0"),
            (interval(FLOOR, "", FINITE, ""), "An end is not finite.*quarter of the sample's"),
            (interval(FINITE, ""), "There is a NaN. Where all rows are equal"),
            (interval(DRAWN, "torch.rand(times, n).argsort(1)"), "drawn with replacement"),
            (interval(LOWER, UPPER), "The two ends are the same"),
            (interval(LOWER, "(-student)"), "Student's interval alone"),
            (interval(UPPER, "student"), "Student's interval alone"),
            (interval(ERROR, "rows.std(0)", ITS_ERROR, "resampled.std(1)"), "the root is missing"),
            (interval(ERROR, "rows.std(0)"), "the root is missing"),
            (
                interval(f"{LOWER} * error", f"{LOWER} * rows.std(0)", f"{UPPER} * error", f"{UPPER} * rows.std(0)"),
                "by the root of n|Draw n rows",
            ),
            (interval("draws =", "return mean - 1.96 * error, mean + 1.96 * error\n    draws ="), "1.96|Student"),
            (lambda rows, times: rows.mean(0), "Two things are asked for|lower and the upper end"),
            (interval(ENDS, f"mean - {LOWER} * error, mean - {UPPER} * error"), "lower end lies above"),
            (lambda rows, times: (rows.mean(), rows.mean()), r"\(H,\)"),
            (package_bootstrap, "ht.bootstrap is right, and it is the one that you are about to write"),
        ],
    },
    "03.relation": {
        "right": [my_heads.relation_pairs, relations_by_list],
        "wrong": [
            (relation("(i, parent - 1) if", "(i, parent) if", "(parent - 1, i)", "(parent, i)"), "counted from 1"),
            (relation('way == "up"', 'way != "up"'), "ways are exchanged"),
            (relation(" and parent > 0", ""), "The root depends on nothing"),
            (
                relation(
                    *("pairs = []", "keys = {}"),
                    *("pairs.append((b, query, {key}))", "keys.setdefault((b, query), set()).add(key)"),
                    *("return pairs", "return [(*where, some) for where, some in keys.items()]"),
                ),
                "Each word with the relation makes a pair of its own",
            ),
            (relation("name == relation", 'name in ("det", "nsubj", "obj")'), "All relations are there"),
            (lambda s, relation, way: [], "makes one pair"),
            (lambda s, relation, way: s[0].nothing, "stopped with AttributeError"),
        ],
    },
    "03.offset": {
        "right": [my_heads.best_offset, offset_by_counter],
        "wrong": [
            (baseline("in fitted for", "in scored for"), "chosen on the pairs that are scored"),
            (baseline("in scored) / len(scored)", "in fitted) / len(fitted)"), "share is that in fitted"),
            (
                baseline("key - query", "abs(key - query)", "query + best in keys", "abs(min(keys) - query) == best"),
                "sign is lost",
            ),
            (baseline(f"best, {SHARE}", f"{SHARE}, best"), "two are exchanged"),
            (baseline("return best", "return -best"), "query minus key"),
            (baseline(" / len(scored)", ""), "divide by the number of pairs"),
            (baseline("return best, ", "return "), "Two things"),
            (lambda fitted, scored: (7, 0.5), "Count key - query"),
        ],
    },
}
