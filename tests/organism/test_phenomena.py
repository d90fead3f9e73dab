"""What a target word depends on: change a fact of the sentence, and the words that name it change, and no others."""

import hashlib
import random
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from headtools.organism.grammar import HARD, USUAL, SentenceSampler
from headtools.organism.language import SPLITS, sentences
from headtools.organism.lexicon import GENDERS, OTHERS, TOPICS
from headtools.organism.translation import PHENOMENA, UNTOUCHED, write
from headtools.roles.corpus import corpus


@pytest.fixture(scope="module")
def drawn():
    """(nodes in source order, topic) of 75 sentences."""
    samplers = [SentenceSampler(random.Random("phenomena"), style) for style in (USUAL, USUAL, HARD)]
    return [(source, topic) for sampler in samplers for source, _, topic in (sampler.sentence() for _ in range(25))]


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


def other_gender(noun):
    return replace(noun.lexeme, gender=GENDERS[(GENDERS.index(noun.lexeme.gender) + 1) % 3])


def test_topic(drawn):
    for nodes, topic in drawn:
        for other in TOPICS:
            if other != topic:
                assert changed(nodes, topic, [], other) == naming(nodes, topic, "topic")


def test_accents(drawn):
    for nodes, topic in drawn:
        left, right = naming(nodes, topic, "left accent"), naming(nodes, topic, "right accent")
        can = {i for i, node in enumerate(nodes) if node.upos not in UNTOUCHED}  # names and marks have no accented form
        assert left == can & {i + 1 for i in can}
        assert right == can & {i - 1 for i in can}
        for i in can:
            heard = left & {i + 1} | right & {i - 1}
            assert changed(nodes, topic, [(nodes[i], "accent", not nodes[i].accent)]) == heard


def test_gender_of_a_noun(drawn):
    """Heard in its determiners, adjectives, preposition, its verb, and in all that a pronoun hands it on to."""
    seen = Counter()
    for nodes, topic in drawn:
        for noun in nodes:
            if noun.upos != "NOUN":
                continue
            hearers = {
                "noun": lambda n, noun=noun: n.head is noun,
                "subject": lambda n, noun=noun: n.subject and n.subject.referent is noun,
            }
            expected = {noun.position}
            for phenomenon, concerns in hearers.items():
                found = naming(nodes, topic, phenomenon, concerns)
                seen[phenomenon] += len(found)
                expected |= found
            antecedent = naming(nodes, topic, "antecedent", lambda n, noun=noun: n.antecedent and n.referent is noun)
            seen["antecedent"] += len(antecedent)
            assert changed(nodes, topic, [(noun, "lexeme", other_gender(noun))]) == expected | antecedent
    assert min(seen[p] for p in ("noun", "subject", "antecedent")) > 50


def test_verbs_name_the_antecedent_where_the_subject_does_not_tell(drawn):
    """The gender of what a pronoun stands for reaches its verb, which says so; no other verb names it for that."""
    for nodes, topic in drawn:
        for verb in naming(nodes, topic, "antecedent", lambda n: n.upos == "VERB"):
            by_subject = nodes[verb].subject.antecedent is not None
            by_object = nodes[verb].object is not None and nodes[verb].object.antecedent is not None
            assert by_subject or by_object
        for node in nodes:
            if node.antecedent and node.referent.lexeme and node.relation == "nsubj":
                swapped = changed(nodes, topic, [(node.referent, "lexeme", other_gender(node.referent))])
                assert node.head.position in swapped & naming(nodes, topic, "antecedent")


def test_number_of_a_noun(drawn):
    for nodes, topic in drawn:
        for noun in nodes:
            if noun.upos != "NOUN":
                continue
            thats = [n for n in nodes if n.word == "that" and n.antecedent is noun]  # the same form in both numbers
            change = [(n, "plural", not noun.plural) for n in (noun, *thats)]
            expected = {noun.position, *(n.position for n in thats)}
            expected |= naming(nodes, topic, "noun", lambda n, noun=noun: n.head is noun and n.upos in ("DET", "ADJ"))
            named = (noun, *thats)
            expected |= naming(nodes, topic, "subject", lambda n, named=named: any(n.subject is noun for noun in named))
            assert changed(nodes, topic, change) == expected


