"""Roles as data: the targets of those that there are, against loops over random sentences, and roles of one's own."""

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

import headtools as ht
from headtools.roles._row_scores import word_targets
from headtools.roles.role import Frequencies, Role, builtin_roles, nearest_nominal
from headtools.roles.sentence import Sentence

from .small import SAID

FORMS = ("a", "b", "c", "d", ".", "'s")
TAGS = ("NOUN", "PRON", "VERB", "PUNCT", "_")
RELATIONS = ("root", "punct", "nsubj", "det", "obj")
N_COUNTED = 600  # words that are more frequent than those of the sentences
COUNTS = {f"frequent {i}": 1000 for i in range(N_COUNTED)} | {"a": 9, "b": 5, ".": 5, "c": 1}


def drawn(seed: int) -> Sentence:
    """A random sentence; heads may go in circles, and a mention may point at nothing before it."""
    draw = random.Random(seed)
    n = draw.randint(1, 9)
    forms, relations, tags = (tuple(draw.choice(names) for _ in range(n)) for names in (FORMS, RELATIONS, TAGS))
    heads, alignment = (tuple(draw.randint(0, n) for _ in range(n)) for _ in range(2))
    first = tuple(draw.choice([0, 0, draw.randint(1, n)]) for _ in range(n))
    return Sentence(forms, heads, relations, tags, first, target=("x",) * n, alignment=alignment)


def loops(s: Sentence) -> dict[str, list[tuple[int, set]]]:
    """What every word of a sentence is asked for, by role."""
    n, words = len(s.words), range(len(s.words))
    want: dict[str, list] = {f"offset {k:+d}": [(q, {q + k} & {*words}) for q in words] for k in range(-5, 6)}
    want |= {"previous": want["offset -1"], "next": want["offset +1"], "self": want["offset +0"]}
    want["first"] = [(q, {"first"}) for q in words]
    for i in words:
        if s.heads[i] and s.relations[i] not in ("root", "punct"):
            want.setdefault(f"{s.relations[i]} up", []).append((i, {s.heads[i] - 1}))
            want.setdefault(f"{s.relations[i]} down", []).append((s.heads[i] - 1, {i}))
        if s.coreference[i]:
            same = {j for j in range(i) if s.coreference[i] in (j + 1, s.coreference[j])}
            want.setdefault("coreference", []).append((i, same))
    points = {i for i in words if s.upos[i] == "PUNCT" or (s.upos[i] == "_" and s.words[i] == ".")}
    want["punctuation"] = [(q, points) for q in words]
    twins = [{i for i in words if i != q and s.words[i] == s.words[q]} for q in words]
    want["duplicate"] = [*enumerate(twins)]
    want["induction"] = [(q, {i + 1 for i in twins[q] if i < q and i + 1 != q}) for q in words]
    count = {form: COUNTS.get(form, 0) for form in s.words}

    def rarest(forms: set, fewest: int) -> set:
        """Where the words are to which fewer than so many others are rarer."""
        return {i for i in words if s.words[i] in forms and sum(count[f] < count[s.words[i]] for f in forms) < fewest}

    if 2 * len(rarest({*s.words}, 1)) <= n:
        for q in words:
            for role, forms, fewest in (
                ("rarest", {*s.words}, 1),
                ("two rarest", {*s.words}, 2),
                ("rarest other", {*s.words} - {s.words[q]}, 1),
            ):
                want.setdefault(role, []).append((q, rarest(forms, fewest)))
    return want


def in_order(pairs) -> list:
    return sorted((query, sorted(keys, key=str)) for query, keys in pairs if keys)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_targets_are_what_loops_find(kind):
    roles = {role.name: role for role in builtin_roles(kind, RELATIONS, Frequencies(COUNTS)) if role.targets}
    for seed in range(40):
        sentence = drawn(seed)
        want = loops(sentence)
        for name, role in roles.items():
            if name in ("bos", "eos", "cls", "sep", "first"):  # no words
                continue
            seen = [(q, {k for k in keys if k <= q or kind == "encoder"}) for q, keys in want.get(name, [])]
            found = word_targets(role, kind, sentence)
            assert in_order(found) == in_order(seen), (name, sentence)


def test_alignment_is_from_target_words_to_source_words():
    role = builtin_roles("cross", (), None)[0]
    for seed in range(10):
        sentence = drawn(seed)
        want = [(t, [i - 1]) for t, i in enumerate(sentence.alignment) if i]
        assert word_targets(role, "cross", sentence) == want
    assert word_targets(role, "cross", replace(sentence, alignment=None)) == []


