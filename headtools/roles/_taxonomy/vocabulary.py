"""What is known of the words of a corpus, how frequent and how rare each is, and the tokenizer's special tokens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import log

from headtools.roles.sentence import Sentence

SPECIAL_TOKENS = ("bos", "eos", "cls", "sep")


@dataclass(frozen=True)
class Vocabulary:
    """What is known of the words of a corpus, and the ids of the special tokens.

    rank             for each word, how many words are more frequent: words of equal frequency have equal ranks
    rarity           for each word, minus the logarithm of its fraction of all words counted, in nats
    unknown_rarity   rarity of a word that was not counted
    special_tokens   {'eos': token id, ...}
    other_case       {word.casefold(): word}: a word that was counted in another case only is taken for that one
    """

    rank: Mapping[str, int]
    rarity: Mapping[str, float]
    unknown_rarity: float
    special_tokens: Mapping[str, int]
    other_case: Mapping[str, str] = field(default_factory=dict)

    def rank_of(self, word: str) -> int:
        """How many words are more frequent; for a word that was not counted, how many were counted."""
        return self.rank.get(self._counted(word), len(self.rank))

    def rarity_of(self, word: str) -> float:
        """How rare a word is, in nats."""
        return self.rarity.get(self._counted(word), self.unknown_rarity)

    def _counted(self, word: str) -> str:
        return word if word in self.rank else self.other_case.get(word.casefold(), word)


def count_words(tokenizer: object, reference: Sequence[Sentence], frequency: Mapping[str, int] | None) -> Vocabulary:
    """Count the words of ``reference`` (or take the counts of ``frequency``), and find the special tokens.

    Raises ValueError for a frequency that is not a count.

    >>> from types import SimpleNamespace
    >>> vocabulary = count_words(SimpleNamespace(), [], {"the": 9, "dog": 2, "cat": 2})
    >>> [vocabulary.rank_of(word) for word in ("The", "dog", "cat", "gnu")]
    [0, 1, 1, 3]
    """
    counts = dict(Counter(chain.from_iterable(s.words for s in reference)) if frequency is None else frequency)
    _check_counts(counts)
    total = sum(counts.values()) + len(counts) + 1  # add-one smoothing: one more of each word, and one unknown word
    by_frequency = sorted((word for word in counts if counts[word]), key=lambda word: -counts[word])
    first_rank: dict[int, int] = {}  # by frequency: words of equal frequency have equal ranks
    for index, word in enumerate(by_frequency):
        first_rank.setdefault(counts[word], index)
    special_tokens: dict[str, int] = {}
    for name in SPECIAL_TOKENS:
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None and token not in special_tokens.values():  # RoBERTa's BOS token is also its [CLS]
            special_tokens[name] = token
    rarity = {word: log(total / (n + 1)) for word, n in counts.items()}
    other_case = {word.casefold(): word for word in reversed(by_frequency)}  # of several the most frequent
    rank = {word: first_rank[counts[word]] for word in by_frequency}
    return Vocabulary(rank, rarity, log(total), special_tokens, other_case)


def _check_counts(counts: Mapping[str, float]) -> None:
    for word, n in counts.items():
        if not (n >= 0 and n % 1 == 0):
            raise ValueError(
                f"got frequency[{word!r}] = {n!r}; expected how often the word occurs, a whole number from 0: write "
                "frequency=Counter(words), or multiply fractions by the size of their corpus"
            )
