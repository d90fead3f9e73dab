"""Both organisms' languages: change a fact of a sentence, and the words that name it change, and no others."""

import doctest
import hashlib
import random
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headtools as ht
from headtools.organism import grammar, language, translation, vocabulary
from headtools.organism import lexicon as lx
from headtools.organism.language import SPLITS, frequency
from headtools.organism.second import grammar as grammar2
from headtools.organism.second import language as language2
from headtools.organism.second import translation as translation2
from headtools.organism.second import vocabulary as vocabulary2
from headtools.organism.vocabulary import SPECIAL
from headtools.roles.sentence import is_tree

MODULES = {
    "organism": (grammar, language, translation, vocabulary),
    "organism2": (grammar2, language2, translation2, vocabulary2),
}
FROZEN = {  # SHA-256 of 200 sentences of each split
    "organism": {
        "train": "05dff438faea6ccc",
        "validation": "69090baf2d8a01e8",
        "test": "764087f618632a7b",
        "hard": "905444c76758b8d0",
    },
    "organism2": {
        "train": "312a894ce55dcb92",
        "validation": "866122235048214b",
        "test": "1977690b063ce4e9",
        "hard": "a608d89ef5d6c32e",
    },
}


def modules(name):
    return SimpleNamespace(
        name=name, **dict(zip(("grammar", "language", "translation", "vocabulary"), MODULES[name], strict=True))
    )


@pytest.fixture(scope="module", params=MODULES)
def organism(request):
    return modules(request.param)


@pytest.fixture(scope="module")
def drawn(organism):
    """(nodes in source order, topic) of 90 sentences."""
    dice, g = random.Random("phenomena"), organism.grammar
    samplers = [g.SentenceSampler(dice, style) for style in (g.USUAL, g.USUAL, g.HARD)]
    return [(source, topic) for sampler in samplers for source, _, topic in (sampler.sentence() for _ in range(30))]


@pytest.fixture(scope="module")
def changed(organism):
    """Words, as positions, that are written differently while ``change`` (object, attribute, value) holds."""

    def positions(nodes, topic, change, topic_after=None):
        write = organism.translation.write
        before = [write(n, nodes, topic)[0] for n in nodes]
        kept = [(thing, name, getattr(thing, name)) for thing, name, _ in change]
        for thing, name, value in change:
            setattr(thing, name, value)
        after = [write(n, nodes, topic_after or topic)[0] for n in nodes]
        for thing, name, value in kept:
            setattr(thing, name, value)
        return {i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}

    return positions


@pytest.fixture(scope="module")
def naming(organism):
    """Words, as positions, that name a phenomenon, among those that ``concerns`` picks."""

    def positions(nodes, topic, phenomenon, concerns=lambda node: True):
        write = organism.translation.write
        return {i for i, n in enumerate(nodes) if phenomenon in write(n, nodes, topic)[1] and concerns(n)}

    return positions


def each(drawn, *upos):
    """Every word of some parts of speech with its sentence."""
    return [(nodes, topic, node) for nodes, topic in drawn for node in nodes if node.upos in upos]


def other_gender(noun):
    return replace(noun.lexeme, gender=lx.GENDERS[(lx.GENDERS.index(noun.lexeme.gender) + 1) % 3])


# --- the phenomena ----------------------------------------------------------------------------------------------------


def test_topic_and_accents(drawn, changed, naming):
    for nodes, topic in drawn:
        for other in set(lx.TOPICS) - {topic}:
            assert changed(nodes, topic, [], other) == naming(nodes, topic, "topic")
        left, right = naming(nodes, topic, "left accent"), naming(nodes, topic, "right accent")
        can = {i for i, node in enumerate(nodes) if node.upos not in translation.UNTOUCHED}  # names are never accented
        assert left == can & {i + 1 for i in can}
        assert right == can & {i - 1 for i in can}
        for i in can:
            heard = left & {i + 1} | right & {i - 1}
            assert changed(nodes, topic, [(nodes[i], "accent", not nodes[i].accent)]) == heard


