"""Draws source sentences with their trees: who heads whom, by which relation, and which noun a pronoun stands for.

A sentence is built from nodes, one per word. Each method that draws a phrase returns its words in source order, the
same words in target order, and its head. The target language (``translation.py``) then writes each node as one word.
"""

import random
from dataclasses import dataclass
from itertools import accumulate

from headtools.organism import lexicon as lx
from headtools.organism.tree_nodes import Node, Phrase


@dataclass(frozen=True)
class Style:
    """How long and deep sentences get: probabilities of each construction, and the greatest number of words."""

    two_clauses: float = 0.5
    adverb: float = 0.45
    adjective: float = 0.4
    second_adjective: float = 0.1
    of_phrase: float = 0.15
    of_phrase_on_subject: float = 0.25
    relative: float = 0.1
    relative_on_subject: float = 0.2
    had: float = 0.3
    place: float = 0.3
    front: float = 0.0  # of places, before the subject; where it is 0, adverbs do not stand there either
    adverb_front: float = 0.0  # of adverbs: where one stands, as cumulative probabilities
    adverb_before: float = 0.4
    adverb_inside: float = 0.75
    pronoun: float = 0.75
    name: float = 0.88
    accent: float = 0.4
    depth: int = 1
    shortest: int = 3
    longest: int = 26


USUAL = Style()
SHORT = Style(
    two_clauses=0.0, of_phrase=0.05, of_phrase_on_subject=0.1, relative=0.0, relative_on_subject=0.05, longest=10
)
HARD = Style(
    two_clauses=0.85,
    of_phrase=0.25,
    of_phrase_on_subject=0.35,
    relative=0.25,
    relative_on_subject=0.35,
    second_adjective=0.3,
    depth=2,
    shortest=20,
    longest=44,
)


def _cumulative(words: list[lx.Lexeme]) -> tuple[list[lx.Lexeme], list[float]]:
    """Zipf-like weights: the word of rank r is drawn in proportion to (r + 5) ** -0.7."""
    order = list(words)
    random.Random("frequency").shuffle(order)
    return order, list(accumulate((rank + 5) ** -0.7 for rank in range(1, len(order) + 1)))


KINDS = ("person", "animal", "thing", "place")
_BY_KIND = {k: _cumulative([n for n in lx.NOUNS.values() if n.kind == k]) for k in KINDS}
_VERBS = {k: _cumulative([v for v in lx.VERBS.values() if v.kind == k]) for k in ("transitive", "intransitive")}
_ADJECTIVES, _ADVERBS = _cumulative(list(lx.ADJECTIVES.values())), _cumulative(list(lx.ADVERBS.values()))
KIND_WEIGHTS = {"nsubj": (0.4, 0.8, 0.95, 1.0), "obj": (0.25, 0.5, 0.9, 1.0), "obl": (0.1, 0.2, 0.5, 1.0)}
_SINGULAR, _PLURAL = ("the", "the", "a", "a", "this", "my"), ("the", "the", "these", "some", "my", "", "")


