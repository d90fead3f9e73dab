"""The choices that a role score hangs on, each with its default: :class:`Conventions`, and those of two papers."""

from dataclasses import dataclass

LEVELS = ("word", "token")
EDGES = ("drop", "count")
WRITES = ("writes", "reads")


@dataclass(frozen=True)
class Conventions:
    """How looks and weights are counted. The defaults are Voita's et al. (2019), at the level of words.

    level                 'word': weights to the pieces of a word are summed, those from them averaged (Clark et al.
                          2019, section 4.1); 'token': every token for itself, a word being queried by its first token
                          and found at any of its tokens
    specials_as_keys      whether a look may land on a token that is no word (EOS token, [CLS], [SEP], start mark).
                          Weights, entropies and distances always count them, since they are part of the row
    specials_as_queries   whether the looks of such tokens count
    self_as_key           whether a look may land on the query itself; Clark's probe forbids it
    renormalise           whether the weights of the words, and so confidence, are divided by what the row leaves the
                          keys of a look, where specials are no keys (TransformerLens divides); what an even spread
                          scores is then counted among those keys too. Entropy and distance stay those of the row
    edges                 'drop': a query that cannot see its partner (no next word, or in a decoder a later word) is
                          not counted; 'count': it is a miss
    cross                 'writes': a target word asks from the position that writes it; 'reads': from the position
                          that reads it, one later
    span                  offsets from -span to span are scored
    common                a sentence counts for the rarest word only if this many words or more are more frequent.
                          Words of equal frequency are rarest together: a look at any of them is a hit, for the
                          baseline too. Where they are more than half of the sentence, it does not count
    shortest              words (or tokens) a sentence needs for content similarity and for a map class
    margin                how far above its baseline a relation, a mention or an alignment must be
    fewest                looks without which no role holds

    Padding is never a key and never a query; there is no choice.

    Raises ValueError for a value that is none of those named.

    >>> Conventions(level="word").self_as_key, CLARK.self_as_key
    (True, False)
    """

    level: str = "word"
    specials_as_keys: bool = False
    specials_as_queries: bool = False
    self_as_key: bool = True
    renormalise: bool = False
    edges: str = "drop"
    cross: str = "writes"
    span: int = 5
    common: int = 500
    shortest: int = 4
    margin: float = 0.1
    fewest: int = 50

    def __post_init__(self) -> None:
        for name, allowed in (("level", LEVELS), ("edges", EDGES), ("cross", WRITES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}; there is {' and '.join(map(repr, allowed))}")
        for name, least in (("span", 1), ("common", 0), ("shortest", 3), ("margin", 0), ("fewest", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}; it must be {least} or more")


VOITA = Conventions()
CLARK = Conventions(self_as_key=False)