def test_gender_of_a_noun(organism, drawn, changed, naming):
    """Heard in what describes it and belongs to it, in its preposition, its verb, and through a pronoun."""
    seen = Counter()
    for nodes, topic, noun in each(drawn, "NOUN"):
        hearers = {
            "noun": lambda n, noun=noun: n.head is noun or (n.word == "very" and n.head.head is noun),
            "subject": lambda n, noun=noun: n.subject and n.subject.referent is noun,
            "owner": lambda n, noun=noun: n.head is noun,
            "antecedent": lambda n, noun=noun: n.antecedent and n.referent is noun,
        }
        found = {name: naming(nodes, topic, name, concerns) for name, concerns in hearers.items()}
        seen.update({name: len(some) for name, some in found.items()})
        expected = {noun.position}.union(*found.values())
        assert changed(nodes, topic, [(noun, "lexeme", other_gender(noun))]) == expected
    assert all((count > 25) == (name in organism.translation.PHENOMENA) for name, count in seen.items())


def test_verbs_name_the_antecedent_where_the_subject_does_not_tell(drawn, changed, naming):
    """The gender of what a pronoun stands for reaches its verb, which says so; no other verb names it for that."""
    for nodes, topic in drawn:
        for verb in naming(nodes, topic, "antecedent", lambda n: n.upos == "VERB"):
            assert any(noun and noun.antecedent for noun in (nodes[verb].subject, nodes[verb].object))
        for node in nodes:
            if node.antecedent and node.referent.lexeme and node.relation == "nsubj":
                swapped = changed(nodes, topic, [(node.referent, "lexeme", other_gender(node.referent))])
                assert node.head.position in swapped & naming(nodes, topic, "antecedent")


def test_number_and_animacy_of_a_noun(drawn, changed, naming):
    for nodes, topic, noun in each(drawn, "NOUN"):
        named = (noun, *(n for n in nodes if n.word == "that" and n.antecedent is noun))  # one form in both numbers
        expected = {n.position for n in named}
        expected |= naming(nodes, topic, "noun", lambda n, noun=noun: n.head is noun and n.upos in ("DET", "ADJ"))
        expected |= naming(nodes, topic, "subject", lambda n, named=named: any(n.subject is noun for noun in named))
        assert changed(nodes, topic, [(n, "plural", not noun.plural) for n in named]) == expected
        if not any(n.antecedent is noun and n.word in ("she", "her") for n in nodes):  # a thing could not be told of so
            kind = "thing" if noun.lexeme.animate else "animal"
            expected = naming(nodes, topic, "object", lambda n, noun=noun: n.object and n.object.referent is noun)
            assert changed(nodes, topic, [(noun, "lexeme", replace(noun.lexeme, kind=kind))]) == expected
            behind = {i for i in expected if nodes[i].object.antecedent}
            assert behind <= naming(nodes, topic, "antecedent")


def test_family_and_object_of_a_verb(organism, drawn, changed, naming):
    seen = set()
    for nodes, topic, verb in each(drawn, "VERB"):
        other = replace(verb.lexeme, family="u" if verb.lexeme.family == "i" else "i")
        own = naming(nodes, topic, "verb family", lambda n, verb=verb: n.head is verb)
        joined = naming(nodes, topic, "joined verb", lambda n, verb=verb: n.head.head is verb)
        seen |= {nodes[i].upos for i in own | joined}
        assert changed(nodes, topic, [(verb, "lexeme", other)]) == own | joined
        after = None if verb.object else next((n for n in nodes if n.upos == "NOUN"), verb.subject)
        found = changed(nodes, topic, [(verb, "object", after)]) - {verb.position}
        assert found == naming(nodes, topic, "verb object", lambda n, verb=verb: n.head is verb)
    assert seen == {"NOUN", "PRON", "ADV", "AUX"} | ({"SCONJ", "CCONJ"} if organism.name == "organism2" else set())


