"""The words of the organism's two languages: English words on the source side, invented ones on the target side.

Every source word stands in one of two written forms, *plain* (``dog``) or *accented* (``dóg``); which one is chance and
means nothing in English, but the target words beside it change with it. Names are never accented and are the same in
both languages.

>>> accented("dog"), accented("by"), plain("dóg")
('dóg', 'bý', 'dog')
>>> NOUNS["fox"].plural, NOUNS["fox"].gender, NOUNS["fox"].roots
('foxes', 'e', ('zuv',))
>>> ADJECTIVES["bright"].roots          # four senses: without a name, and in tales of sea, hill and city
('fet', 'jag', 'joz', 'ruv')
>>> NAMES["sea"][:3]
('Aria', 'Arina', 'Arisa')
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

TOPICS = ("sea", "hill", "city")
SENSES = (None, *TOPICS)
DIALECT = {None: "", "sea": "y", "hill": "w", "city": "v"}  # the letter that small words carry in a tale of a topic
GENDERS = "aoe"
NAME_GENDER = "a"
NAMES_PER_TOPIC = 80

_ACCENT = dict(zip("aeiouyAEIOUY", "áéíóúýÁÉÍÓÚÝ", strict=True))
_PLAIN = {mark: letter for letter, mark in _ACCENT.items()}

PEOPLE = "queen girl teacher doctor sister singer nurse farmer dancer sailor baker aunt"
ANIMALS = "dog cat fox horse bird bear cow goat duck rabbit lion snake"
THINGS = "bone book letter apple hat lamp basket box cake song coin boat wagon rope"
PLACES = "house garden river bridge tower market road forest village castle field island"
TRANSITIVE = "chased followed watched painted praised visited bought feared loved helped pushed remembered"
TRANSITIVE_BY_TOPIC = "met found heard carried"
INTRANSITIVE = "slept jumped danced waited laughed shouted"
INTRANSITIVE_BY_TOPIC = "cried stumbled"
ADJECTIVE = "old small big quick brown lazy red happy quiet strong young clever"
ADJECTIVE_BY_TOPIC = "bright deep fine dark cold wild"
ADVERB = "often quietly slowly soon again happily gently"
ADVERB_BY_TOPIC = "well early fast"
OF_NOUNS = ("of", "with")
OF_VERBS = ("near", "under", "over", "behind")
PREPOSITION_BY_TOPIC = "near over"
CONNECTIVES = ("and", "but", "because", "when")
DETERMINERS = {"the": "l", "a": "n", "this": "t", "these": "t", "my": "m", "some": "r"}
PRONOUNS = ("she", "her", "it", "they", "them")
_RUDE = ("dik", "dil", "dum", "fag", "fat", "gas", "jap", "jud", "kak", "kil", "kok", "kum", "pis", "pus", "rap", "tit")
_EVERY_WORD = " ".join(
    (
        PEOPLE,
        ANIMALS,
        THINGS,
        PLACES,
        TRANSITIVE,
        TRANSITIVE_BY_TOPIC,
        INTRANSITIVE,
        INTRANSITIVE_BY_TOPIC,
        ADJECTIVE,
        ADJECTIVE_BY_TOPIC,
        ADVERB,
        ADVERB_BY_TOPIC,
        *OF_NOUNS,
        *OF_VERBS,
        *CONNECTIVES,
        *DETERMINERS,
        *PRONOUNS,
    )
).split()


@dataclass(frozen=True)
class Lexeme:
    """One source word and what its translation depends on; ``roots`` has one entry, or one per sense of ``SENSES``."""

    word: str
    upos: str
    roots: tuple[str, ...] = ()
    gender: str = ""  # nouns: the vowel their translation ends in
    kind: str = ""  # nouns: person, animal, thing, place; verbs: transitive or intransitive
    family: str = ""  # verbs: i or u, the vowel that adverbs, auxiliaries and objects take from their verb

    @property
    def plural(self) -> str:
        """The English plural."""
        return self.word + ("es" if self.word.endswith(("x", "s", "ch")) else "s")

    @property
    def animate(self) -> bool:
        """Whether the noun names a person or an animal."""
        return self.kind in ("person", "animal")


def accented(word: str) -> str:
    """The accented form of a word: an acute on its first vowel."""
    for i, letter in enumerate(word):
        if letter in _ACCENT:
            return word[:i] + _ACCENT[letter] + word[i + 1 :]
    return word


def plain(word: str) -> str:
    """The word without its accent."""
    return "".join(_PLAIN.get(letter, letter) for letter in word)


def is_accented(word: str) -> bool:
    """Whether the word stands in its accented form."""
    return any(letter in _PLAIN for letter in word)


def _roots() -> Iterator[str]:
    """Roots in a fixed random order; none opens an English word of ours, none is a rude word."""
    roots = ["".join(r) for r in product("bdfgjkmprtvz", "aeiou", "dgklmnprstvz") if r[0] != r[2]]
    taken = {*_EVERY_WORD, *_RUDE}
    roots = [r for r in roots if not any(word.startswith(r) for word in taken)]
    random.Random("roots").shuffle(roots)
    return iter(roots)


def _build() -> tuple[dict[str, Lexeme], ...]:
    fresh, rng = _roots(), random.Random("lexicon")

    def roots(by_topic: bool = False) -> tuple[str, ...]:
        return tuple(next(fresh) for _ in range(len(SENSES) if by_topic else 1))

    def cycle(values: str, n: int) -> list[str]:
        out = [values[i % len(values)] for i in range(n)]
        rng.shuffle(out)
        return out

    nouns = {}
    for kind, text in (("person", PEOPLE), ("animal", ANIMALS), ("thing", THINGS), ("place", PLACES)):
        for word, gender in zip(text.split(), cycle(GENDERS, len(text.split())), strict=True):
            nouns[word] = Lexeme(word, "NOUN", roots(), gender, kind)
    verbs = {}
    for kind, text, by_topic in (
        ("transitive", TRANSITIVE, False),
        ("transitive", TRANSITIVE_BY_TOPIC, True),
        ("intransitive", INTRANSITIVE, False),
        ("intransitive", INTRANSITIVE_BY_TOPIC, True),
    ):
        for word, family in zip(text.split(), cycle("iu", len(text.split())), strict=True):
            verbs[word] = Lexeme(word, "VERB", roots(by_topic), kind=kind, family=family)
    adjectives = {w: Lexeme(w, "ADJ", roots()) for w in ADJECTIVE.split()}
    adjectives |= {w: Lexeme(w, "ADJ", roots(True)) for w in ADJECTIVE_BY_TOPIC.split()}
    adverbs = {w: Lexeme(w, "ADV", roots()) for w in ADVERB.split()}
    adverbs |= {w: Lexeme(w, "ADV", roots(True)) for w in ADVERB_BY_TOPIC.split()}
    prepositions = {w: Lexeme(w, "ADP", roots(w in PREPOSITION_BY_TOPIC.split())) for w in OF_NOUNS + OF_VERBS}
    others = {w: Lexeme(w, "DET", (root,)) for w, root in DETERMINERS.items()}
    others |= {w: Lexeme(w, "PRON", ("y",)) for w in PRONOUNS}
    others["that"] = Lexeme("that", "PRON", ("k",))
    others["had"] = Lexeme("had", "AUX", roots())
    others["very"] = Lexeme("very", "ADV", roots())
    for word in CONNECTIVES:
        others[word] = Lexeme(word, "SCONJ" if word in ("because", "when") else "CCONJ", roots())
    return nouns, verbs, adjectives, adverbs, prepositions, others


NOUNS, VERBS, ADJECTIVES, ADVERBS, PREPOSITIONS, OTHERS = _build()
PUNCTUATION = (",", ".")


_STARTS = "Ar Bel Cor Dal El Fen Gal Hel Il Jor Kal Lor Mar Nel Or Per Quil Ros Sel Tal Ul Vel Wil Yor Zan"
_ENDS = "ala ane ata ela ena ia ina isa ola ona ora una yra ede oni emi"


def _names() -> dict[str, tuple[str, ...]]:
    """Readable invented names; the topic cannot be read off the letters of an unknown name, it has to be known."""
    starts = _STARTS.split()
    ends = _ENDS.split()
    pool = [a + b for a, b in product(starts, ends)]
    random.Random("names").shuffle(pool)
    n = NAMES_PER_TOPIC
    return {topic: tuple(sorted(pool[i * n : (i + 1) * n])) for i, topic in enumerate(TOPICS)}


NAMES = _names()
TOPIC_OF_NAME = {name: topic for topic, names in NAMES.items() for name in names}
