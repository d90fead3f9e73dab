"""The parts of a sentence while it is drawn: words as nodes of a tree, and phrases of them."""

from dataclasses import dataclass, field

from headtools.organism.lexicon import NAME_GENDER, Lexeme


@dataclass(eq=False, slots=True)
class Node:
    """One word of a sentence before it is written down."""

    word: str
    upos: str
    lexeme: Lexeme | None = None
    relation: str = ""
    head: "Node | None" = None
    plural: bool = False
    antecedent: "Node | None" = None  # pronouns and `that`
    subject: "Node | None" = None  # verbs
    object: "Node | None" = None
    accent: bool = False
    position: int = 0

    @property
    def referent(self) -> "Node":
        """The noun that a pronoun stands for; a noun itself."""
        return self.antecedent.referent if self.antecedent else self

    @property
    def gender(self) -> str:
        """Target gender of the noun or name this node is or stands for."""
        noun = self.referent
        return noun.lexeme.gender if noun.lexeme else NAME_GENDER

    @property
    def person(self) -> bool:
        """Whether it stands for a human being (names do)."""
        noun = self.referent
        return noun.lexeme is None or noun.lexeme.kind == "person"

    @property
    def animate(self) -> bool:
        """Whether it stands for a person or an animal."""
        noun = self.referent
        return noun.lexeme is None or noun.lexeme.animate

    def under(self, head: "Node", relation: str) -> "Node":
        """Attach this node to its head."""
        self.head, self.relation = head, relation
        return self


@dataclass(slots=True)
class Phrase:
    """A phrase: words in source order, words in target order, head; ``open_end`` if a relative clause ends it."""

    source: list[Node] = field(default_factory=list)
    target: list[Node] = field(default_factory=list)
    head: Node | None = None
    open_end: bool = False

    def followed_by(self, other: "Phrase") -> "Phrase":
        """Put another phrase behind this one, in both orders."""
        return Phrase(self.source + other.source, self.target + other.target, self.head, other.open_end)