def test_role(drawn, changed, naming):
    """A noun that changes places with a subject, an object or a place takes its ending."""
    for nodes, topic, node in each(drawn, "NOUN", "PRON"):
        if node.relation in ("nsubj", "obj", "obl") and node.word != "that":
            found = set().union(*(changed(nodes, topic, [(node, "relation", r)]) for r in ("nsubj", "obj", "obl")))
            assert found == {node.position}
            marked = node.word in ("she", "they", "her", "them")  # the form tells by itself
            assert (node.position in naming(nodes, topic, "role")) == (not marked)


# --- the second grammar: no shortcut, and nothing that cannot be told -------------------------------------------------


@pytest.mark.parametrize("organism", ["organism2"], indirect=True)
def test_whom_a_noun_belongs_to_can_be_told_from_the_words(drawn):
    """*of*: to the noun before it. *with*: to the nearest noun before it that does not itself follow *of*."""
    far = 0
    for nodes, _, node in each(drawn, "NOUN", "PROPN"):
        if node.relation == "nmod":
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

    found = [node for _, _, node in each(drawn, "PRON") if node.word != "that"]
    for node in found:
        verb = node.antecedent.head
        assert node.antecedent is next(n for n in (verb.subject, verb.object) if n and fits(n, node.word))
    assert len(found) > 30


# --- sentences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODULES)
@settings(max_examples=15, deadline=None)
@given(stream=st.integers(0, 10**6), style=st.sampled_from(["USUAL", "SHORT", "HARD"]))
def test_every_sentence_is_well_formed(name, stream, style):
    of = modules(name)
    words, phenomena = of.vocabulary.vocabulary(), list(of.translation.PHENOMENA)
    for s in islice(of.language.sentences("train", getattr(of.grammar, style), stream), 20):
        n = len(s.words)
        assert len(s.heads) == len(s.relations) == len(s.upos) == len(s.coreference) == n
        assert is_tree(s.heads)
        assert [r for h, r in zip(s.heads, s.relations, strict=True) if h == 0] == ["root"]
        assert all(s.relations)
        assert sorted(s.alignment) == list(range(1, n + 1)), "the alignment pairs every word with exactly one"
        assert len(s.target) == len(s.phenomena) == n
        assert all(w in words for w in (*s.words, *s.target))
        assert all(words[w][0] == "source" or w in s.target for w in s.words), "only names and marks are shared"
        names = [w for w in s.words if w in lx.TOPIC_OF_NAME]
        assert [lx.TOPIC_OF_NAME[w] for w in names] == ([s.topic] if s.topic else [])
        for word, antecedent in zip(s.words, s.coreference, strict=True):
            assert (antecedent > 0) == (lx.plain(word) in lx.PRONOUNS)
            assert antecedent == 0 or s.upos[antecedent - 1] in ("NOUN", "PROPN")
        for number, some in zip(s.alignment, s.phenomena, strict=True):
            assert sorted(some, key=phenomena.index) == list(some)
            assert s.upos[number - 1] not in translation.UNTOUCHED or some == ()


def features(word):
    pairs = [f.split(" ", 1) for f in vocabulary.vocabulary()[word] if " " in f]
    return {key: value for key, value in pairs if key in ("gender", "number", "topic")}


def test_target_words_agree_with_the_gold_tree():
    """Read off the target words alone: agreement follows the gold heads, coreference and neighbours."""
    checked = Counter()
    for s in ht.corpus("organism", "test", limit=300):
        written = dict(zip(s.alignment, s.target, strict=True))
        for i, (head, relation, antecedent) in enumerate(zip(s.heads, s.relations, s.coreference, strict=True), 1):
            if relation in ("det", "amod") and s.upos[head - 1] == "NOUN":
                mine, its = features(written[i]), features(written[head])
                assert (mine["gender"], mine["number"]) == (its["gender"], its["number"]), s
                checked[relation] += 1
            if antecedent and s.upos[antecedent - 1] == "NOUN":
                assert features(written[i])["gender"] == features(written[antecedent])["gender"], s
                checked["coreference"] += 1
            if s.upos[i - 1] not in ("PROPN", "PUNCT"):
                assert written[i].startswith("s'") == (i > 1 and lx.is_accented(s.words[i - 2]))
                assert written[i].endswith("'n") == (i < len(s.words) and lx.is_accented(s.words[i]))
                checked["neighbours"] += 1
            if relation == "det":
                assert features(written[i])["topic"] == str(s.topic)
                checked["topic"] += 1
    assert min(checked[k] for k in ("det", "amod", "coreference", "neighbours", "topic")) > 50


