"""The shipped English treebank is sound, as large and as varied as it says, and told apart into splits."""

import re
from collections import Counter

import conllu
import pytest
import ud_rules

from headtools.roles.corpus import ENGLISH, corpus

SPLITS = ("train", "validation", "test")
# Relations with enough instances to find a head by.
FREQUENT = (
    "det punct nsubj root case obj obl advmod aux nmod:poss mark amod nmod acl:relcl conj cc advcl cop aux:pass "
    "nsubj:pass xcomp nummod ccomp compound"
)


@pytest.fixture(scope="module")
def trees():
    """The sentences as the conllu library reads them."""
    return conllu.parse(ENGLISH.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sentences():
    return corpus("english", split="all")


def words_of(tree):
    return [token for token in tree if isinstance(token["id"], int)]


def children(words, word, *relations):
    return [other for other in words if other["head"] == word["id"] and other["deprel"] in relations]


def feature(word, name):
    return (word["feats"] or {}).get(name)


def antecedent(word):
    return int((word["misc"] or {}).get("Coref", 0))


def test_it_keeps_the_rules_of_ud(trees):
    assert [problem for tree in trees for problem in ud_rules.complaints(tree)] == []
    for name in ("sent_id", "text"):
        values = [tree.metadata[name] for tree in trees]
        assert len({*values}) == len(values), f"a {name} stands twice"


def test_coreference_is_not_just_the_nearest_noun(sentences):
    """Else a head that looks at the nearest noun could not be told from one that resolves pronouns."""
    nearest = []
    for sentence in sentences:
        for k, first in enumerate(sentence.coreference):
            if first and sentence.upos[first - 1] in ("NOUN", "PROPN"):
                nearest.append(all(sentence.upos[j] not in ("NOUN", "PROPN") for j in range(first, k)))
    assert len(nearest) >= 120
    assert 0.3 < sum(nearest) / len(nearest) < 0.7


def test_anaphors_agree_with_their_antecedents(trees):
    for tree in trees:
        words = words_of(tree)
        genders = {}
        for word in words:
            if not antecedent(word):
                continue
            first = words[antecedent(word) - 1]
            assert not antecedent(first), "the antecedent is the first mention"
            numbers = {feature(word, "Number"), feature(first, "Number")} - {None}
            assert len(numbers) < 2 or children(words, first, "conj"), tree.metadata["text"]
            if feature(word, "Gender"):
                genders.setdefault(first["id"], set()).add(feature(word, "Gender"))
        assert all(len(gender) == 1 for gender in genders.values()), tree.metadata["text"]


def test_documents_have_ten_sentences_each(trees):
    """The splits count on it."""
    names = [tree.metadata["sent_id"].rsplit("-", 1) for tree in trees]
    assert [int(number) for _, number in names] == [*range(1, 11)] * (len(trees) // 10)
    documents = [name for name, _ in names][::10]
    assert len(set(documents)) == len(documents)
    assert all(name == documents[i // 10] for i, (name, _) in enumerate(names))
    assert [tree.metadata["newdoc id"] for tree in trees[::10]] == documents


def test_splits(sentences):
    parts = {split: corpus("english", split) for split in SPLITS}
    assert sorted(str(s) for part in parts.values() for s in part) == sorted(str(s) for s in sentences)
    assert [len(part) / len(sentences) for part in parts.values()] == [0.5, 0.25, 0.25]
    assert corpus("english") == parts["test"]
    assert corpus("english", "validation", limit=3) == parts["validation"][:3]
    for part in parts.values():
        assert sum(any(sentence.coreference) for sentence in part) >= 25
        counts = Counter(relation for sentence in part for relation in sentence.relations)
        assert min(counts[relation] for relation in ("nsubj", "obj", "det", "case", "amod", "advmod", "obl")) >= 20


def test_the_readme_counts_right(sentences):
    """Each row of both tables, for each split."""
    rows = re.findall(r"^\| (\S+) \| ([\d |]+) \|$", (ENGLISH.parent / "README.md").read_text(encoding="utf-8"), re.M)
    told = {name: [int(number) for number in numbers.split(" | ")] for name, numbers in rows}
    parts = {"all": sentences} | {split: corpus("english", split) for split in SPLITS}
    counts = {split: Counter(r for s in part for r in s.relations) for split, part in parts.items()}
    expected = {relation: [counts[split][relation] for split in parts] for relation in counts["all"]}
    for split, part in parts.items():
        links = [sum(map(bool, sentence.coreference)) for sentence in part]
        expected[split] = [len(part), sum(len(s.words) for s in part), sum(map(bool, links)), sum(links)]
    assert told == expected
