"""Targets, and what is counted on them, against other loops over the words of random sentences."""

import random
from dataclasses import replace
from itertools import product

import pytest
import torch
from headtools.roles._taxonomy.scores import BatchScorer
from headtools.roles._taxonomy.sequences import AttentionSequences
from headtools.roles._taxonomy.targets import argmax_targets, weight_targets
from headtools.roles._taxonomy.vocabulary import Vocabulary

from headtools.roles.conventions import EDGES, GRANULARITIES, Conventions
from headtools.roles.role import nearest_nominal
from headtools.roles.sentence import Sentence
from headtools.roles.spans import Spans, make_spans

FORMS = ("a", "b", "c", "d", ".", "'s")
TAGS = ("NOUN", "PRON", "VERB", "PUNCT", "_")
RELATIONS = ("root", "punct", "nsubj", "det", "obj")
VOCABULARY = Vocabulary({"a": 0, "b": 1, ".": 1}, {"a": 0.5, "b": 1.0, ".": 1.0}, 3.0, {"cls": 90, "eos": 91})
ROLES = [
    *(f"offset {k:+d}" for k in range(-2, 3)),
    *(f"{r} {way}" for r in RELATIONS[2:] for way in ("up", "down")),
    "coreference",
    "rarest",
    "two rarest",
    "rarest other",
    "previous",
    "next",
    "self",
    "first",
    "cls",
    "eos",
    "punctuation",
    "duplicate",
    "induction",
]
BEST_OFFSETS = [{"nsubj up": 1, "det down": -1, "rarest": 2, "alignment": 0}, {"nsubj up": -1}]


def drawn(seed: int) -> list[Sentence]:
    """Three random sentences; heads may go in circles, and a mention may point at nothing before it."""
    draw = random.Random(seed)
    out = []
    for _ in range(3):
        n = draw.randint(1, 9)
        some = [[draw.choice(names) for _ in range(n)] for names in (FORMS, RELATIONS, TAGS)]
        heads, alignment = ([draw.randint(0, n) for _ in range(n)] for _ in range(2))
        first = [draw.choice([0, 0, draw.randint(1, n)]) for _ in range(n)]
        out.append(
            Sentence(
                tuple(some[0]),
                tuple(heads),
                tuple(some[1]),
                tuple(some[2]),
                tuple(first),
                target=("x",) * n,
                alignment=tuple(alignment),
            )
        )
    return out