def test_the_splits_are_frozen_and_apart(organism):
    """What was trained on and scored must stay what it was: words, annotation and translations."""
    drawn = {split: list(islice(organism.language.sentences(split), 200)) for split in SPLITS}
    sums = {split: hashlib.sha256(repr(some).encode()).hexdigest()[:16] for split, some in drawn.items()}
    assert sums == FROZEN[organism.name]
    assert ht.corpus(organism.name, "test", limit=40) == drawn["test"][:40]
    assert {word for s in drawn["hard"] for some in s.phenomena for word in some} == {*organism.translation.PHENOMENA}
    seen = [{s.words for s in drawn[split]} for split in ("train", "validation", "test")]
    assert len(set.union(*seen)) == sum(map(len, seen))
    mean = {split: sum(len(s.words) for s in drawn[split]) / 200 for split in ("test", "hard")}
    assert mean["hard"] > 1.5 * mean["test"]
    assert next(organism.language.sentences("train", stream=1)) != drawn["train"][0]


def test_names_are_the_rarest_words():
    count = frequency(6_000)
    drawn = [s for s in ht.corpus("organism", "test") if s.topic]
    rarest = [min(s.words, key=lambda word: count[word]) for s in drawn]
    assert sum(word in lx.TOPIC_OF_NAME for word in rarest) >= 0.99 * len(drawn)


def test_every_word_has_a_gloss(organism):
    assert all(organism.vocabulary.gloss(word) for word in organism.vocabulary.vocabulary() if word not in SPECIAL)


# --- the pages that explain the languages -----------------------------------------------------------------------------


def test_every_example_of_the_page_is_true(organism):
    page = Path(organism.language.__file__).with_name("LANGUAGE.md")
    flags = doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=flags, encoding="utf-8")
    assert not failed, "the report is in the captured output"
    assert tried > 25
    outside = re.sub(r"^```python\n.*?^```$", "", page.read_text("utf-8"), flags=re.S | re.M)
    assert ">>>" not in outside, "every example is fenced, so that the page reads well where nothing runs it"


def test_what_the_pages_say_outside_the_examples():
    text = Path(language.__file__).with_name("LANGUAGE.md").read_text("utf-8")
    open_classes = (lx.VERBS, lx.ADJECTIVES, lx.ADVERBS, lx.PREPOSITIONS)
    assert sum(len(lexeme.roots) > 1 for part in open_classes for lexeme in part.values()) == 17
    assert "Seventeen words have four roots" in text
    assert f"There are {len(lx.TOPIC_OF_NAME)} names, {lx.NAMES_PER_TOPIC} for each topic" in text
    assert f"up to {grammar.USUAL.longest} words" in text
    assert f"{grammar.HARD.shortest} to {grammar.HARD.longest} words" in text
    assert f"| {language.SIZES['train']:,} |" in text
    assert all(f"{name} " in text for name in translation.PHENOMENA)
    text = Path(language2.__file__).with_name("LANGUAGE.md").read_text("utf-8")
    one = language2.corpus("test", 41)[40]
    words = dict(zip((one.words[n - 1] for n in one.alignment), one.target, strict=True))
    for source, target in {"baker": "vumek'n", "óf": "koswa'n", "ánd": "zevwi", "very": "s'fudwe"}.items():
        assert words[source] == target
        assert f"`{target}`" in text
