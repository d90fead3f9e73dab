"""The organism's language: deterministic, well-formed, unambiguous, and its splits apart."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headtools.organism import lexicon as lx
from headtools.organism.grammar import HARD, SHORT
from headtools.organism.language import SPLITS, frequency, sentences
from headtools.organism.vocabulary import SPECIAL, gloss, vocabulary
from headtools.roles.corpus import corpus
from headtools.roles.sentence import is_tree

FIRST_TEST = "Belena hád followed the lámp near the sóngs often and shé had jumped over á song very small ."


@pytest.fixture(scope="module")
def drawn():
    return {split: list(islice(sentences(split), 300)) for split in SPLITS}


def test_the_same_sentences_on_every_machine():
    assert " ".join(next(sentences("test")).words) == FIRST_TEST
    assert corpus("organism", limit=40) == corpus("organism", limit=40)
    assert corpus("organism", limit=40) == corpus("organism", limit=60)[:40]


def test_streams_differ():
    assert next(sentences("train", stream=1)) != next(sentences("train", stream=2))


def test_no_sentence_stands_in_two_splits(drawn):
    seen = [{s.words for s in drawn[split]} for split in ("train", "validation", "test")]
    assert len(set.union(*seen)) == sum(len(words) for words in seen)


@settings(max_examples=15, deadline=None)
@given(stream=st.integers(0, 10**6), style=st.sampled_from([None, SHORT, HARD]))
def test_every_sentence_is_well_formed(stream, style):
    words = vocabulary()
    for s in islice(sentences("train", style, stream), 20):
        n = len(s.words)
        assert len(s.heads) == len(s.relations) == len(s.upos) == len(s.coreference) == n
        assert is_tree(s.heads)
        assert [r for h, r in zip(s.heads, s.relations, strict=True) if h == 0] == ["root"]
        assert all(s.relations)
        assert sorted(s.alignment) == list(range(1, n + 1)), "the alignment pairs every word with exactly one"
        assert len(s.target) == n
        assert all(w in words for w in (*s.words, *s.target))
        assert all(words[w][0] == "source" or w in s.target for w in s.words), "only names and marks are shared"
        names = [w for w in s.words if w in lx.TOPIC_OF_NAME]
        assert [lx.TOPIC_OF_NAME[w] for w in names] == ([s.topic] if s.topic else [])
        for word, antecedent in zip(s.words, s.coreference, strict=True):
            assert (antecedent > 0) == (lx.plain(word) in lx.PRONOUNS)
            assert antecedent == 0 or s.upos[antecedent - 1] in ("NOUN", "PROPN")


def features(word):
    pairs = [f.split(" ", 1) for f in vocabulary()[word] if " " in f]
    return {key: value for key, value in pairs if key in ("gender", "number", "topic")}


def test_target_words_agree_with_the_gold_tree(drawn):
    """Read off the target words alone: agreement follows the gold heads, coreference and neighbours."""
    checked = Counter()
    for s in drawn["test"]:
        written = dict(zip(s.alignment, s.target, strict=True))
        for i, (word, head, relation, antecedent) in enumerate(
            zip(s.words, s.heads, s.relations, s.coreference, strict=True), 1
        ):
            if relation in ("det", "amod") and s.upos[head - 1] == "NOUN":
                mine, its = features(written[i]), features(written[head])
                assert (mine["gender"], mine["number"]) == (its["gender"], its["number"]), (s, word)
                checked[relation] += 1
            if antecedent and s.upos[antecedent - 1] == "NOUN":
                assert features(written[i])["gender"] == features(written[antecedent])["gender"], (s, word)
                checked["coreference"] += 1
            if s.upos[i - 1] not in ("PROPN", "PUNCT"):
                left = i > 1 and lx.is_accented(s.words[i - 2])
                right = i < len(s.words) and lx.is_accented(s.words[i])
                assert written[i].startswith("s'") == left
                assert written[i].endswith("'n") == right
                checked["neighbours"] += 1
            if relation == "det":
                assert features(written[i])["topic"] == str(s.topic)
                checked["topic"] += 1
    assert min(checked[k] for k in ("det", "amod", "coreference", "neighbours", "topic")) > 50


def test_hard_is_longer_than_test(drawn):
    mean = {split: sum(len(s.words) for s in drawn[split]) / 300 for split in ("test", "hard")}
    assert mean["hard"] > 1.5 * mean["test"]


def test_names_are_the_rarest_words():
    count = frequency(6_000)
    drawn = [s for s in corpus("organism", "test") if s.topic]
    rarest = [min(s.words, key=lambda word: count[word]) for s in drawn]
    assert sum(word in lx.TOPIC_OF_NAME for word in rarest) >= 0.99 * len(drawn)


def test_unknown_split_says_which_there_are():
    with pytest.raises(ValueError, match="train, validation, test, hard"):
        next(sentences("dev"))


def test_gloss_of_every_word_and_of_none():
    assert all(gloss(word) for word in vocabulary() if word not in SPECIAL)
    with pytest.raises(ValueError, match="no word 'tiger'"):
        gloss("tiger")
