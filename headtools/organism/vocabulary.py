"""Every word of both languages, in a fixed order, with the features it is made of.

The features are a training aid: while training, a word's vector is the sum of its own and its features' vectors, so
that ``mava`` and ``s'mavali'n`` share what they have in common. The finished model has one plain vector a word.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from headtools.organism import lexicon as lx
from headtools.organism.translation import AGENT, ANIMATE_OBJECT, OBLIQUE, PLURAL, joined, speaks_dialect

PAD, END, UNKNOWN = "<pad>", "</s>", "<unk>"
SPECIAL = (PAD, END, UNKNOWN)

Features = tuple[str, ...]


@dataclass(frozen=True)
class Endings:
    """Which endings the words of a target language take; in nothing else do the organisms' vocabularies differ.

    cases         case endings of nouns
    owned         ending of a noun that belongs to another one, before the other's gender; "" where there is none
    by_family     small words that end in the family of a verb
    by_gender     small words that end in the gender of a noun
    unchanging    small words that always end in o
    """

    cases: tuple[str, ...]
    by_family: tuple[lx.Lexeme, ...]
    by_gender: tuple[lx.Lexeme, ...]
    unchanging: tuple[str, ...] = ()
    owned: str = ""


_ENDINGS = Endings(
    cases=("", AGENT, OBLIQUE),
    by_family=(*lx.ADVERBS.values(), lx.OTHERS["had"]),
    by_gender=tuple(lx.PREPOSITIONS.values()),
    unchanging=("very", *lx.CONNECTIVES),
)


def _source() -> Iterator[tuple[str, Features]]:
    for lexeme in (
        *lx.NOUNS.values(),
        *lx.VERBS.values(),
        *lx.ADJECTIVES.values(),
        *lx.ADVERBS.values(),
        *lx.PREPOSITIONS.values(),
        *lx.OTHERS.values(),
    ):
        forms = [(lexeme.word, "singular")]
        if lexeme.upos == "NOUN":
            forms.append((lexeme.plural, "plural"))
        for word, number in forms:
            features = ("source", f"source {lexeme.upos}", f"word {lexeme.word}", f"source {number}")
            yield word, features
            yield lx.accented(word), (*features, "accented")


def _stems(lexeme: lx.Lexeme) -> Iterator[tuple[str, Features]]:
    common = ("target", f"target {lexeme.upos}", f"word {lexeme.word}")
    if len(lexeme.roots) > 1:
        for topic, root in zip(lx.SENSES, lexeme.roots, strict=True):
            yield root, (*common, f"sense {topic} of {lexeme.word}", f"topic {topic}")
    elif speaks_dialect(lexeme):
        for topic, letter in lx.DIALECT.items():
            yield lexeme.roots[0] + letter, (*common, f"topic {topic}")
    else:
        yield lexeme.roots[0], common


def _agreeing(stem: str, features: Features, genders: str = lx.GENDERS) -> Iterator[tuple[str, Features]]:
    for gender, number in product(genders, ("", PLURAL)):
        yield stem + gender + number, (*features, f"gender {gender}", f"number {number}")


def _bare_target(endings: Endings) -> Iterator[tuple[str, Features]]:
    for noun in lx.NOUNS.values():
        for stem, features in _stems(noun):
            for word, more in _agreeing(stem, features, noun.gender):
                for case in endings.cases:
                    yield word + case, (*more, f"case {case}")
                for owner in lx.GENDERS if endings.owned else ():
                    yield word + endings.owned + owner, (*more, f"case {endings.owned}", f"owner {owner}")
    for verb in lx.VERBS.values():
        for stem, features in _stems(verb):
            for word, more in _agreeing(stem, features):
                for suffix in ("", ANIMATE_OBJECT) if verb.kind == "transitive" else ("",):
                    yield word + suffix, (*more, f"object {suffix}")
    for adjective in lx.ADJECTIVES.values():
        for stem, features in _stems(adjective):
            yield from _agreeing(stem, features)
    for lexeme in endings.by_family:
        for stem, features in _stems(lexeme):
            for family in "iu":
                yield stem + family, (*features, f"family {family}")
    for lexeme in endings.by_gender:
        for stem, features in _stems(lexeme):
            for gender in lx.GENDERS:
                yield stem + gender, (*features, f"gender {gender}")
    for word in ("the", "my", "that"):
        for stem, features in _stems(lx.OTHERS[word]):
            yield from _agreeing(stem, features)
    for word, number in (("a", ""), ("this", ""), ("these", PLURAL), ("some", PLURAL)):
        for stem, features in _stems(lx.OTHERS[word]):
            for gender in lx.GENDERS:
                yield stem + gender + number, (*features, f"gender {gender}", f"number {number}")
    features = ("target", "target PRON", "word pronoun")
    for word, more in _agreeing(lx.OTHERS["she"].roots[0], features):
        for case in ("", AGENT, OBLIQUE):
            yield word + case, (*more, f"case {case}")
    for word in endings.unchanging:
        for stem, features in _stems(lx.OTHERS[word]):
            yield stem + "o", features


def build(endings: Endings) -> dict[str, Features]:
    """Every token of a language with these endings, and its features, in the order of the token numbers.

    Raises ValueError if two words of the lexicon are written alike, which would make the language ambiguous.
    """
    words: dict[str, Features] = dict.fromkeys(SPECIAL, ())
    words |= dict.fromkeys(lx.PUNCTUATION, ("mark",))
    words |= {name: ("name", f"topic {topic}") for name, topic in lx.TOPIC_OF_NAME.items()}

    def add(word: str, features: Features) -> None:
        if word in words:
            raise ValueError(f"two words are written {word!r}: {words[word]} and {features}; change the lexicon")
        words[word] = features

    for word, features in _source():
        add(word, features)
    for word, features in _bare_target(endings):
        for left, right in product((False, True), repeat=2):
            sandhi = (f"left {left}", f"right {right}")
            add(joined(word, left, right), (*features, *sandhi))
    return words


@lru_cache(maxsize=1)
def vocabulary() -> dict[str, Features]:
    """Every token and its features, in the order of the token numbers.

    >>> list(vocabulary())[:3], len(vocabulary())
    (['<pad>', '</s>', '<unk>'], 5613)
    >>> vocabulary()["dóg"]
    ('source', 'source NOUN', 'word dog', 'source singular', 'accented')
    """
    return build(_ENDINGS)


_PLAIN_WORDS = {
    "number li": "plural",
    "case k": "subject of a transitive verb",
    "case t": "oblique",
    "case d": "place",
    "case g": "belongs to a noun",
    "object ru": "animate object",
    "left True": "accent to the left",
    "right True": "accent to the right",
    "singular": "",
    "plural": "plural",
}


def describe(word: str, words: Mapping[str, Features]) -> str:
    """What a word says, in plain words, from the features in a vocabulary. Raises ValueError for an unknown word."""
    if word not in words or word in SPECIAL:
        raise ValueError(f"no word {word!r} in the two languages; list(vocabulary()) shows them all")
    features = words[word]
    if features[0] not in ("source", "target"):
        return f"{word}: {', '.join(features)}"
    own = next(f.removeprefix("word ") for f in features if f.startswith("word "))
    named = [_PLAIN_WORDS.get(f.removeprefix("source "), f) for f in features[3:]]
    quiet = ("topic None", "number ", "case ", "object ", "left False", "right False", "")
    named = [s for s in named if s not in quiet and not s.startswith("sense ")]
    return f"{own}: {', '.join(named)}" if named else own


def gloss(word: str) -> str:
    """What a word of either language says, in plain words.

    Raises ValueError for a word that neither language has.

    >>> gloss("s'tikolik'n")
    'cat: gender o, plural, subject of a transitive verb, accent to the left, accent to the right'
    >>> gloss("lya"), gloss("boxes"), gloss("bóx")
    ('the: topic sea, gender a', 'box: plural', 'box: accented')
    """
    return describe(word, vocabulary())
