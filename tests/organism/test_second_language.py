"""The second organism's language: change a fact of the sentence, and the words that name it change, and no others."""

import doctest
import hashlib
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from headtools.organism.lexicon import GENDERS, TOPICS
from headtools.organism.second import language
from headtools.organism.second.grammar import HARD, USUAL, SentenceSampler
from headtools.organism.second.language import SPLITS, corpus, sentences
from headtools.organism.second.translation import PHENOMENA, UNTOUCHED, write
from headtools.organism.second.vocabulary import gloss, vocabulary
from headtools.roles.sentence import is_tree
from recipes.second_organism.batches import batches, training_sentences, word_ids

PAGE = Path(language.__file__).with_name("LANGUAGE.md")
PERSONAL = ("she", "her", "they", "them")


@pytest.fixture(scope="module")
def drawn():
    """(nodes in source order, topic) of 90 sentences."""
    dice = random.Random("phenomena")
    samplers = [SentenceSampler(dice, style) for style in (USUAL, USUAL, HARD)]
    return [(source, topic) for sampler in samplers for source, _, topic in (sampler.sentence() for _ in range(30))]


def changed(nodes, topic, change, topic_after=None):
    """Words, as positions, that are written differently while ``change`` (object, attribute, value) holds."""
    before = [write(n, nodes, topic)[0] for n in nodes]
    kept = [(thing, name, getattr(thing, name)) for thing, name, _ in change]
    for thing, name, value in change:
        setattr(thing, name, value)
    after = [write(n, nodes, topic_after or topic)[0] for n in nodes]
    for thing, name, value in kept:
        setattr(thing, name, value)
    return {i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}


def naming(nodes, topic, phenomenon, concerns=lambda node: True):
    """Words, as positions, that name a phenomenon, among those that ``concerns`` picks."""
    return {i for i, n in enumerate(nodes) if phenomenon in write(n, nodes, topic)[1] and concerns(n)}


def test_topic_and_accents(drawn):
    for nodes, topic in drawn:
        for other in set(TOPICS) - {topic}:
            assert changed(nodes, topic, [], other) == naming(nodes, topic, "topic")
        left, right = naming(nodes, topic, "left accent"), naming(nodes, topic, "right accent")
        for node in nodes:
            if node.upos not in UNTOUCHED:
                heard = left & {node.position + 1} | right & {node.position - 1}
                assert changed(nodes, topic, [(node, "accent", not node.accent)]) == heard


def test_gender_of_a_noun(drawn):
    """Heard in what describes it and belongs to it, in its preposition, its verb, and through a pronoun."""
    seen = Counter()
    for nodes, topic in drawn:
        for noun in (n for n in nodes if n.upos == "NOUN"):
            hearers = {
                "noun": lambda n, noun=noun: n.head is noun or (n.word == "very" and n.head.head is noun),
                "subject": lambda n, noun=noun: n.subject and n.subject.referent is noun,
                "owner": lambda n, noun=noun: n.head is noun,
                "antecedent": lambda n, noun=noun: n.antecedent and n.referent is noun,
            }
            found = {name: naming(nodes, topic, name, concerns) for name, concerns in hearers.items()}
            seen.update({name: len(some) for name, some in found.items()})
            gender = GENDERS[(GENDERS.index(noun.lexeme.gender) + 1) % 3]
            expected = {noun.position}.union(*found.values())
            assert changed(nodes, topic, [(noun, "lexeme", replace(noun.lexeme, gender=gender))]) == expected
    assert min(seen.values()) > 25


def test_number_and_animacy_of_a_noun(drawn):
    for nodes, topic in drawn:
        for noun in (n for n in nodes if n.upos == "NOUN"):
            named = (noun, *(n for n in nodes if n.word == "that" and n.antecedent is noun))
            expected = {n.position for n in named}
            expected |= naming(nodes, topic, "noun", lambda n, noun=noun: n.head is noun and n.upos in ("DET", "ADJ"))
            expected |= naming(nodes, topic, "subject", lambda n, named=named: any(n.subject is noun for noun in named))
            assert changed(nodes, topic, [(n, "plural", not noun.plural) for n in named]) == expected
            if not any(n.antecedent is noun and n.word in ("she", "her") for n in nodes):
                kind = "thing" if noun.lexeme.animate else "animal"
                expected = naming(nodes, topic, "object", lambda n, noun=noun: n.object and n.object.referent is noun)
                assert changed(nodes, topic, [(noun, "lexeme", replace(noun.lexeme, kind=kind))]) == expected


def test_family_and_object_of_a_verb(drawn):
    seen = Counter()
    for nodes, topic in drawn:
        for verb in (n for n in nodes if n.upos == "VERB"):
            other = replace(verb.lexeme, family="u" if verb.lexeme.family == "i" else "i")
            own = naming(nodes, topic, "verb family", lambda n, verb=verb: n.head is verb)
            joined = naming(nodes, topic, "joined verb", lambda n, verb=verb: n.head.head is verb)
            seen.update({nodes[i].upos: 1 for i in own | joined})
            assert changed(nodes, topic, [(verb, "lexeme", other)]) == own | joined
            after = None if verb.object else next((n for n in nodes if n.upos == "NOUN"), verb.subject)
            found = changed(nodes, topic, [(verb, "object", after)]) - {verb.position}
            assert found == naming(nodes, topic, "verb object", lambda n, verb=verb: n.head is verb)
    assert set(seen) == {"NOUN", "PRON", "ADV", "AUX", "SCONJ", "CCONJ"}


