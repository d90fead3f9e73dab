"""What the live page says: roles and phenomena in plain words, and the words of both languages with their features."""

from __future__ import annotations

from typing import Any

from headtools.organism.lexicon import GENDERS, SENSES
from headtools.organism.translation import AGENT, ANIMATE_OBJECT, LEFT, OBLIQUE, PLURAL, RIGHT
from headtools.organism.vocabulary import SPECIAL, vocabulary
from headtools.roles.sentence import Sentence

# What has to be known from elsewhere in the sentence, and how a word writes it.
RULES = {
    "topic": "the letter before the vowel of a small word, and the root of a word with several senses, say which topic "
    "the name of the sentence has, or that there is no name",
    "noun": f"the vowel is the gender, and {PLURAL} the plural, of its noun",
    "subject": f"the vowel is the gender, and {PLURAL} the plural, of its subject",
    "object": f"{ANIMATE_OBJECT} says that the object is a person or an animal",
    "antecedent": "a pronoun stands for a noun: gender, number and kind are those of the noun",
    "role": f"a subject can end in {AGENT}, an object in {OBLIQUE}; after a preposition a noun ends in {OBLIQUE}",
    "verb family": f"beside a verb of the u-family an object ends in {OBLIQUE} and an adverb in u; else not, and in i",
    "verb object": f"a subject ends in {AGENT} if its verb has an object",
    "left accent": f"{LEFT} in front says that the word to its left is accented",
    "right accent": f"{RIGHT} at the end says that the word to its right is accented",
}

# The roles of heads that fetch what a phenomenon needs.
READERS = {
    "topic": ["topic", "name"],
    "noun": ["det up", "amod up", "case up"],
    "subject": ["nsubj down"],
    "object": ["obj down"],
    "antecedent": ["coreference"],
    "role": ["nsubj up", "obj up", "case down"],
    "verb family": ["obj up", "advmod up", "aux up"],
    "verb object": ["obj down"],
    "left accent": ["offset -1"],
    "right accent": ["offset +1"],
}

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
# What headtools.gloss calls a feature; a feature without a name goes without saying.
LABELS = {
    **{f"gender {gender}": f"gender\u00a0{gender}" for gender in GENDERS},
    **{f"topic {topic}": topic for topic in SENSES if topic},
    "number li": "plural",
    "case k": "agent",
    "case t": "oblique",
    "family i": "i-verb",
    "family u": "u-verb",
    "object ru": "animate object",
    "left True": "accent before",
    "right True": "accent after",
}
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
    return {
        "words": "\n".join(lines),
        "features": list(features),
        "labels": LABELS,
        "needs": NEEDS,
        "plainly": PLAINLY,
        "accents": [LEFT, RIGHT],
    }


def sources(sentence: Sentence, word: int, phenomenon: str) -> list[int]:
    """Return the numbers of the words that tell a phenomenon of the translation of a word.

    >>> import headtools as ht
    >>> one = ht.corpus("organism", "test", 1)[0]
    >>> [one.words[n - 1] for n in (*sources(one, 3, "subject"), *sources(one, 11, "antecedent"))]
    ['Belena', 'Belena']
    """
    head = sentence.heads[word - 1]

    def below(relation: str, of: int) -> list[int]:
        return [i for i in sentence.dependents(of) if sentence.relations[i - 1] == relation]

    def antecedent(pronoun: int) -> list[int]:
        if sentence.coreference[pronoun - 1]:
            return [sentence.coreference[pronoun - 1]]
        verb = sentence.heads[pronoun - 1]  # of the relative clause that "that" opens
        return [sentence.heads[verb - 1]] if sentence.upos[pronoun - 1] == "PRON" else []

    if phenomenon == "topic":
        return [i for i, upos in enumerate(sentence.upos, 1) if upos == "PROPN"]
    if phenomenon in ("left accent", "right accent"):
        return [word - 1 if phenomenon == "left accent" else word + 1]
    if phenomenon in ("subject", "object"):
        return below("nsubj" if phenomenon == "subject" else "obj", word)
    if phenomenon == "antecedent":
        bearers = [word] if sentence.upos[word - 1] == "PRON" else below("nsubj", word) + below("obj", word)
        return [noun for bearer in bearers for noun in antecedent(bearer)]
    if phenomenon == "verb object":
        return below("obj", head) or [head]
    return below("case", word) or [head]  # noun, role, verb family
