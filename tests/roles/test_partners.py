"""Partners of a whole batch against loops over words, sentence by sentence; the arrays that they are made from."""

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from headtools.roles._taxonomy.annotation import Places, Words, gold
from headtools.roles._taxonomy.plan import Plan, looks, weights
from headtools.roles._taxonomy.sequences import Side, word_sides
from headtools.roles._taxonomy.spans import make_units, units_of_words
from headtools.roles._taxonomy.targets import nearest_nominal
from headtools.roles.conventions import EDGES, LEVELS, Conventions
from headtools.roles.sentence import Sentence

FORMS = ("a", "b", "c", "d", ".", "'s")
TAGS = ("NOUN", "PRON", "VERB", "PUNCT", "_")
RELATIONS = ("root", "punct", "nsubj", "det", "obj")
WORDS = Words({"a": 0, "b": 1, ".": 1}, {"a": 0.5, "b": 1.0, ".": 1.0}, 3.0, {"cls": 90, "eos": 91})
ROLES = [
    *(f"offset {k:+d}" for k in range(-2, 3)), *(f"{r} {way}" for r in RELATIONS[2:] for way in ("up", "down")),
    "coreference", "rarest", "two rarest", "rarest other", "previous", "next", "self", "first", "cls", "eos",
    "punctuation", "duplicate", "induction",
]  # fmt: skip
CROSS = ["alignment", "cls", "eos", "punctuation"]
USUAL = [{"nsubj up": 1, "det down": -1, "rarest": 2, "alignment": 0}, {"nsubj up": -1}]


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


