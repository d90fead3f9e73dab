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
"""

from headtools.organism.lexicon import DIALECT, SENSES, Lexeme
from headtools.organism.nodes import Node

PLURAL, AGENT, OBLIQUE, ANIMATE_OBJECT = "li", "k", "t", "ru"
LEFT, RIGHT = "s'", "'n"
SMALL_WORDS = ("DET", "ADP", "ADV", "AUX", "SCONJ", "CCONJ")
UNTOUCHED = ("PROPN", "PUNCT")


def speaks_dialect(lexeme: Lexeme) -> bool:
    """Whether the translation of a word carries the dialect letter."""
    return len(lexeme.roots) == 1 and (lexeme.upos in SMALL_WORDS or lexeme.word == "that")


def case(node: Node) -> str:
    """Case ending of a noun or pronoun, from its relation and its verb."""
    if node.relation in ("obl", "nmod"):
        return OBLIQUE
    if node.relation == "nsubj":
        return AGENT if node.head.object else ""
    return OBLIQUE if node.head.lexeme.family == "u" else ""


def stem_of(node: Node, topic: str | None) -> str:
    """Root of a word in the sense that the topic gives it, or root and dialect letter of a small word."""
    roots = node.lexeme.roots
    if len(roots) > 1:
        return roots[SENSES.index(topic)]
    return roots[0] + (DIALECT[topic] if speaks_dialect(node.lexeme) else "")


def bare(node: Node, topic: str | None) -> str:
    """Target word of a node before its neighbours are heard."""
    if node.upos in UNTOUCHED:
        return node.word
    stem = stem_of(node, topic)
    if node.word == "that":
        return stem + node.gender + PLURAL * node.plural
    if node.upos in ("NOUN", "PRON"):
        return stem + node.gender + PLURAL * node.plural + case(node)
    if node.upos in ("DET", "ADJ"):
        return stem + node.head.gender + PLURAL * node.head.plural
    if node.upos == "VERB":
        heard = ANIMATE_OBJECT if node.object and node.object.animate else ""
        return stem + node.subject.gender + PLURAL * node.subject.plural + heard
    if node.upos == "ADP":
        return stem + node.head.gender
    if node.upos == "AUX" or (node.upos == "ADV" and node.head.upos == "VERB"):
        return stem + node.head.lexeme.family
    return stem + "o"  # very, and, but, because, when


def joined(word: str, left: bool, right: bool) -> str:
    """The word as it is written between an accented or plain left and right neighbour."""
    return LEFT * left + word + RIGHT * right


def write(node: Node, source: list[Node], topic: str | None) -> str:
    """Target word of a node of a sentence."""
    word = bare(node, topic)
    if node.upos in UNTOUCHED:
        return word
    i = node.position
    return joined(word, i > 0 and source[i - 1].accent, i + 1 < len(source) and source[i + 1].accent)