def test_animacy_of_an_object(drawn):
    seen = Counter()
    for nodes, topic in drawn:
        for noun in nodes:
            if noun.upos != "NOUN":
                continue
            kind = "thing" if noun.lexeme.animate else "animal"
            if any(n.antecedent is noun and n.word in ("she", "her") for n in nodes):
                continue  # a thing could not be told of so
            expected = naming(nodes, topic, "object", lambda n, noun=noun: n.object and n.object.referent is noun)
            assert changed(nodes, topic, [(noun, "lexeme", replace(noun.lexeme, kind=kind))]) == expected
            for i in expected:
                behind = nodes[i].object.antecedent is not None
                seen[behind] += 1
                assert not behind or i in naming(nodes, topic, "antecedent")
    assert min(seen[False], seen[True]) > 2


def test_family_of_a_verb(drawn):
    for nodes, topic in drawn:
        for verb in nodes:
            if verb.upos == "VERB":
                other = replace(verb.lexeme, family="u" if verb.lexeme.family == "i" else "i")
                expected = naming(nodes, topic, "verb family", lambda n, verb=verb: n.head is verb)
                assert changed(nodes, topic, [(verb, "lexeme", other)]) == expected


def test_whether_a_verb_has_an_object(drawn):
    for nodes, topic in drawn:
        for verb in nodes:
            if verb.upos == "VERB":
                after = None if verb.object else next((n for n in nodes if n.upos == "NOUN"), verb.subject)
                found = changed(nodes, topic, [(verb, "object", after)]) - {verb.position}
                assert found == naming(nodes, topic, "verb object", lambda n, verb=verb: n.head is verb)


def test_role(drawn):
    """A noun that changes places with a subject, an object or what stands behind a preposition takes its ending."""
    for nodes, topic in drawn:
        for node in nodes:
            if node.relation in ("nsubj", "obj", "obl") and node.upos in ("NOUN", "PRON") and node.word != "that":
                others = [r for r in ("nsubj", "obj", "obl") if r != node.relation]
                marked = node.word in ("she", "they", "her", "them")  # the form tells by itself
                found = set().union(*(changed(nodes, topic, [(node, "relation", r)]) for r in others))
                assert found == {node.position}
                assert (node.position in naming(nodes, topic, "role")) == (not marked)
        assert all(nodes[i].upos in ("NOUN", "PRON") for i in naming(nodes, topic, "role"))


@pytest.mark.parametrize("split", SPLITS)
def test_sentences_carry_them(split):
    seen = Counter()
    for sentence in islice(sentences(split), 100):
        assert len(sentence.phenomena) == len(sentence.target)
        for word, number, phenomena in zip(sentence.target, sentence.alignment, sentence.phenomena, strict=True):
            seen.update(phenomena)
            assert [p for p in PHENOMENA if p in phenomena] == list(phenomena)
            assert sentence.upos[number - 1] not in UNTOUCHED or phenomena == (), word
            if sentence.words[number - 1] in OTHERS and sentence.upos[number - 1] == "DET":
                assert {"topic", "noun"} <= {*phenomena}
    assert set(seen) == set(PHENOMENA)


def test_other_corpora_have_none():
    assert corpus("english", limit=1)[0].phenomena is None


def test_the_split_is_frozen():
    """What was trained on and scored must stay what it was: words, annotation and translations of four splits."""
    fields = ["words", "heads", "relations", "upos", "coreference", "target", "alignment", "topic"]
    sums = {}
    for split in SPLITS:
        text = "".join(repr([getattr(s, f) for f in fields]) for s in islice(sentences(split), 200))
        sums[split] = hashlib.sha256(text.encode()).hexdigest()[:16]
    assert sums == {
        "train": "ab1483600b9581b6",
        "validation": "684da571c6b5771e",
        "test": "085de181dc1c04bc",
        "hard": "d830479966653556",
    }