def tokens(sentences: list[Sentence], level: str, seed: int):
    """Units of sentences between [CLS] 90 and end mark 91, each word of one to three tokens."""
    draw = random.Random(seed)
    rows = [[-1, *(w for w in range(len(s.words)) for _ in range(draw.randint(1, 3))), -1] for s in sentences]
    size = max(map(len, rows))
    words = torch.tensor([row + [-1] * (size - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (size - len(row)) for row in rows])
    ids = torch.where(words >= 0, words, 91)
    ids[:, 0] = 90
    return make_units(words, mask, ids, level)


def loops(s: Sentence, word: list[int], mark: list[int], n: int, c: Conventions) -> tuple[dict, dict]:
    """Who should look at whom in one sentence, and who should give weight to whom: {role: [(query, keys)]}."""
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
    rank = {f: WORDS.rank.get(f, 3) for f in s.words}

    def rarest(forms, fewest):
        """The words to which fewer than so many others are rarer."""
        return {f for f in forms if sum(rank[g] > rank[f] for g in forms) < fewest}

    one, two = rarest({*s.words}, 1), rarest({*s.words}, 2)
    if max(rank.values()) >= c.common and 2 * sum(f in one for f in s.words) <= len(s.words):
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
        for role, found in (("cls", {u for u in range(n) if mark[u] == 90}),
                            ("eos", {u for u in range(n) if mark[u] == 91}), ("punctuation", pointed)):  # fmt: skip
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


def as_loops(found, row: int, roles: list[str]) -> dict:
    """The arrays of one sentence as the loops write them."""
    out = {role: [] for role in roles}
    for i in np.flatnonzero(found.row == row):
        out[roles[found.role[i]]].append((int(found.query[i]), {*found.key[found.owner == i].tolist()}))
    return out


def in_order(found: dict) -> dict:
    return {role: sorted((q, sorted(keys)) for q, keys in some) for role, some in found.items()}


SETTINGS = [
    Conventions(level=level, specials_as_keys=k, specials_as_queries=q, self_as_key=s, edges=e, common=1, span=2,
                renormalise=(level == "word") != (e == "drop"))
    for level, k, q, s, e in product(LEVELS, (False, True), (False, True), (False, True), EDGES)
]  # fmt: skip


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_batch_is_what_loops_find(kind: str):
    for seed, c in enumerate(SETTINGS):
        sentences = drawn(seed)
        units = tokens(sentences, c.level, seed)
        side = Side(kind, sentences, gold(sentences, WORDS), units, units, WORDS)
        place = {role: i for i, role in enumerate(ROLES)}
        ours = looks(side, place, c), weights(side, place, c)
        plan = Plan(side, ROLES, c, [USUAL[i % 2] for i in range(3)], nearest_nominal)
        for row, s in enumerate(sentences):
            n = int(units.real[row].sum())
            word, mark = (some[row, :n].tolist() for some in (units.word, units.mark))
            theirs = loops(s, word, mark, n, c)
            causal = kind == "decoder"
            theirs = seen(theirs[0], c, causal, c.self_as_key), seen(theirs[1], c, causal, True)
            for found, want in zip(ours, theirs, strict=True):
                assert in_order(as_loops(found, row, ROLES)) == in_order(want), (c, s)
            check_counts(plan, row, s, word, theirs, USUAL[row % 2])


def check_counts(plan: Plan, row: int, s: Sentence, word: list[int], found: tuple[dict, dict], usual: dict) -> None:
    """The sums of n, baseline and chance of one sentence, once more with loops."""
    for some, keys in zip(found, (plan.allowed, plan.visible), strict=True):
        free, words = keys[row].sum(-1).tolist(), plan.allowed[row]
        shared = plan.conventions.renormalise and some is found[1]  # words share what is left to them
        for role, asked in some.items():
            if not asked:
                continue
            n, base, chance = plan.counted[row, :, ROLES.index(role)].tolist()
            assert n == len(asked)
            of_words = words.sum(-1).tolist()
            even = sum(
                1 / (of_words[q] if shared and words[q, key] else free[q]) for q, targets in asked for key in targets
            )
            hits = sum(q + usual[role] in targets for q, targets in asked) if role in usual else even
            if role == "coreference":
                even, hits = 0.0, 0
                for q, targets in asked:
                    nouns = [v for v in range(word[q]) if s.upos[v] in ("NOUN", "PROPN", "PRON")]
                    right = [word.index(v) in targets for v in nouns]
                    even += sum(right) / max(len(right), 1)
                    hits += bool(right) and right[-1]
            assert (base, chance) == pytest.approx((hits, even), abs=1e-6), role


@pytest.mark.parametrize("level", LEVELS)
def test_cross_attention_is_what_loops_find(level: str):
    c = Conventions(level=level)
    place = {role: i for i, role in enumerate(CROSS)}
    for seed in range(5):
        sentences = drawn(seed)
        keys, queries = (tokens(sentences, level, seed + 50 * i) for i in range(2))
        side = Side("cross", sentences, gold(sentences, WORDS), queries, keys, WORDS)
        look, weight = looks(side, place, c), weights(side, place, c)
        for row, s in enumerate(sentences):
            of, by = (units.word[row].tolist() for units in (queries, keys))
            want = [(of.index(j), {u for u, w in enumerate(by) if w == i - 1}) for j, i in enumerate(s.alignment) if i]
            assert in_order({"alignment": as_loops(look, row, CROSS)["alignment"]}) == in_order({"alignment": want})
            own = [u for u, w in enumerate(of) if w >= 0]
            found = {role: as_loops(weight, row, CROSS)[role] for role in ("cls", "eos")}
            mark = keys.mark[row].tolist()
            want = {role: [(q, {mark.index(token)}) for q in own] for role, token in (("cls", 90), ("eos", 91))}
            assert in_order(found) == in_order(want)
    none = looks(side, {"eos": 0}, c)
    assert len(none.query) == len(none.key) == 0
    unlinked = [replace(s, alignment=None) for s in sentences]
    assert len(looks(Side("cross", unlinked, side.gold, queries, keys, WORDS), place, c).query) == 0
    wrong = [replace(s, alignment=(10,)) for s in sentences]
    with pytest.raises(ValueError, match="an alignment names word 10 of"):
        looks(Side("cross", wrong, side.gold, queries, keys, WORDS), place, c)


def test_between_words_distances_need_no_tokens():
    c, place = Conventions(common=1), {role: i for i, role in enumerate(ROLES[5:15])}
    for seed in range(5):
        sentences = drawn(seed)
        units = tokens(sentences, "word", seed)
        marked = Side("encoder", sentences, gold(sentences, WORDS), units, units, WORDS)
        bare = word_sides(sentences, ["encoder"], WORDS, False)["encoder"]
        a, b = looks(marked, place, c), looks(bare, place, c)
        assert (a.role == b.role).all()
        assert (a.key - a.query[a.owner] == b.key - b.query[b.owner]).all()


def test_places_are_the_units_of_a_word():
    sentences = drawn(3)
    known, units = gold(sentences, WORDS), tokens(sentences, "token", 3)
    at = Places(known, units)
    for number, (row, word) in enumerate(zip(known.row, known.place, strict=True)):
        own = [u for u, w in enumerate(units.word[row].tolist()) if w == word]
        assert at.of(np.array([number]))[1].tolist() == own
        assert at.first[number] == own[0]


def test_units_of_words_are_words_alone():
    units = units_of_words([2, 1])
    assert units.word.tolist() == [[0, 1], [0, -1]]
    assert units.real.tolist() == [[True, True], [True, False]]
    assert (units.mark == -1).all()


def test_annotation_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a head is word 3 of a sentence of 2 words: 'it slept'"):
        gold([Sentence(("it", "slept"), (3, 0), ("nsubj", "root"), ("_",) * 2, (0, 0))], WORDS)
    with pytest.raises(ValueError, match="sentence 0 has 2 words"):
        gold([Sentence(("it", "slept"), (2, 0), ("nsubj",), ("_",) * 2, (0, 0))], WORDS)
    with pytest.raises(ValueError, match="sentence 1 has 0 words"):
        gold([drawn(0)[0], Sentence((), (), (), (), ())], WORDS)
