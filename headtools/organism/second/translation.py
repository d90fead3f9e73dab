"""How the target language writes a word: as the first organism's (``headtools.organism.translation``), except for

==============  =====================================================================================================
source word     target word
==============  =====================================================================================================
noun, pronoun   stem, gender and number as there + an ending:
                ``k`` for the subject of a transitive verb; ``t`` for the object of a verb of the u-family;
                in a place ``t`` beside a verb of the u-family and ``d`` beside one of the i-family;
                after *of* and *with* ``g`` and the gender vowel of the noun that it belongs to
very            root + dialect letter + gender vowel of the noun of its adjective
because, when   root + dialect letter + the family vowel of the verb of their own clause
and, but        root + dialect letter + the family vowel of the verb of the *other* clause, the one before
==============  =====================================================================================================
"""

from headtools.organism.translation import (
    AGENT,
    ANIMATE_OBJECT,
    OBLIQUE,
    PLURAL,
    UNTOUCHED,
    Piece,
    pieces,
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


def small_word(node: Node) -> Piece:
    """End of an adverb, auxiliary or connective."""
    if node.word == "very":
        return node.head.head.gender, ("noun",)
    if node.upos == "CCONJ":
        return node.head.head.lexeme.family, ("joined verb",)
    return node.head.lexeme.family, ("verb family",)  # adverbs, had, because, when


def write(node: Node, source: list[Node], topic: str | None) -> tuple[str, tuple[str, ...]]:
    """Target word of a node of a sentence, and its phenomena in the order of ``PHENOMENA``."""
    return written(node, source, pieces(node, topic, case, small_word), PHENOMENA)
