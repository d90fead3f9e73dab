"""How the target language writes a word: one target word for each source word, all that it needs fused into it.

==============  =====================================================================================================
source word     target word
==============  =====================================================================================================
noun            root + gender vowel + ``li`` if plural + case: ``k`` for the subject of a transitive verb, ``t`` after a
                preposition and for the object of a verb of the u-family
determiner      root + dialect letter + gender vowel + ``li``, as its noun
adjective       root + gender vowel + ``li``, as its noun
verb            root + gender vowel and ``li`` of its subject + ``ru`` if its object is a person or an animal
adverb, had     root + dialect letter + the family vowel (i or u) of its verb
preposition     root + dialect letter + gender vowel of its noun
pronoun         ``y`` + gender vowel of the noun it stands for + ``li`` + case, as a noun
that            ``k`` + dialect letter + gender vowel + ``li`` of the noun it stands for
very, and ...   root + dialect letter + ``o``
name            itself
==============  =====================================================================================================

The topic of a sentence is the topic of the one name in it, and only the name tells it: in tales of sea, hill and city
the dialect letter is ``y``, ``w`` or ``v``, and some verbs, adjectives, adverbs and prepositions (with no dialect
letter) have another root altogether, one per topic. Without a name there is no dialect letter.

Then the neighbours in the *source* sentence are heard: ``s'`` is put before the word if the source word to the left is
accented, ``'n`` behind it if the one to the right is. Names, commas and full stops stay as they are.

A word is made of pieces, and each piece names its *phenomena*: what has to be known from elsewhere in the sentence to
write it (``PHENOMENA``). So the phenomena of a word come from the code that writes it.
"""

from collections.abc import Callable, Iterable, Iterator

from headtools.organism.lexicon import DIALECT, SENSES, Lexeme
from headtools.organism.tree_nodes import Node

PLURAL, AGENT, OBLIQUE, ANIMATE_OBJECT = "li", "k", "t", "ru"
LEFT, RIGHT = "s'", "'n"
SMALL_WORDS = ("DET", "ADP", "ADV", "AUX", "SCONJ", "CCONJ")
UNTOUCHED = ("PROPN", "PUNCT")

PHENOMENA = {
    "topic": "which topic the name of the sentence has, or that there is no name",
    "noun": "gender, and number, of the noun that it describes or stands before",
    "subject": "gender and number of its subject",
    "object": "whether its object is a person or an animal",
    "antecedent": "which noun stands behind a pronoun or `that`: the word itself, its subject or its object",
    "role": "whether it is a subject, an object or stands after a preposition",
    "verb family": "the family of its verb",
    "verb object": "whether its verb has an object",
    "left accent": "whether the word to its left is accented",
    "right accent": "whether the word to its right is accented",
}

Piece = tuple[str, tuple[str, ...]]


def speaks_dialect(lexeme: Lexeme) -> bool:
    """Whether the translation of a word carries the dialect letter."""
    return len(lexeme.roots) == 1 and (lexeme.upos in SMALL_WORDS or lexeme.word == "that")


def case(node: Node) -> Piece:
    """Case ending of a noun or pronoun, from its relation and its verb."""
    role = () if node.word in ("she", "they", "her", "them") else ("role",)  # of pronouns, only `it` is either
    if node.relation in ("obl", "nmod"):
        return OBLIQUE, role
    if node.relation == "nsubj":
        return AGENT if node.head.object else "", (*role, "verb object")
    return OBLIQUE if node.head.lexeme.family == "u" else "", (*role, "verb family")


def stem_of(node: Node, topic: str | None) -> Piece:
    """Root of a word in the sense that the topic gives it, or root and dialect letter of a small word."""
    roots = node.lexeme.roots
    if len(roots) > 1:
        return roots[SENSES.index(topic)], ("topic",)
    if speaks_dialect(node.lexeme):
        return roots[0] + DIALECT[topic], ("topic",)
    return roots[0], ()


def agreement(node: Node, phenomena: tuple[str, ...]) -> Piece:
    """Gender vowel and number of a noun, name or pronoun."""
    return node.gender + PLURAL * node.plural, phenomena


def small_word(node: Node) -> Piece:
    """End of an adverb, auxiliary or connective."""
    if node.upos == "AUX" or (node.upos == "ADV" and node.head.upos == "VERB"):
        return node.head.lexeme.family, ("verb family",)
    return "o", ()  # very, and, but, because, when


def pieces(
    node: Node, topic: str | None, case: Callable[[Node], Piece], small_word: Callable[[Node], Piece]
) -> Iterator[Piece]:
    """The pieces of a target word before its neighbours are heard, each with its phenomena.

    Only the endings of nouns (``case``) and of small words differ between the organisms.
    """
    if node.upos in UNTOUCHED:
        yield node.word, ()
        return
    yield stem_of(node, topic)
    if node.word == "that":
        yield agreement(node, ("antecedent",))
    elif node.upos in ("NOUN", "PRON"):
        yield agreement(node, ("antecedent",) if node.antecedent else ())
        yield case(node)
    elif node.upos in ("DET", "ADJ"):
        yield agreement(node.head, ("noun",))
    elif node.upos == "VERB":
        yield agreement(node.subject, ("subject", "antecedent") if node.subject.antecedent else ("subject",))
        if node.object:
            suffix = ANIMATE_OBJECT if node.object.animate else ""
            yield suffix, ("object", "antecedent") if node.object.word in ("it", "them") else ("object",)
    elif node.upos == "ADP":
        yield node.head.gender, ("noun",)
    else:
        yield small_word(node)


def joined(word: str, left: bool, right: bool) -> str:
    """The word as it is written between an accented or plain left and right neighbour."""
    return LEFT * left + word + RIGHT * right


def written(
    node: Node, source: list[Node], parts: Iterator[Piece], order: Iterable[str]
) -> tuple[str, tuple[str, ...]]:
    """Target word made of these parts, between its neighbours, and its phenomena in this order."""
    texts, named = zip(*parts, strict=True)
    word, phenomena = "".join(texts), {name for names in named for name in names}
    if node.upos in UNTOUCHED:
        return word, ()
    i = node.position
    left = source[i - 1] if i > 0 else None
    right = source[i + 1] if i + 1 < len(source) else None
    for side, neighbour in (("left accent", left), ("right accent", right)):
        if neighbour and neighbour.upos not in UNTOUCHED:  # names and marks are never accented
            phenomena.add(side)
    word = joined(word, bool(left and left.accent), bool(right and right.accent))
    return word, tuple(name for name in order if name in phenomena)


def write(node: Node, source: list[Node], topic: str | None) -> tuple[str, tuple[str, ...]]:
    """Target word of a node of a sentence, and its phenomena in the order of ``PHENOMENA``."""
    return written(node, source, pieces(node, topic, case, small_word), PHENOMENA)
