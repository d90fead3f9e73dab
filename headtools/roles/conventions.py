"""The choices that a role score depends on, each with its default: :class:`Conventions`, and those of two papers."""

from dataclasses import dataclass

GRANULARITIES = ("word", "token")
EDGES = ("drop", "count")
CROSS = ("writes", "reads")


@dataclass(frozen=True)
class Conventions:
    """How argmax attention and weights are counted. The defaults are those of Voita et al. (2019), for words.

    granularity           'word': weights to the pieces of a word are summed, those from them averaged (Clark et al.
                          2019, section 4.1); 'token': every token is counted by itself, and a relation goes from the
                          first token of a word to any token of the other
    specials_as_keys      whether the argmax is also taken over tokens that are not words (BOS and EOS tokens, [CLS],
                          [SEP]). Weights, entropies and distances always include them, since they are part of the row
    specials_as_queries   whether such tokens are counted as queries
    self_as_key           whether the argmax is also taken over the query itself; Clark's probe forbids it
    renormalise           whether the weights of the words, and so confidence, are divided by the sum of the row over
                          the keys of the argmax, where special tokens are no such keys (TransformerLens divides);
                          uniform attention is then counted over those keys too. Entropy and distance stay those of the
                          full row
    edges                 'drop': a query that cannot see its target (no next word, or in a decoder a later word) is
                          not counted; 'count': it is a miss
    cross                 'writes': a target word queries from the position that writes it; 'reads': from the position
                          that reads it, one later
    span                  offsets from -span to span are scored
    n_frequent            a sentence counts for the rarest word only if it has a word to which so many words or more
                          are more frequent. Words of equal frequency are rarest together: each of them is a hit, for
                          the baseline too. Where they are more than half of the sentence, it does not count
    min_length            words (or tokens) a sentence needs for content similarity and for a map class
    margin                how far above its baseline a relation, a mention or an alignment must be
    min_queries           queries without which no role holds

    Padding is never a key and never a query; there is no choice.

    Raises ValueError for a value that is not allowed.

    >>> Conventions(granularity="word").self_as_key, CLARK.self_as_key
    (True, False)
    """

    granularity: str = "word"
    specials_as_keys: bool = False
    specials_as_queries: bool = False
    self_as_key: bool = True
    renormalise: bool = False
    edges: str = "drop"
    cross: str = "writes"
    span: int = 5
    n_frequent: int = 500
    min_length: int = 4
    margin: float = 0.1
    min_queries: int = 50

    def __post_init__(self) -> None:
        for name, allowed in (("granularity", GRANULARITIES), ("edges", EDGES), ("cross", CROSS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"got {name}={getattr(self, name)!r}; expected {' or '.join(map(repr, allowed))}")
        for name, least in (("span", 1), ("n_frequent", 0), ("min_length", 3), ("margin", 0), ("min_queries", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"got {name}={getattr(self, name)}; expected {least} or more")


VOITA = Conventions()
CLARK = Conventions(self_as_key=False)
