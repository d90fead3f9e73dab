"""What the live page says: roles and phenomena in plain words, and the words of both languages with their features."""

from __future__ import annotations

from typing import Any

from headtools.organism.translation import PHENOMENA
from headtools.organism.vocabulary import SPECIAL, vocabulary

__all__ = ["PHENOMENA", "language", "role"]

# Which phenomena may ask for a category of the vocabulary's features, and its name where none is known to.
NEEDS = {
    "gender": ["noun", "subject", "antecedent"],
    "number": ["noun", "subject", "antecedent"],
    "case": ["role", "verb object", "verb family", "owner"],
    "owner": ["owner"],
    "family": ["verb family", "joined verb"],
    "object": ["object", "antecedent"],
    "topic": ["topic"],
    "sense": ["topic"],
    "left": ["left accent"],
    "right": ["right accent"],
}
PLAINLY = {"sense": "topic", "left": "left accent", "right": "right accent", "family": "verb family"}
LABELS = {
    "number li": "plural",
    "number ": "",
    "case ": "",
    "case k": "subject of a verb with an object",
    "case t": "oblique",
    "object ru": "object is a person or an animal",
    "object ": "",
    "topic None": "",
    "left True": "accent to the left",
    "left False": "",
    "right True": "accent to the right",
    "right False": "",
}
SENSES = "sense "  # a feature that names its word as well, "sense sea of bright"; the topic is told beside it

# Relation: the words that depend by it, the words that they depend on, and what these call them.
RELATIONS = {
    "det": ("Determiners", "noun", "Nouns", "determiner"),
    "amod": ("Adjectives", "noun", "Nouns", "adjective"),
    "case": ("Prepositions", "noun", "Nouns", "preposition"),
    "aux": ("Auxiliaries", "verb", "Verbs", "auxiliary"),
    "advmod": ("Adverbs", "verb", "Verbs", "adverb"),
    "nsubj": ("Subjects", "verb", "Verbs", "subject"),
    "obj": ("Objects", "verb", "Verbs", "object"),
    "obl": ("Places", "verb", "Verbs", "place"),
    "nmod": ("Nouns after of and with", "noun", "Nouns", "of or with phrase"),
    "acl": ("Verbs of relative clauses", "noun", "Nouns", "relative clause"),
    "advcl": ("Verbs of side clauses", "main verb", "Main verbs", "side clause"),
    "conj": ("Second verbs", "first verb", "First verbs", "second verb"),
    "cc": ("And and but", "second verb", "Second verbs", "and or but"),
    "mark": ("Because and when", "verb", "Verbs", "because or when"),
    "advmod:emph": ("Degree adverbs", "adjective", "Adjectives", "degree adverb"),
}
ROLES = {
    "offset -1": ("Each word attends to its left neighbour", "left neighbour"),
    "offset +1": ("Each word attends to its right neighbour", "right neighbour"),
    "offset -2": ("Each word attends to the second word to its left", "two to the left"),
    "offset +2": ("Each word attends to the second word to its right", "two to the right"),
    "coreference": ("Pronouns attend to the noun they stand for", "pronoun → its noun"),
    "name": ("Every word attends to the name", "the name"),
    "topic": ("Words with several senses attend to the name, which gives the topic", "topic → the name"),
    "itself": ("Each word attends to itself", "itself"),
    "before": ("Each word attends to the one written before it", "word before"),
    "next source": ("Attends to the source word that is translated next", "next source word"),
    "last source": ("Attends to the source word that was translated last", "last source word"),
    "rests on the end": ("Rests on the end of the sentence", "rests on the end"),
    "rests on the start": ("Rests on the start mark", "rests on the start"),
    "even": ("Spreads its attention evenly", "spreads evenly"),
}
QUIET = ("rests on the end", "rests on the start", "even")  # roles of heads that fetch nothing in particular


def role(name: str) -> dict[str, Any]:
    """Return a role in words: a sentence, a label, and whether it is that of a head which fetches something.

    >>> role("nsubj down")["text"], role("det up")["label"]
    ('Verbs attend to their subject', 'determiner → its noun')
    """
    if name in ROLES:
        text, label = ROLES[name]
        return {"text": text, "label": label, "quiet": name in QUIET}
    relation, _, direction = name.partition(" ")
    below, above, many_above, one_below = RELATIONS.get(relation, (f"Words of {relation}", "head", "Heads", relation))
    reader, read = (below, above) if direction == "up" else (many_above, one_below)
    short = {"up": (one_below, above), "down": (above, one_below)}.get(direction, (reader, read))
    return {"text": f"{reader} attend to their {read}", "label": f"{short[0]} → its {short[1]}", "quiet": False}


def language() -> dict[str, Any]:
    """Return the words of both languages: lines "word lexeme side feature ...", with features as numbers of a list."""
    features: dict[str, int] = {}
    lines = []
    for word, own in vocabulary().items():
        lexeme = next((f.removeprefix("word ") for f in own if f.startswith("word ")), word).replace(" ", "_")
        side = "special" if word in SPECIAL else own[0]
        needed = [f for f in own if f.partition(" ")[0] in NEEDS and side in ("target", "name")]
        numbers = [str(features.setdefault(f, len(features))) for f in needed]
        lines.append(" ".join([word, lexeme, side, *numbers]))
    labels = LABELS | {feature: "" for feature in features if feature.startswith(SENSES)}
    return {"words": "\n".join(lines), "features": list(features), "labels": labels, "needs": NEEDS, "plainly": PLAINLY}