class SentenceSampler:
    """Draws the sentences of one style from one stream of chance."""

    relation_of_very = "advmod"

    def __init__(self, rng: random.Random, style: Style) -> None:
        self.rng, self.style = rng, style

    def _pick(self, table: tuple[list[lx.Lexeme], list[float]]) -> lx.Lexeme:
        return self.rng.choices(table[0], cum_weights=table[1])[0]

    def sentence(self) -> tuple[list[Node], list[Node], str | None]:
        """One sentence: its nodes in source order, the same nodes in target order, and its topic."""
        while True:
            topic = self.rng.choice(lx.TOPICS) if self.rng.random() < self.style.name else None
            self.names = lx.NAMES[topic] if topic else ()
            complete = self._complete_sentence()
            named = any(node.upos == "PROPN" for node in complete.source)
            if named == bool(topic) and self.style.shortest <= len(complete.source) <= self.style.longest:
                break
        for i, node in enumerate(complete.source):
            node.position = i
            node.accent = node.upos not in ("PROPN", "PUNCT") and self.rng.random() < self.style.accent
        return complete.source, complete.target, topic

    def _complete_sentence(self) -> Phrase:
        first = self._clause()
        return self._closed(first, two=self.rng.random() < self.style.two_clauses)

    def _closed(self, first: Phrase, two: bool) -> Phrase:
        """A sentence of this clause, or of ``two``: it and another one."""
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
        return Node(word, lx.OTHERS[word].upos, lx.OTHERS[word])

    def _clause(self, after: Node | None = None) -> Phrase:
        pronouns = self._possible_pronouns(after) if after and self.rng.random() < self.style.pronoun else []
        subject = object_ = None
        if pronouns:
            antecedent = self._antecedent(pronouns)
            if self.rng.random() < 0.7:
                subject = self._pronoun(antecedent, "nsubj")
            else:
                object_ = self._pronoun(antecedent, "obj")
        subject = subject or self._noun_phrase("nsubj", self.style.depth)
        return self._predicate(subject, object_, self.style.depth)

    def _antecedent(self, nouns: list[Node]) -> Node:
        return self.rng.choice(nouns)

    def _possible_pronouns(self, verb: Node) -> list[Node]:
        """A pronoun means the subject of the clause before if that fits, else its object."""
        candidates = [n for n in (verb.subject, verb.object) if n]
        if len(candidates) == 2 and pronoun_of(candidates[0]) == pronoun_of(candidates[1]):
            return candidates[:1]
        return candidates

    def _pronoun(self, antecedent: Node, relation: str) -> Phrase:
        word = pronoun_of(antecedent)
        if relation == "obj":
            word = {"she": "her", "they": "them"}.get(word, word)
        node = Node(word, "PRON", lx.OTHERS[word], relation, plural=antecedent.plural, antecedent=antecedent)
        return Phrase([node], [node], node)

    def _verb(self, subject: Phrase, object_: Phrase | None, depth: int) -> tuple[Node, Phrase]:
        """A verb and its object, a phrase without words where it has none."""
        kind = "transitive" if object_ or self.rng.random() < 0.68 else "intransitive"
        verb = Node("", "VERB", self._pick(_VERBS[kind]))
        verb.word, verb.subject = verb.lexeme.word, subject.head.under(verb, "nsubj")
        if kind == "transitive":
            object_ = object_ or self._noun_phrase("obj", depth)
            verb.object = object_.head.under(verb, "obj")
        return verb, object_ or Phrase()

    def _adverb(self, verb: Node) -> Node:
        lexeme = self._pick(_ADVERBS)
        return Node(lexeme.word, "ADV", lexeme).under(verb, "advmod")

    def _predicate(self, subject: Phrase, object_: Phrase | None, depth: int, place_chance: float = 0) -> Phrase:
        """Subject, verb, object, place and adverb, in both orders; ``place_chance`` 0: as the style has it."""
        rng, style = self.rng, self.style
        verb, object_ = self._verb(subject, object_, depth)
        place, front = Phrase(), []
        # What opens a clause must end where the subject visibly begins.
        visible = subject.source[0].upos in ("DET", "PRON", "PROPN") and subject.head.word != "that"
        may_front = style.front > 0 and visible
        if not object_.open_end and rng.random() < (place_chance or style.place) * (1 if verb.object else 1.5):
            place = self._noun_phrase("obl", depth - 1, rng.choice(lx.OF_VERBS))
            place.head.under(verb, "obl")
        if place.source and may_front and rng.random() < style.front:
            front = place.source
        behind = [] if front else place.source
        had = [self._other("had").under(verb, "aux")] if rng.random() < style.had else []
        before, inside, last, adverb = [], [], [], []
        if rng.random() < style.adverb:
            adverb = [self._adverb(verb)]
            where = rng.random()
            if where < style.adverb_front and may_front and not front:
                front = adverb
            elif where < style.adverb_before and (had or not subject.open_end or not style.front):
                before = adverb  # but in *the cat that slept often jumped* the adverb belongs to the relative clause
            elif where < style.adverb_inside or object_.open_end or place.open_end:
                inside = adverb
            else:
                last = adverb
        source = [*front, *subject.source, *had, *before, verb, *inside, *object_.source, *behind, *last]
        target = [*adverb, *had, verb, *subject.target, *object_.target, *place.target]
        return Phrase(source, target, verb, (object_.open_end or place.open_end) and not last)

    def _noun_phrase(self, relation: str, depth: int, preposition: str = "") -> Phrase:
        rng, style = self.rng, self.style
        if self.names and rng.random() < 0.3:
            return self._name(preposition)
        kind = rng.choices(KINDS, cum_weights=KIND_WEIGHTS[relation])[0]
        noun = self._noun(kind)
        phrase = self._described(noun, preposition)
        on_subject = relation == "nsubj"
        chance = rng.random()
        of_phrase = style.of_phrase_on_subject if on_subject else style.of_phrase
        if depth > 0 and chance < of_phrase:
            inner = self._noun_phrase("obl", depth - 1, rng.choice(lx.OF_NOUNS))
            inner.head.under(noun, "nmod")
        elif depth > 0 and chance < of_phrase + (style.relative_on_subject if on_subject else style.relative):
            inner = self._relative(noun, depth)
        else:
            return phrase
        return phrase.followed_by(inner)

    def _noun(self, kind: str, plural: bool | None = None) -> Node:
        lexeme = self._pick(_BY_KIND[kind])
        plural = self.rng.random() < 0.4 if plural is None else plural
        return Node(lexeme.plural if plural else lexeme.word, "NOUN", lexeme, plural=plural)

    def _case(self, noun: Node, preposition: str) -> list[Node]:
        return [Node(preposition, "ADP", lx.PREPOSITIONS[preposition]).under(noun, "case")] if preposition else []

    def _name(self, preposition: str) -> Phrase:
        noun, self.names = Node(self.rng.choice(self.names), "PROPN"), ()
        words = [*self._case(noun, preposition), noun]
        return Phrase(words, list(words), noun)

    def _described(self, noun: Node, preposition: str) -> Phrase:
        """A noun with its preposition, determiner and adjectives."""
        rng, style = self.rng, self.style
        before = self._case(noun, preposition)
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
                words.insert(0, self._other("very").under(words[0], self.relation_of_very))
            (before if rng.random() < 0.5 else after).extend(words)
            target.extend(reversed(words))
        return Phrase([*before, noun, *after], target, noun)

    def _relative(self, noun: Node, depth: int) -> Phrase:
        that = self._other("that")
        that.antecedent, that.plural = noun, noun.plural
        inner = self._predicate(Phrase([that], [that], that), None, depth - 1)
        inner.head.under(noun, "acl")
        inner.target = [that, *(node for node in inner.target if node is not that)]
        inner.open_end = True
        return inner


def pronoun_of(noun: Node) -> str:
    """The pronoun that stands for a noun as a subject."""
    return "they" if noun.plural else "she" if noun.person else "it"
