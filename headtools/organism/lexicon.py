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
from itertools import islice, product

TOPICS = ("sea", "hill", "city")
SENSES = (None, *TOPICS)
DIALECT = {None: "", "sea": "y", "hill": "w", "city": "v"}  # the letter that small words carry in a tale of a topic
GENDERS = "aoe"
NAME_GENDER = "a"
NAMES_PER_TOPIC = 80

_ACCENT = dict(zip("aeiouyAEIOUY", "áéíóúýÁÉÍÓÚÝ", strict=True))
_PLAIN = {mark: letter for letter, mark in _ACCENT.items()}

_NOUNS = {
    "person": "queen girl teacher doctor sister singer nurse farmer dancer sailor baker aunt",
    "animal": "dog cat fox horse bird bear cow goat duck rabbit lion snake",
    "thing": "bone book letter apple hat lamp basket box cake song coin boat wagon rope",
    "place": "house garden river bridge tower market road forest village castle field island",
}
# Of verbs, adjectives and adverbs: words with one root, and words with a root for each sense.
_TRANSITIVE = (
    "chased followed watched painted praised visited bought feared loved helped pushed remembered",
    "met found heard carried",
)
_INTRANSITIVE = "slept jumped danced waited laughed shouted", "cried stumbled"
_ADJECTIVES = "old small big quick brown lazy red happy quiet strong young clever", "bright deep fine dark cold wild"
_ADVERBS = "often quietly slowly soon again happily gently", "well early fast"
OF_NOUNS = ("of", "with")
OF_VERBS = ("near", "under", "over", "behind")
_PREPOSITIONS_WITH_SENSES = ("near", "over")
CONNECTIVES = ("and", "but", "because", "when")
DETERMINERS = {"the": "l", "a": "n", "this": "t", "these": "t", "my": "m", "some": "r"}
PRONOUNS = ("she", "her", "it", "they", "them")
_RUDE = "dik dil dum fag fat gas jap jud kak kil kok kum pis pus rap tit"


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


def kind_of(word: str) -> tuple[str, str]:
    """What a noun or a name stands for, its kind, and whether it is one or many.

    Raises ``ValueError`` for another word.

    >>> kind_of("Foxes"), kind_of(NAMES["sea"][0])
    (('animal', 'many'), ('name', 'one'))
    """
    if word in TOPIC_OF_NAME:
        return "name", "one"
    if (found := _KINDS.get(plain(word).lower())) is None:
        raise ValueError(f"got {word!r}; expected a noun or a name of the organism's language, see NOUNS and NAMES")
    return found


def fits(pronoun: str, noun: str) -> bool:
    """Whether a pronoun can stand for a noun or a name, as far as person, thing and number go.

    >>> fits("she", "sailor"), fits("it", "sailor"), fits("them", "boats"), fits("they", "boat")
    (True, False, True, False)
    """
    kind, number = kind_of(noun)
    word = plain(pronoun).lower()
    if word in ("they", "them"):
        return number == "many"
    return number == "one" and (kind in ("person", "name")) == (word in ("she", "her"))


def is_accented(word: str) -> bool:
    """Whether the word stands in its accented form."""
    return any(letter in _PLAIN for letter in word)


def _roots() -> Iterator[str]:
    """Roots in a fixed random order; none opens an English word of ours, none is a rude word."""
    roots = ["".join(r) for r in product("bdfgjkmprtvz", "aeiou", "dgklmnprstvz") if r[0] != r[2]]
    open_classes = *_NOUNS.values(), *_TRANSITIVE, *_INTRANSITIVE, *_ADJECTIVES, *_ADVERBS
    closed_classes = *OF_NOUNS, *OF_VERBS, *CONNECTIVES, *DETERMINERS, *PRONOUNS
    taken = " ".join((*open_classes, *closed_classes, _RUDE)).split()
    roots = [root for root in roots if not any(word.startswith(root) for word in taken)]
    random.Random("roots").shuffle(roots)
    return iter(roots)


def _build() -> tuple[dict[str, Lexeme], ...]:
    # Roots are dealt out in this order: another one would be another language.
    fresh, rng = _roots(), random.Random("lexicon")

    def roots(senses: bool = False) -> tuple[str, ...]:
        return tuple(islice(fresh, len(SENSES) if senses else 1))

    def dealt(words: str, values: str) -> Iterator[tuple[str, str]]:
        """Each word with one of the values, all of them about equally often."""
        out = [values[i % len(values)] for i in range(len(words.split()))]
        rng.shuffle(out)
        return zip(words.split(), out, strict=True)

    def plain_words(upos: str, lists: tuple[str, str]) -> dict[str, Lexeme]:
        return {w: Lexeme(w, upos, roots(senses)) for senses, words in enumerate(lists) for w in words.split()}

    nouns = {
        word: Lexeme(word, "NOUN", roots(), gender, kind)
        for kind, words in _NOUNS.items()
        for word, gender in dealt(words, GENDERS)
    }
    verbs = {
        word: Lexeme(word, "VERB", roots(senses), kind=kind, family=family)
        for kind, lists in (("transitive", _TRANSITIVE), ("intransitive", _INTRANSITIVE))
        for senses, words in enumerate(lists)
        for word, family in dealt(words, "iu")
    }
    adjectives, adverbs = plain_words("ADJ", _ADJECTIVES), plain_words("ADV", _ADVERBS)
    prepositions = {w: Lexeme(w, "ADP", roots(w in _PREPOSITIONS_WITH_SENSES)) for w in OF_NOUNS + OF_VERBS}
    others = {w: Lexeme(w, "DET", (root,)) for w, root in DETERMINERS.items()}
    others |= {w: Lexeme(w, "PRON", ("y",)) for w in PRONOUNS}
    others |= {"that": Lexeme("that", "PRON", ("k",)), "had": Lexeme("had", "AUX", roots())}
    others["very"] = Lexeme("very", "ADV", roots())
    for word in CONNECTIVES:
        others[word] = Lexeme(word, "SCONJ" if word in ("because", "when") else "CCONJ", roots())
    return nouns, verbs, adjectives, adverbs, prepositions, others


NOUNS, VERBS, ADJECTIVES, ADVERBS, PREPOSITIONS, OTHERS = _build()
_KINDS = {noun.word: (noun.kind, "one") for noun in NOUNS.values()}
_KINDS |= {noun.plural: (noun.kind, "many") for noun in NOUNS.values()}
PUNCTUATION = (",", ".")


def _names() -> dict[str, tuple[str, ...]]:
    """Readable invented names; the topic cannot be read off the letters of an unknown name, it has to be known."""
    starts = "Ar Bel Cor Dal El Fen Gal Hel Il Jor Kal Lor Mar Nel Or Per Quil Ros Sel Tal Ul Vel Wil Yor Zan"
    ends = "ala ane ata ela ena ia ina isa ola ona ora una yra ede oni emi"
    pool = [start + end for start, end in product(starts.split(), ends.split())]
    random.Random("names").shuffle(pool)
    n = NAMES_PER_TOPIC
    return {topic: tuple(sorted(pool[i * n : (i + 1) * n])) for i, topic in enumerate(TOPICS)}


NAMES = _names()
TOPIC_OF_NAME = {name: topic for topic, names in NAMES.items() for name in names}