def rare_targets(sentence: Sentence, counts: dict[str, int]) -> dict[str, list]:
    roles = [role for role in builtin_roles("encoder", (), Frequencies(counts)) if role.family == "rare"]
    return {role.name: role.targets(sentence) for role in roles}


def test_words_equally_rare_are_rarest_together():
    sentence = replace(SAID[2], words=("it", "saw", "the", "dog", "."))
    counts = COUNTS | {"the": 99, "it": 50, ".": 50, "saw": 3, "dog": 3}
    found = rare_targets(sentence, counts)
    assert found["rarest"] == found["two rarest"] == [(q, [1, 3]) for q in range(5)]
    assert found["rarest other"] == [(0, [1, 3]), (1, [3]), (2, [1, 3]), (3, [1]), (4, [1, 3])]
    found = rare_targets(sentence, counts | {"dog": 2})
    assert found["rarest"] == [(q, [3]) for q in range(5)]
    assert found["two rarest"] == [(q, [1, 3]) for q in range(5)]
    assert found["rarest other"] == [(q, [1 if q == 3 else 3]) for q in range(5)]
    more_than_half = rare_targets(sentence, counts | {"it": 3})
    without_rare_word = rare_targets(sentence, {"the": 99, "it": 50, ".": 50, "saw": 3, "dog": 3})
    assert not any([*more_than_half.values(), *without_rare_word.values(), *rare_targets(sentence, {}).values()])


def test_case_does_not_make_a_word_rare():
    counts = {"May": 5, "may": 9, "MAY": 1, "the": 90}
    both = Frequencies(counts)
    assert [both.rank(word) for word in ("may", "May", "MAY", "mAy", "June")] == [1, 2, 3, 1, 4]
    assert both.rarity("THE") == both.rarity("the") < both.rarity("June")


def test_roles_of_ones_own_stand_beside_the_others():
    model, tokenizer = ht.load()
    test, validation = (ht.corpus("organism", split, limit=40) for split in ("test", "validation"))
    before = Role("before", "encoder", targets=lambda s: [(q, [q - 1]) for q in range(1, len(s.words))])
    heavy = replace(before, name="heavy before", by="weight", baseline="uniform attention", family="weight")
    fitting = Role(
        "antecedent",
        ("encoder", "decoder"),
        targets=lambda s: [(i, [first - 1]) for i, first in enumerate(s.coreference) if first],
        baseline=nearest_nominal,
    )
    to_end = Role("to the end", "encoder", lambda s: [(q, ["eos"]) for q in range(len(s.words))], by="weight")
    roles = ["offset -1", "previous", "eos", before, heavy, fitting, to_end]
    frame = ht.taxonomy(model, tokenizer, test, validation, kinds="encoder", roles=roles, times=50)
    of = {role: rows.reset_index(drop=True) for role, rows in frame.groupby("role")}
    for mine, theirs in (("before", "offset -1"), ("heavy before", "previous"), ("to the end", "eos")):
        for column in ("score", "chance", "low", "high", "n"):
            assert of[mine][column].equals(of[theirs][column])
    assert set(of["before"].baseline_rule) == {"offset -1"}
    assert set(of["antecedent"].baseline_rule) == {"nearest nominal"}
    assert (of["before"].baseline == 1).all(), "always at the best offset, so that no head can be above it"
    assert not of["before"].passes.any()
    assert set(frame.family) == {"positional", "weight", "own"}


def test_a_role_of_ones_own_in_cross_attention():
    model, tokenizer = ht.load()
    test = ht.corpus("organism", limit=12)
    same = Role("same place", "cross", lambda s: [(t, [t]) for t in range(min(len(s.target), len(s.words)))])
    frame = ht.taxonomy(model, tokenizer, test, kinds="cross", roles=[same, "alignment"], times=20)
    assert set(frame.role) == {"same place", "alignment"}
    assert set(frame[frame.role == "same place"].n) == {sum(min(len(s.target), len(s.words)) for s in test)}


def test_the_example_of_the_guide_runs():
    """The code under "Add a role" in CONTRIBUTING."""
    guide = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", guide.split("## Add a role")[1].split("\n## ")[0], re.S)
    names: dict = {}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    assert names["frame"].role.isin(["near"]).any()
