"""Targets of a batch against loops over words, sentence by sentence; the arrays that they are made from."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from headtools.roles._taxonomy.annotation import Vocabulary, annotate
from headtools.roles._taxonomy.scores import GroupScorer
from headtools.roles._taxonomy.sequences import AttentionSequences, make_word_sequences
from headtools.roles._taxonomy.spans import make_spans, spans_of_words
from headtools.roles._taxonomy.targets import WordSpans, argmax_targets, nearest_nominal, weight_targets
from headtools.roles.conventions import EDGES, GRANULARITIES, Conventions
from headtools.roles.sentence import Sentence

FORMS = ("a", "b", "c", "d", ".", "'s")
TAGS = ("NOUN", "PRON", "VERB", "PUNCT", "_")
RELATIONS = ("root", "punct", "nsubj", "det", "obj")
VOCABULARY = Vocabulary({"a": 0, "b": 1, ".": 1}, {"a": 0.5, "b": 1.0, ".": 1.0}, 3.0, {"cls": 90, "eos": 91})
ROLES = [
    *(f"offset {k:+d}" for k in range(-2, 3)), *(f"{r} {way}" for r in RELATIONS[2:] for way in ("up", "down")),
    "coreference", "rarest", "two rarest", "rarest other", "previous", "next", "self", "first", "cls", "eos",
    "punctuation", "duplicate", "induction",
]  # fmt: skip
CROSS = ["alignment", "cls", "eos", "punctuation"]
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
        out.append(Sentence(tuple(some[0]), tuple(heads), tuple(some[1]), tuple(some[2]), tuple(first),
                            target=("x",) * n, alignment=tuple(alignment)))  # fmt: skip
    return out


def tokens(sentences: list[Sentence], granularity: str, seed: int):
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
        for role, found in (("cls", {u for u in range(n) if special[u] == 90}),
                            ("eos", {u for u in range(n) if special[u] == 91}), ("punctuation", pointed)):  # fmt: skip
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


def as_loops(found, index: int, roles: list[str]) -> dict:
    """The arrays of one sentence as the loops write them."""
    out = {role: [] for role in roles}
    for i in np.flatnonzero(found.sentence == index):
        out[roles[found.role[i]]].append((int(found.query[i]), {*found.key[found.owner == i].tolist()}))
    return out


def in_order(found: dict) -> dict:
    return {role: sorted((q, sorted(keys)) for q, keys in some) for role, some in found.items()}


SETTINGS = [
    Conventions(granularity=granularity, specials_as_keys=k, specials_as_queries=q, self_as_key=s, edges=e,
                n_frequent=1, span=2, renormalise=(granularity == "word") != (e == "drop"))
    for granularity, k, q, s, e in product(GRANULARITIES, (False, True), (False, True), (False, True), EDGES)
]  # fmt: skip


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_batch_is_what_loops_find(kind: str):
    for seed, c in enumerate(SETTINGS):
        sentences = drawn(seed)
        spans = tokens(sentences, c.granularity, seed)
        sequences = AttentionSequences(kind, sentences, annotate(sentences, VOCABULARY), spans, spans, VOCABULARY)
        role_index = {role: i for i, role in enumerate(ROLES)}
        ours = argmax_targets(sequences, role_index, c), weight_targets(sequences, role_index, c)
        scorer = GroupScorer(sequences, ROLES, c, [BEST_OFFSETS[i % 2] for i in range(3)], nearest_nominal)
        for index, s in enumerate(sentences):
            n = int(spans.exists[index].sum())
            word, special = (values[index, :n].tolist() for values in (spans.word, spans.special_token))
            theirs = loops(s, word, special, n, c)
            causal = kind == "decoder"
            theirs = seen(theirs[0], c, causal, c.self_as_key), seen(theirs[1], c, causal, True)
            for found, want in zip(ours, theirs, strict=True):
                assert in_order(as_loops(found, index, ROLES)) == in_order(want), (c, s)
            check_counts(scorer, index, s, word, theirs, BEST_OFFSETS[index % 2])


def check_counts(
    scorer: GroupScorer, index: int, s: Sentence, word: list[int], found: tuple[dict, dict], best_offset: dict
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
            even = sum(1 / (of_words[q] if renormalised and words[q, key] else free[q])
                       for q, targets in asked for key in targets)  # fmt: skip
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
    role_index = {role: i for i, role in enumerate(CROSS)}
    for seed in range(5):
        sentences = drawn(seed)
        keys, queries = (tokens(sentences, granularity, seed + 50 * i) for i in range(2))
        sequences = AttentionSequences("cross", sentences, annotate(sentences, VOCABULARY), queries, keys, VOCABULARY)
        look, weight = argmax_targets(sequences, role_index, c), weight_targets(sequences, role_index, c)
        for index, s in enumerate(sentences):
            of, by = (spans.word[index].tolist() for spans in (queries, keys))
            want = [(of.index(j), {u for u, w in enumerate(by) if w == i - 1}) for j, i in enumerate(s.alignment) if i]
            assert in_order({"alignment": as_loops(look, index, CROSS)["alignment"]}) == in_order({"alignment": want})
            own = [u for u, w in enumerate(of) if w >= 0]
            found = {role: as_loops(weight, index, CROSS)[role] for role in ("cls", "eos")}
            special = keys.special_token[index].tolist()
            want = {role: [(q, {special.index(token)}) for q in own] for role, token in (("cls", 90), ("eos", 91))}
            assert in_order(found) == in_order(want)
    none = argmax_targets(sequences, {"eos": 0}, c)
    assert len(none.query) == len(none.key) == 0
    unlinked = [replace(s, alignment=None) for s in sentences]
    assert len(argmax_targets(replace(sequences, sentences=unlinked), role_index, c).query) == 0
    wrong = [replace(s, alignment=(10,)) for s in sentences]
    with pytest.raises(ValueError, match="got an alignment with word 10 of"):
        argmax_targets(replace(sequences, sentences=wrong), role_index, c)


def test_between_words_distances_need_no_tokens():
    c, role_index = Conventions(n_frequent=1), {role: i for i, role in enumerate(ROLES[5:15])}
    for seed in range(5):
        sentences = drawn(seed)
        spans = tokens(sentences, "word", seed)
        annotation = annotate(sentences, VOCABULARY)
        with_specials = AttentionSequences("encoder", sentences, annotation, spans, spans, VOCABULARY)
        bare = make_word_sequences(sentences, ["encoder"], VOCABULARY, False)["encoder"]
        a, b = argmax_targets(with_specials, role_index, c), argmax_targets(bare, role_index, c)
        assert (a.role == b.role).all()
        assert (a.key - a.query[a.owner] == b.key - b.query[b.owner]).all()


def test_word_spans_are_the_spans_of_a_word():
    sentences = drawn(3)
    annotation, spans = annotate(sentences, VOCABULARY), tokens(sentences, "token", 3)
    word_spans = WordSpans(annotation, spans)
    for number, (index, word) in enumerate(zip(annotation.sentence, annotation.position, strict=True)):
        own = [u for u, w in enumerate(spans.word[index].tolist()) if w == word]
        assert word_spans.spans_of(np.array([number]))[1].tolist() == own
        assert word_spans.first[number] == own[0]


def test_spans_of_words_are_words_alone():
    spans = spans_of_words([2, 1])
    assert spans.word.tolist() == [[0, 1], [0, -1]]
    assert spans.exists.tolist() == [[True, True], [True, False]]
    assert (spans.special_token == -1).all()


def test_annotation_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="got word 3 as a head in a sentence of 2 words: 'it slept'; expected 1 to 2"):
        annotate([Sentence(("it", "slept"), (3, 0), ("nsubj", "root"), ("_",) * 2, (0, 0))], VOCABULARY)
    with pytest.raises(ValueError, match="sentence 0 has 2 words"):
        annotate([Sentence(("it", "slept"), (2, 0), ("nsubj",), ("_",) * 2, (0, 0))], VOCABULARY)
    with pytest.raises(ValueError, match="sentence 1 has 0 words"):
        annotate([drawn(0)[0], Sentence((), (), (), (), ())], VOCABULARY)
