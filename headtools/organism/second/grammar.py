"""Draws source sentences with their trees: who heads whom, by which relation, and which noun a pronoun stands for.

What the first organism's grammar has not, keeps heads from getting by with an offset or a surface rule:

- A place or an adverb may open a clause: *near the queen the sailor slept*.
- Where a pronoun follows, most other nouns of the first clause fit it as well as its antecedent does.
- A noun may have both an *of* and a *with*, and *with* always belongs to the first noun of the phrase, whatever stands
  between: in *the queen of the castle with a hat* the queen has the hat.
"""

import random
from dataclasses import dataclass
from itertools import accumulate

from headtools.organism.lexicon import (
    ADJECTIVES,
    ADVERBS,
    NAMES,
    NOUNS,
    OF_VERBS,
    OTHERS,
    PREPOSITIONS,
    TOPICS,
    VERBS,
    Lexeme,
)
from headtools.organism.tree_nodes import Node, Phrase


@dataclass(frozen=True)
class Style:
    """How long and deep sentences get: probabilities of each construction, and the greatest number of words."""

    two_clauses: float = 0.6
    adverb: float = 0.45
    adjective: float = 0.4
    second_adjective: float = 0.1
    of_phrase: float = 0.12
    of_phrase_on_subject: float = 0.2
    with_phrase: float = 0.08
    with_phrase_on_subject: float = 0.12
    with_after_of: float = 0.5  # of the phrases with *of*
    relative: float = 0.1
    relative_on_subject: float = 0.2
    had: float = 0.3
    place: float = 0.4
    place_before_pronoun: float = 0.7  # in a clause whose nouns a pronoun may stand for
    front: float = 0.6  # of places and adverbs, before the subject
    pronoun: float = 0.85
    object_meant: float = 0.3  # of pronouns
    rival: float = 0.8  # of the other nouns in such a clause: they fit the pronoun as well
    name: float = 0.88
    accent: float = 0.4
    depth: int = 1
    shortest: int = 3
    longest: int = 26


USUAL = Style()
SHORT = Style(
    two_clauses=0.0, of_phrase=0.05, of_phrase_on_subject=0.1, with_phrase=0.05, with_phrase_on_subject=0.1,
    relative=0.0, relative_on_subject=0.05, longest=10,
)  # fmt: skip
HARD = Style(
    two_clauses=0.85, of_phrase=0.2, of_phrase_on_subject=0.28, with_phrase=0.15, with_phrase_on_subject=0.2,
    relative=0.25, relative_on_subject=0.35, second_adjective=0.3, depth=2, shortest=20, longest=44,
)  # fmt: skip


def _cumulative(words: list[Lexeme]) -> tuple[list[Lexeme], list[float]]:
    """Zipf-like weights: the word of rank r is drawn in proportion to (r + 5) ** -0.7."""
    order = list(words)
    random.Random("frequency").shuffle(order)
    return order, list(accumulate((rank + 5) ** -0.7 for rank in range(1, len(order) + 1)))


_BY_KIND = {k: _cumulative([n for n in NOUNS.values() if n.kind == k]) for k in ("person", "animal", "thing", "place")}
_VERBS = {k: _cumulative([v for v in VERBS.values() if v.kind == k]) for k in ("transitive", "intransitive")}
_ADJECTIVES, _ADVERBS = _cumulative(list(ADJECTIVES.values())), _cumulative(list(ADVERBS.values()))
_KINDS = ("person", "animal", "thing", "place")
_AFTER_PREPOSITION = (0.1, 0.2, 0.5, 1.0)
_KIND_WEIGHTS = {
    "nsubj": (0.4, 0.8, 0.95, 1.0), "obj": (0.25, 0.5, 0.9, 1.0),
    "obl": _AFTER_PREPOSITION, "nmod": _AFTER_PREPOSITION,
}  # fmt: skip
# Of nouns that fit the same pronoun, the kind must not tell which is meant: the same weights in every role.
_FITTING = {"she": ("person",), "it": ("animal", "thing", "place"), "they": _KINDS}
_SINGULAR, _PLURAL = ("the", "the", "a", "a", "this", "my"), ("the", "the", "these", "some", "my", "", "")


