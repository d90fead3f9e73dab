"""Draws source sentences with their trees: who heads whom, by which relation, and which noun a pronoun stands for.

What the first organism's grammar has not, keeps heads from getting by with an offset or a surface rule:

- A place or an adverb may open a clause: *near the queen the sailor slept*.
- Where a pronoun follows, most other nouns of the first clause fit it as well as its antecedent does.
- A noun may have both an *of* and a *with*, and *with* always belongs to the first noun of the phrase, whatever stands
  between: in *the queen of the castle with a hat* the queen has the hat.
"""

from dataclasses import dataclass

from headtools.organism import grammar as first
from headtools.organism.grammar import KIND_WEIGHTS, KINDS, pronoun_of
from headtools.organism.tree_nodes import Node, Phrase


@dataclass(frozen=True)
class Style(first.Style):
    """How long and deep sentences get: probabilities of each construction, and the greatest number of words."""

    two_clauses: float = 0.6
    of_phrase: float = 0.12
    of_phrase_on_subject: float = 0.2
    with_phrase: float = 0.08
    with_phrase_on_subject: float = 0.12
    with_after_of: float = 0.5  # of the phrases with *of*
    place: float = 0.4
    place_before_pronoun: float = 0.7  # in a clause whose nouns a pronoun may stand for
    front: float = 0.6
    adverb_front: float = 0.25
    adverb_before: float = 0.5
    adverb_inside: float = 0.7
    pronoun: float = 0.85
    object_meant: float = 0.3  # of pronouns
    rival: float = 0.8  # of the other nouns in such a clause: they fit the pronoun as well


USUAL = Style()
SHORT = Style(
    two_clauses=0.0,
    of_phrase=0.05,
    of_phrase_on_subject=0.1,
    with_phrase=0.05,
    with_phrase_on_subject=0.1,
    relative=0.0,
    relative_on_subject=0.05,
    longest=10,
)
HARD = Style(
    two_clauses=0.85,
    of_phrase=0.2,
    of_phrase_on_subject=0.28,
    with_phrase=0.15,
    with_phrase_on_subject=0.2,
    relative=0.25,
    relative_on_subject=0.35,
    second_adjective=0.3,
    depth=2,
    shortest=20,
    longest=44,
)

_KIND_WEIGHTS = KIND_WEIGHTS | {"nmod": KIND_WEIGHTS["obl"]}
# Of nouns that fit the same pronoun, the kind must not tell which is meant: the same weights in every role.
_FITTING = {"she": ("person",), "it": ("animal", "thing", "place"), "they": KINDS}


class SentenceSampler(first.SentenceSampler):
    """Draws the sentences of one style from one stream of chance."""

    relation_of_very = "advmod:emph"

    def _complete_sentence(self) -> Phrase:
        """One or two clauses. Of two, the second's pronoun is drawn first, so that rivals in the first can fit it."""
        two = self.rng.random() < self.style.two_clauses
        self.form = self.rng.choice(tuple(_FITTING)) if two else ""
        self.meant = "obj" if self.rng.random() < self.style.object_meant else "nsubj"
        return self._closed(self._clause(), two)

    def _clause(self, after: Node | None = None) -> Phrase:
        if after or not self.form:
            return super()._clause(after)
        object_ = None  # a clause whose nouns a pronoun may stand for
        if self.meant == "nsubj":
            subject = self._noun_phrase("nsubj", self.style.depth, form=self.form)
        else:
            subject = self._noun_phrase("nsubj", self.style.depth, not_form=self.form)
            object_ = self._noun_phrase("obj", self.style.depth, form=self.form)
        return self._predicate(subject, object_, self.style.depth, self.style.place_before_pronoun)

    def _antecedent(self, nouns: list[Node]) -> Node:
        return next((noun for noun in nouns if noun.relation == self.meant), nouns[0])

    def _noun_phrase(
        self, relation: str, depth: int, preposition: str = "", form: str = "", not_form: str = ""
    ) -> Phrase:
        """A noun and what belongs to it. ``form``: the pronoun that it must have; ``not_form``: that it must not."""
        rng, style = self.rng, self.style
        if self.form and not form and not not_form and rng.random() < style.rival:
            form = self.form
        if self.names and rng.random() < 0.3 and form in ("", "she") and not_form != "she":
            return self._name(preposition)
        while True:
            kind = rng.choice(_FITTING[form]) if form else rng.choices(KINDS, cum_weights=_KIND_WEIGHTS[relation])[0]
            noun = self._noun(kind, plural=form == "they" if form else None)
            if not not_form or pronoun_of(noun) != not_form:
                break
        phrase = self._described(noun, preposition)
        if depth <= 0:
            return phrase
        on_subject, chance = relation == "nsubj", rng.random()
        if chance < (style.relative_on_subject if on_subject else style.relative):
            return phrase.followed_by(self._relative(noun, depth))
        of = rng.random() < (style.of_phrase_on_subject if on_subject else style.of_phrase)
        # *with* belongs to the first noun of a phrase: a noun after *of* has none of its own.
        with_chance = style.with_phrase_on_subject if on_subject else style.with_phrase
        with_ = rng.random() < (style.with_after_of if of else with_chance)
        for preposition in ("of",) * of + ("with",) * (with_ and relation != "nmod"):
            if not phrase.open_end:
                inner = self._noun_phrase("nmod", depth - 1, preposition)
                inner.head.under(noun, "nmod")
                phrase = phrase.followed_by(inner)
        return phrase