def tokens(sentences: list[Sentence], granularity: str, seed: int) -> Spans:
    """Spans of sentences between [CLS] 90 and [SEP] 91, each word of one to three tokens."""
    draw = random.Random(seed)
    rows = [[-1, *(w for w in range(len(s.words)) for _ in range(draw.randint(1, 3))), -1] for s in sentences]
    size = max(map(len, rows))
    words = torch.tensor([row + [-1] * (size - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (size - len(row)) for row in rows])
    ids = torch.where(words >= 0, words, 91)
    ids[:, 0] = 90
    return make_spans(words, mask, ids, granularity)


def loops(s: Sentence, word: list[int], special: list[int], n: int, c: Conventions) -> tuple[dict, dict]:
    """Targets by argmax in one sentence, and by weight: {role: [(query, keys)]}."""
    of = {w: [u for u in range(n) if word[u] == w] for w in range(len(s.words))}
    own = [u for u in range(n) if word[u] >= 0]
    queries = range(n) if c.specials_as_queries else own
    keys = range(n) if c.specials_as_keys else own
    look, weight = {role: [] for role in ROLES}, {role: [] for role in ROLES}
    for k in range(-2, 3):
        look[f"offset {k:+d}"] = [(q, {q + k} & {*keys}) for q in queries]
    for w, (head, relation) in enumerate(zip(s.heads, s.relations, strict=True)):
        if head and relation not in ("root", "punct"):
            look[f"{relation} up"].append((of[w][0], {*of[head - 1]}))
            look[f"{relation} down"].append((of[head - 1][0], {*of[w]}))
    for w, first in enumerate(s.coreference):
        if first:
            same = [v for v in range(w) if v + 1 == first or s.coreference[v] == first]
            look["coreference"].append((of[w][0], {u for v in same for u in of[v]}))
    rank = {f: VOCABULARY.rank.get(f, 3) for f in s.words}

    def rarest(forms, fewest):
        """The words to which fewer than so many others are rarer."""
        return {f for f in forms if sum(rank[g] > rank[f] for g in forms) < fewest}

    one, two = rarest({*s.words}, 1), rarest({*s.words}, 2)
    if max(rank.values()) >= c.n_frequent and 2 * sum(f in one for f in s.words) <= len(s.words):
        for q in queries:
            others = {*s.words} - {s.words[word[q]] if word[q] >= 0 else None}
            for role, forms in (("rarest", one), ("two rarest", two), ("rarest other", rarest(others, 1))):
                look[role].append((q, {u for w, f in enumerate(s.words) if f in forms for u in of[w]}))
    for q in queries:
        for role, k in (("previous", -1), ("next", 1), ("self", 0)):
            weight[role].append((q, {q + k} & {*keys}))
        if q:
            weight["first"].append((q, {0}))
        pointed = {u for w in of for u in of[w] if s.upos[w] == "PUNCT" or (s.upos[w] == "_" and s.words[w] == ".")}
        for role, found in (
            ("cls", {u for u in range(n) if special[u] == 90}),
            ("eos", {u for u in range(n) if special[u] == 91}),
            ("punctuation", pointed),
        ):
            if found:
                weight[role].append((q, found))
    piece = {u: (s.words[word[u]], of[word[u]].index(u)) for u in own}
    for q in own:
        twins = {u for u in own if u != q and piece[u] == piece[q]}
        after = {u + 1 for u in twins if u < q and u + 1 in own and u + 1 != q}
        weight["duplicate"] += [(q, twins)] * bool(twins)
        weight["induction"] += [(q, after)] * bool(after)
    return look, weight


def seen(found: dict, c: Conventions, causal: bool, itself: bool) -> dict:
    """What a query can see of it; other queries are dropped, or kept."""
    out = {}
    for role, some in found.items():
        cut = [(q, {k for k in keys if (k <= q or not causal) and (k != q or itself)}) for q, keys in some]
        out[role] = [(q, keys) for q, keys in cut if keys or c.edges == "count"]
    return out


def in_order(found: dict) -> dict:
    return {role: sorted((q, sorted(keys)) for q, keys in some) for role, some in found.items() if some}


SETTINGS = [
    Conventions(
        granularity=granularity,
        specials_as_keys=k,
        specials_as_queries=q,
        self_as_key=s,
        edges=e,
        n_frequent=1,
        span=2,
        renormalise=(granularity == "word") != (e == "drop"),
    )
    for granularity, k, q, s, e in product(GRANULARITIES, (False, True), (False, True), (False, True), EDGES)
]


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_targets_are_what_other_loops_find(kind: str):
    for seed, c in enumerate(SETTINGS):
        sentences = drawn(seed)
        spans = tokens(sentences, c.granularity, seed)
        sequences = AttentionSequences(kind, sentences, spans, spans)
        best_offsets = [BEST_OFFSETS[i % 2] for i in range(3)]
        scorer = BatchScorer(sequences, ROLES, VOCABULARY, c, best_offsets, nearest_nominal)
        rows = zip(sentences, spans.words(), spans.special_tokens(), strict=True)
        for index, (s, word, special) in enumerate(rows):
            ours = (
                argmax_targets(kind, s, word, word, VOCABULARY, c),
                weight_targets(kind, s, word, word, special, VOCABULARY, c),
            )
            theirs = loops(s, word, special, len(word), c)
            causal = kind == "decoder"
            theirs = seen(theirs[0], c, causal, c.self_as_key), seen(theirs[1], c, causal, True)
            for found, want in zip(ours, theirs, strict=True):
                assert in_order(found) == in_order(want), (c, s)
            check_counts(scorer, index, s, word, theirs, BEST_OFFSETS[index % 2])


def check_counts(
    scorer: BatchScorer, index: int, s: Sentence, word: list[int], found: tuple[dict, dict], best_offset: dict
) -> None:
    """The sums of n, baseline and chance of one sentence, once more with loops."""
    for some, keys in zip(found, (scorer.candidates, scorer.visible), strict=True):
        free, words = keys[index].sum(-1).tolist(), scorer.candidates[index]
        renormalised = scorer.conventions.renormalise and some is found[1]  # words share what is left to them
        for role, asked in some.items():
            if not asked:
                continue
            n, base, chance = scorer.counts[index, :, ROLES.index(role)].tolist()
            assert n == len(asked)
            of_words = words.sum(-1).tolist()
            even = sum(
                1 / (of_words[q] if renormalised and words[q, key] else free[q])
                for q, targets in asked
                for key in targets
            )
            hits = sum(q + best_offset[role] in targets for q, targets in asked) if role in best_offset else even
            if role == "coreference":
                even, hits = 0.0, 0
                for q, targets in asked:
                    nouns = [v for v in range(word[q]) if s.upos[v] in ("NOUN", "PROPN", "PRON")]
                    right = [word.index(v) in targets for v in nouns]
                    even += sum(right) / max(len(right), 1)
                    hits += bool(right) and right[-1]
            assert (base, chance) == pytest.approx((hits, even), abs=1e-6), role


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_cross_attention_is_what_loops_find(granularity: str):
    c = Conventions(granularity=granularity)
    for seed in range(5):
        sentences = drawn(seed)
        keys, queries = (tokens(sentences, granularity, seed + 50 * i) for i in range(2))
        for s, of, by, special in zip(sentences, queries.words(), keys.words(), keys.special_tokens(), strict=True):
            look = argmax_targets("cross", s, of, by, VOCABULARY, c)
            want = [(of.index(j), {u for u, w in enumerate(by) if w == i - 1}) for j, i in enumerate(s.alignment) if i]
            assert in_order(look) == in_order({"alignment": want})
            weight = weight_targets("cross", s, of, by, special, VOCABULARY, c)
            own = [u for u, w in enumerate(of) if w >= 0]
            found = {role: weight[role] for role in ("cls", "eos")}
            want = {role: [(q, {special.index(token)}) for q in own] for role, token in (("cls", 90), ("eos", 91))}
            assert in_order(found) == in_order(want)
    assert argmax_targets("cross", replace(s, alignment=None), of, by, VOCABULARY, c) == {"alignment": []}
    with pytest.raises(ValueError, match="got an alignment with word 10 of"):
        argmax_targets("cross", replace(s, alignment=(10,)), of, by, VOCABULARY, c)


def test_between_words_distances_need_no_tokens():
    c = Conventions(n_frequent=1)
    for seed in range(5):
        sentences = drawn(seed)
        for s, words in zip(sentences, tokens(sentences, "word", seed).words(), strict=True):
            bare = range(len(s.words))
            with_specials = argmax_targets("encoder", s, words, words, VOCABULARY, c)
            without = argmax_targets("encoder", s, bare, bare, VOCABULARY, c)
            a, b = (
                {role: [[key - query for key in keys] for query, keys in found[role]] for role in found}
                for found in (with_specials, without)
            )
            assert a == b


def test_annotation_that_does_not_fit_is_refused():
    def refused(sentence: Sentence, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            argmax_targets("encoder", sentence, [0, 1], [0, 1], VOCABULARY, Conventions())

    refused(
        Sentence(("it", "slept"), (3, 0), ("nsubj", "root"), ("_",) * 2, (0, 0)),
        "got word 3 as a head in a sentence of 2 words: 'it slept'; expected 1 to 2",
    )
    refused(Sentence(("it", "slept"), (2, 0), ("nsubj",), ("_",) * 2, (0, 0)), "got a sentence of 2 words")
    refused(Sentence((), (), (), (), ()), "got a sentence of 0 words")
