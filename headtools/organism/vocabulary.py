"""Every word of both languages, in a fixed order, with the features it is made of.

The features are a training aid: while training, a word's vector is the sum of its own and its features' vectors, so
that ``mava`` and ``s'mavali'n`` share what they have in common. The finished model has one plain vector a word.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product

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
    for lexeme in chain(
        *(part.values() for part in (lx.NOUNS, lx.VERBS, lx.ADJECTIVES, lx.ADVERBS, lx.PREPOSITIONS, lx.OTHERS))
    ):
        forms = [(lexeme.word, "singular")] + [(lexeme.plural, "plural")] * (lexeme.upos == "NOUN")
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


def _choice(name: str, suffixes: Iterable[str]) -> list[Features]:
    """The values of one feature, each written as its suffix: ("gender a",) is written ``a``."""
    return [(f"{name} {suffix}",) for suffix in suffixes]


def _inflected(lexemes: Iterable[lx.Lexeme], *choices: list[Features]) -> Iterator[tuple[str, Features]]:
    """All stems of some words with every combination of endings."""
    for lexeme in lexemes:
        for stem, features in _stems(lexeme):
            for combination in product(*choices):
                endings = tuple(chain(*combination))
                yield stem + "".join(text.partition(" ")[2] for text in endings), (*features, *endings)


def _bare_target(endings: Endings) -> Iterator[tuple[str, Features]]:
    gender, number = _choice("gender", lx.GENDERS), _choice("number", ("", PLURAL))
    case = _choice("case", endings.cases)
    if endings.owned:
        case += [(f"case {endings.owned}", f"owner {owner}") for owner in lx.GENDERS]
    for noun in lx.NOUNS.values():
        yield from _inflected([noun], _choice("gender", noun.gender), number, case)
    for verb in lx.VERBS.values():
        suffixes = ("", ANIMATE_OBJECT) if verb.kind == "transitive" else ("",)
        yield from _inflected([verb], gender, number, _choice("object", suffixes))
    yield from _inflected(lx.ADJECTIVES.values(), gender, number)
    yield from _inflected(endings.by_family, _choice("family", "iu"))
    yield from _inflected(endings.by_gender, gender)
    yield from _inflected([lx.OTHERS[word] for word in ("the", "my", "that")], gender, number)
    yield from _inflected([lx.OTHERS[word] for word in ("a", "this")], gender, _choice("number", ("",)))
    yield from _inflected([lx.OTHERS[word] for word in ("these", "some")], gender, _choice("number", (PLURAL,)))
    pronoun = replace(lx.OTHERS["she"], word="pronoun")  # all pronouns have one stem
    yield from _inflected([pronoun], gender, number, _choice("case", ("", AGENT, OBLIQUE)))
    for stem, features in chain(*(_stems(lx.OTHERS[word]) for word in endings.unchanging)):
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


@cache
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
