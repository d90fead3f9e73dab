"""How the target language writes a word: one target word for each source word, all that it needs fused into it.

==============  =====================================================================================================
source word     target word
==============  =====================================================================================================
noun            root + gender vowel + ``li`` if plural + an ending:
                ``k`` for the subject of a transitive verb; ``t`` for the object of a verb of the u-family;
                in a place ``t`` beside a verb of the u-family and ``d`` beside one of the i-family;
                after *of* and *with* ``g`` and the gender vowel of the noun that it belongs to
determiner      root + dialect letter + gender vowel + ``li``, as its noun
adjective       root + gender vowel + ``li``, as its noun
very            root + dialect letter + gender vowel of the noun that its adjective describes
verb            root + gender vowel and ``li`` of its subject + ``ru`` if its object is a person or an animal
adverb, had     root + dialect letter + the family vowel (i or u) of its verb
preposition     root + dialect letter + gender vowel of its noun
pronoun         ``y`` + gender vowel of the noun it stands for + ``li`` + ending, as a noun
that            ``k`` + dialect letter + gender vowel + ``li`` of the noun it stands for
because, when   root + dialect letter + the family vowel of the verb of their own clause
and, but        root + dialect letter + the family vowel of the verb of the *other* clause, the one before
name            itself
==============  =====================================================================================================

Topics, dialect letters and accents are those of the first organism (``headtools.organism.translation``). A word is made
of pieces, and each piece names its *phenomena*: what has to be known from elsewhere in the sentence to write it
(``PHENOMENA``). So the phenomena of a word come from the code that writes it.
"""

from collections.abc import Iterator

from headtools.organism.translation import (
    AGENT,
    ANIMATE_OBJECT,
    OBLIQUE,
    PLURAL,
    UNTOUCHED,
    Piece,
    agreement,
    stem_of,
    written,
)
from headtools.organism.translation import PHENOMENA as FIRST_PHENOMENA
from headtools.organism.tree_nodes import Node

__all__ = ["AGENT", "ANIMATE_OBJECT", "OBLIQUE", "OWNED", "PHENOMENA", "PLACE", "PLURAL", "UNTOUCHED", "write"]

PLACE, OWNED = "d", "g"

PHENOMENA = FIRST_PHENOMENA | {
    "noun": "gender, and number, of the noun that it or its adjective describes, or that it stands before",
    "role": "whether it is a subject, an object, a place or belongs to another noun",
    "owner": "gender of the noun that it belongs to by `of` or `with`",
    "joined verb": "the family of the verb before `and` or `but`",
}


def case(node: Node) -> Piece:
    """Ending of a noun or pronoun, from its relation and from the word that it depends on."""
    role = () if node.word in ("she", "they", "her", "them") else ("role",)  # of pronouns, only `it` is either
    if node.relation == "nmod":
        return OWNED + node.head.gender, (*role, "owner")
    if node.relation == "nsubj":
        return AGENT if node.head.object else "", (*role, "verb object")
    other = PLACE if node.relation == "obl" else ""
    return OBLIQUE if node.head.lexeme.family == "u" else other, (*role, "verb family")


def pieces(node: Node, topic: str | None) -> Iterator[Piece]:
    """The pieces of a target word before its neighbours are heard, each with its phenomena."""
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
    elif node.word == "very":
        yield node.head.head.gender, ("noun",)
    elif node.upos == "CCONJ":
        yield node.head.head.lexeme.family, ("joined verb",)
    else:  # adverbs, had, because, when
        yield node.head.lexeme.family, ("verb family",)


def write(node: Node, source: list[Node], topic: str | None) -> tuple[str, tuple[str, ...]]:
    """Target word of a node of a sentence, and its phenomena in the order of ``PHENOMENA``."""
    return written(node, source, pieces(node, topic), PHENOMENA)