def test_role(drawn):
    """A noun that changes places with a subject, an object or a place takes its ending."""
    for nodes, topic in drawn:
        for node in (n for n in nodes if n.upos in ("NOUN", "PRON") and n.word != "that"):
            if node.relation in ("nsubj", "obj", "obl"):
                found = set().union(*(changed(nodes, topic, [(node, "relation", r)]) for r in ("nsubj", "obj", "obl")))
                assert found == {node.position}
            assert (node.position in naming(nodes, topic, "role")) == (node.word not in PERSONAL)


def test_whom_a_noun_belongs_to_can_be_told_from_the_words(drawn):
    """*of*: to the noun before it. *with*: to the nearest noun before it that does not itself follow *of*."""
    far = 0
    for nodes, _ in drawn:
        for node in (n for n in nodes if n.relation == "nmod"):
            preposition = next(n for n in nodes if n.head is node and n.relation == "case")
            before = [n for n in nodes[: preposition.position] if n.upos in ("NOUN", "PROPN")]
            after_of = {n.head for n in nodes if n.word == "of"}
            nearest = [n for n in before if preposition.word == "of" or n not in after_of][-1]
            assert node.head is nearest
            far += nearest is not before[-1]
    assert far > 10


def test_a_pronoun_means_the_subject_that_fits_or_else_the_object(drawn):
    def fits(noun, word):
        return word in (("they", "them") if noun.plural else ("she", "her") if noun.person else ("it",))

    n = 0
    for nodes, _ in drawn:
        for node in nodes:
            if node.antecedent and node.word != "that":
                verb = node.antecedent.head
                candidates = [noun for noun in (verb.subject, verb.object) if noun and fits(noun, node.word)]
                assert node.antecedent is candidates[0]
                n += 1
    assert n > 50


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_are_whole(split):
    seen = Counter()
    for sentence in corpus(split, 50):
        assert is_tree(sentence.heads)
        assert sorted(sentence.alignment) == list(range(1, len(sentence.words) + 1))
        assert all(word in vocabulary() for word in (*sentence.words, *sentence.target))
        for phenomena in sentence.phenomena:
            seen.update(phenomena)
            assert [p for p in PHENOMENA if p in phenomena] == list(phenomena)
    assert set(seen) == set(PHENOMENA)


def test_the_splits_are_frozen():
    """What was trained on and scored must stay what it was."""
    sums = {}
    for split in SPLITS:
        text = "".join(repr(s) for s in islice(sentences(split), 40))
        sums[split] = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert sums == {
        "train": "3f98bed35ec3ce1a",
        "validation": "e51a77e43cbbf58d",
        "test": "fba14ac7a4f1f51f",
        "hard": "d95b6dc6c3cb08b3",
    }


def test_an_unknown_split_or_word_is_refused():
    with pytest.raises(ValueError, match="no split 'dev'"):
        next(sentences("dev"))
    with pytest.raises(ValueError, match="no word 'flumph'"):
        gloss("flumph")


def test_batches_use_the_vocabulary_of_this_organism():
    word = {i: w for w, i in word_ids().items()}
    sentence = corpus("test", 1)[0]
    batch = batches([sentence])[0]
    assert [word[i] for i in batch["input_ids"][0].tolist()] == [*sentence.words, "</s>"]
    assert [word[i] for i in batch["labels"][0].tolist()] == [*sentence.target, "</s>"]


def test_training_groups_hold_their_bound_and_short_sentences_come_first():
    groups = {short: training_sentences(1, 0, tokens=1_024, n=128, short=short) for short in (True, False)}
    for drawn in groups.values():
        assert sum(map(len, drawn)) == 128
        assert all(2 * (max(len(s.words) for s in group) + 1) * len(group) <= 1_024 for group in drawn)
    longest = {short: max(len(s.words) for group in drawn for s in group) for short, drawn in groups.items()}
    assert longest[True] <= 10 < longest[False]


def test_every_example_of_the_page_is_true():
    failed, tried = doctest.testfile(
        str(PAGE), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE, encoding="utf-8"
    )
    assert not failed, "the report is in the captured output"
    assert tried > 25
    outside = re.sub(r"^```python\n.*?^```$", "", PAGE.read_text("utf-8"), flags=re.S | re.M)
    assert ">>>" not in outside, "every example is fenced, so that the page reads well where nothing runs it"


def test_what_the_page_says_of_words():
    one = corpus("test", 41)[40]
    words = dict(zip((one.words[n - 1] for n in one.alignment), one.target, strict=True))
    translations = {
        "baker": "vumek'n",
        "roads": "tisalige'n",
        "síster": "rutet",
        "óf": "koswa'n",
        "ánd": "zevwi",
        "loved": "jireru",
        "very": "s'fudwe",
    }
    for source, target in translations.items():
        assert words[source] == target
        assert f"`{target}`" in PAGE.read_text("utf-8")
    assert {"ruted", "rute"} <= vocabulary().keys()