class SentenceSampler:
    """Draws the sentences of one style from one stream of chance."""

    def __init__(self, rng: random.Random, style: Style = USUAL) -> None:
        self.rng, self.style = rng, style

    def _pick(self, table: tuple[list[Lexeme], list[float]]) -> Lexeme:
        return self.rng.choices(table[0], cum_weights=table[1])[0]

    def sentence(self) -> tuple[list[Node], list[Node], str | None]:
        """One sentence: its nodes in source order, the same nodes in target order, and its topic."""
        while True:
            topic = self.rng.choice(TOPICS) if self.rng.random() < self.style.name else None
            self.names = NAMES[topic] if topic else ()
            complete = self._complete_sentence()
            named = any(node.upos == "PROPN" for node in complete.source)
            if named == bool(topic) and self.style.shortest <= len(complete.source) <= self.style.longest:
                break
        for i, node in enumerate(complete.source):
            node.position = i
            node.accent = node.upos not in ("PROPN", "PUNCT") and self.rng.random() < self.style.accent
        return complete.source, complete.target, topic

    def _complete_sentence(self) -> Phrase:
        """One or two clauses. Of two, the second's pronoun is drawn first, so that rivals in the first can fit it."""
        two = self.rng.random() < self.style.two_clauses
        self.form = self.rng.choice(tuple(_FITTING)) if two else ""
        self.meant = "obj" if self.rng.random() < self.style.object_meant else "nsubj"
        first = self._clause()
        stop = Node(".", "PUNCT")
        if not two:
            first.head.relation = "root"
            stop.under(first.head, "punct")
            return Phrase([*first.source, stop], [*first.target, stop], first.head)
        second = self._clause(after=first.head)
        kind = self.rng.random()
        if kind < 0.35:  # X and Y: the same order in both languages
            main, word = first.head, self._other(self.rng.choice(("and", "but"))).under(second.head, "cc")
            second.head.under(main, "conj")
            source, target = [*first.source, word, *second.source], [*first.target, word, *second.target]
        else:  # the target language always tells the reason first
            word = self._other(self.rng.choice(("because", "when")))
            if kind < 0.65:  # because X , Y
                main, side = second.head, first.head
                comma = Node(",", "PUNCT").under(side, "punct")
                source = [word, *first.source, comma, *second.source]
                target = [word, *first.target, comma, *second.target]
            else:  # Y because X: a pronoun in X is translated before its noun
                main, side = first.head, second.head
                source, target = [*first.source, word, *second.source], [word, *second.target, *first.target]
            word.under(side, "mark")
            side.under(main, "advcl")
        main.relation = "root"
        stop.under(main, "punct")
        return Phrase([*source, stop], [*target, stop], main)

    def _other(self, word: str) -> Node:
        return Node(word, OTHERS[word].upos, OTHERS[word])

    def _clause(self, after: Node | None = None) -> Phrase:
        pronouns = self._possible_pronouns(after) if after and self.rng.random() < self.style.pronoun else []
        subject = object_ = None
        if pronouns:
            antecedent = next((n for n in pronouns if n.relation == self.meant), pronouns[0])
            if self.rng.random() < 0.7:
                subject = self._pronoun(antecedent, "nsubj")
            else:
                object_ = self._pronoun(antecedent, "obj")
        if self.form and not after:  # a clause whose nouns a pronoun may stand for
            if self.meant == "nsubj":
                subject = self._noun_phrase("nsubj", self.style.depth, form=self.form)
            else:
                subject = self._noun_phrase("nsubj", self.style.depth, not_form=self.form)
                object_ = self._noun_phrase("obj", self.style.depth, form=self.form)
            return self._predicate(subject, object_, self.style.depth, self.style.place_before_pronoun)
        subject = subject or self._noun_phrase("nsubj", self.style.depth)
        return self._predicate(subject, object_, self.style.depth, self.style.place)

    def _possible_pronouns(self, verb: Node) -> list[Node]:
        """A pronoun means the subject of the clause before if that fits, else its object."""
        candidates = [n for n in (verb.subject, verb.object) if n]
        if len(candidates) == 2 and _pronoun_of(candidates[0]) == _pronoun_of(candidates[1]):
            return candidates[:1]
        return candidates

    def _pronoun(self, antecedent: Node, relation: str) -> Phrase:
        word = _pronoun_of(antecedent)
        if relation == "obj":
            word = {"she": "her", "they": "them"}.get(word, word)
        node = Node(word, "PRON", OTHERS[word], relation, plural=antecedent.plural, antecedent=antecedent)
        return Phrase([node], [node], node)

    def _predicate(self, subject: Phrase, object_: Phrase | None, depth: int, place_chance: float) -> Phrase:
        """Subject, verb, object, place and adverb, in both orders."""
        rng, style = self.rng, self.style
        kind = "transitive" if object_ or rng.random() < 0.68 else "intransitive"
        verb = Node("", "VERB", self._pick(_VERBS[kind]))
        verb.word, verb.subject = verb.lexeme.word, subject.head.under(verb, "nsubj")
        if kind == "transitive":
            object_ = object_ or self._noun_phrase("obj", depth)
            verb.object = object_.head.under(verb, "obj")
        object_ = object_ or Phrase()
        place = Phrase()
        # What opens a clause must end where the subject visibly begins.
        may_front = subject.source[0].upos in ("DET", "PRON", "PROPN") and subject.head.word != "that"
        front = []
        if not object_.open_end and rng.random() < place_chance * (1 if verb.object else 1.5):
            place = self._noun_phrase("obl", depth - 1, rng.choice(OF_VERBS))
            place.head.under(verb, "obl")
        if place.source and may_front and rng.random() < style.front:
            front = place.source
        had = [self._other("had").under(verb, "aux")] if rng.random() < style.had else []
        before, inside, last, adverb = [], [], [], []
        if rng.random() < style.adverb:
            lexeme = self._pick(_ADVERBS)
            adverb = [Node(lexeme.word, "ADV", lexeme).under(verb, "advmod")]
            where = rng.random()
            if where < 0.25 and may_front and not front:
                front = adverb
            elif where < 0.5 and (had or not subject.open_end):
                before = adverb  # but in *the cat that slept often jumped* the adverb belongs to the relative clause
            elif where < 0.7 or object_.open_end or place.open_end:
                inside = adverb
            else:
                last = adverb
        behind = [] if front is place.source else place.source
        source = [*front, *subject.source, *had, *before, verb, *inside, *object_.source, *behind, *last]
        target = [*adverb, *had, verb, *subject.target, *object_.target, *place.target]
        return Phrase(source, target, verb, (object_.open_end or place.open_end) and not last)

    def _noun_phrase(
        self, relation: str, depth: int, preposition: str = "", form: str = "", not_form: str = ""
    ) -> Phrase:
        """A noun and what belongs to it. ``form``: the pronoun that it must have; ``not_form``: that it must not."""
        rng, style = self.rng, self.style
        if self.form and not form and not not_form and rng.random() < style.rival:
            form = self.form
        case = Node(preposition, "ADP", PREPOSITIONS[preposition]) if preposition else None
        if self.names and rng.random() < 0.3 and form in ("", "she") and not_form != "she":
            noun, self.names = Node(rng.choice(self.names), "PROPN"), ()
            case = [case.under(noun, "case")] if case else []
            return Phrase([*case, noun], [*case, noun], noun)
        while True:
            kind = rng.choice(_FITTING[form]) if form else rng.choices(_KINDS, cum_weights=_KIND_WEIGHTS[relation])[0]
            lexeme = self._pick(_BY_KIND[kind])
            noun = Node(lexeme.word, "NOUN", lexeme, plural=form == "they" if form else rng.random() < 0.4)
            if not not_form or _pronoun_of(noun) != not_form:
                break
        noun.word = lexeme.plural if noun.plural else lexeme.word
        before = [case.under(noun, "case")] if case else []
        target = list(before)
        determiner = rng.choice(_PLURAL if noun.plural else _SINGULAR)
        if determiner:
            node = self._other(determiner).under(noun, "det")
            before.append(node)
            target.append(node)
        target.append(noun)
        after: list[Node] = []
        for _ in range(0 if rng.random() >= style.adjective else 2 if rng.random() < style.second_adjective else 1):
            lexeme = self._pick(_ADJECTIVES)
            words = [Node(lexeme.word, "ADJ", lexeme).under(noun, "amod")]
            if rng.random() < 0.25:
                words.insert(0, self._other("very").under(words[0], "advmod:emph"))
            (before if rng.random() < 0.5 else after).extend(words)
            target.extend(reversed(words))
        phrase = Phrase([*before, noun, *after], target, noun)
        if depth <= 0:
            return phrase
        on_subject, chance = relation == "nsubj", rng.random()
        if chance < (style.relative_on_subject if on_subject else style.relative):
            that = self._other("that")
            that.antecedent, that.plural = noun, noun.plural
            inner = self._predicate(Phrase([that], [that], that), None, depth - 1, style.place)
            inner.head.under(noun, "acl")
            inner.target = [that, *(node for node in inner.target if node is not that)]
            return Phrase(phrase.source + inner.source, phrase.target + inner.target, noun, open_end=True)
        of = rng.random() < (style.of_phrase_on_subject if on_subject else style.of_phrase)
        # *with* belongs to the first noun of a phrase: a noun after *of* has none of its own.
        with_chance = style.with_phrase_on_subject if on_subject else style.with_phrase
        with_ = rng.random() < (style.with_after_of if of else with_chance)
        for preposition in ("of",) * of + ("with",) * (with_ and relation != "nmod"):
            if not phrase.open_end:
                inner = self._noun_phrase("nmod", depth - 1, preposition)
                inner.head.under(noun, "nmod")
                phrase = Phrase(phrase.source + inner.source, phrase.target + inner.target, noun, inner.open_end)
        return phrase


def _pronoun_of(noun: Node) -> str:
    return "they" if noun.plural else "she" if noun.person else "it"
