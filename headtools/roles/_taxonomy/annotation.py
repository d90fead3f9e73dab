"""The annotation of a batch as arrays: the words of all its sentences behind each other, and the units of each word."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from headtools.roles._taxonomy.spans import Units
from headtools.roles.sentence import Sentence

Array = np.ndarray
NOMINAL = ("NOUN", "PROPN", "PRON")
_SKIPPED = ("root", "punct")


@dataclass(frozen=True)
class Words:
    """What is known of the words of a language: ``rank`` by frequency from 0, ``rarity`` in nats, token ``marks``.

    Words of equal frequency have equal ranks: how many words are more frequent. A word that was not counted as it is
    written, but in another case, is taken for the one that ``other_case`` names, {word.casefold(): word}.
    """

    rank: Mapping[str, int]
    rarity: Mapping[str, float]
    unknown: float
    marks: Mapping[str, int]
    other_case: Mapping[str, str] = field(default_factory=dict)

    def rank_of(self, word: str) -> int:
        """How many words are more frequent; for a word that is not known, how many are known."""
        return self.rank.get(self._counted(word), len(self.rank))

    def rare(self, word: str) -> float:
        """How rare a word is: minus the logarithm of its share of all words counted, in nats."""
        return self.rarity.get(self._counted(word), self.unknown)

    def _counted(self, word: str) -> str:
        return word if word in self.rank else self.other_case.get(word.casefold(), word)


@dataclass(frozen=True)
class Gold:
    """What is known of the N words of B sentences. Words are numbered through the batch, from 0.

    start         (B,) number of each sentence's first word
    row, place    (N,) sentence of each word, and which of its words it is, from 0
    head          (N,) number of the word's head; -1 for roots, punctuation and words without one
    relation      (N,) which of ``relations`` it has to its head
    coreference   (N,) as in :class:`Sentence`: counted from 1 within the sentence, 0 for none
    nominal       (N,) whether it is a noun, a name or a pronoun
    point         (N,) whether it is punctuation
    form          (N,) equal for equal words, in the order of the alphabet
    rank, rarity  (N,) rank by frequency, equal for equal frequencies, and rarity in nats; words that ``Words`` does not
                  rank stand behind all others
    ranked        how many words ``Words`` ranks
    """

    start: Array
    row: Array
    place: Array
    head: Array
    relation: Array
    relations: tuple[str, ...]
    coreference: Array
    nominal: Array
    point: Array
    form: Array
    rank: Array
    rarity: Array
    ranked: int

    @property
    def sentences(self) -> int:
        """How many sentences there are."""
        return len(self.start)


def gold(sentences: Sequence[Sentence], words: Words) -> Gold:
    """Put the annotation of sentences into arrays.

    Raises ValueError for a sentence without words, with more or less annotation than words, or a head that is none.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> found = gold([slept, slept], Words({}, {}, 0.0, {}))
    >>> found.head.tolist(), found.place.tolist(), found.nominal.tolist()
    ([1, -1, 3, -1], [0, 1, 0, 1], [True, False, True, False])
    """
    for i, s in enumerate(sentences):
        if not s.words or not len(s.words) == len(s.heads) == len(s.relations) == len(s.upos) == len(s.coreference):
            raise ValueError(f"sentence {i} has {len(s.words)} words, and heads, relations, upos, coreference for "
                             f"{[*map(len, (s.heads, s.relations, s.upos, s.coreference))]}; give one each, or "
                             "leave it out")  # fmt: skip
    length = np.array([len(s.words) for s in sentences])
    row, place = spread(length)
    start = np.cumsum(length) - length
    head = _numbers(s.heads for s in sentences)
    _refuse_heads(sentences, head, row, length)
    names, relation = _codes(chain.from_iterable(s.relations for s in sentences))
    no_relation = np.array([name in _SKIPPED for name in names], dtype=bool)[relation]
    written = list(chain.from_iterable(s.words for s in sentences))
    forms = sorted(set(written))
    number = {word: i for i, word in enumerate(forms)}
    form = np.array([number[word] for word in written])
    tags, tag = _codes(chain.from_iterable(s.upos for s in sentences))
    point, nominal = (np.array([test(t) for t in tags], dtype=bool)[tag]
                      for test in (lambda t: t == "PUNCT", lambda t: t in NOMINAL))  # fmt: skip
    unknown = np.array([t in ("_", "") for t in tags], dtype=bool)[tag]
    if unknown.any():  # a word without a part of speech is punctuation if it has no letter and no digit
        point = point | unknown & np.array([not any(c.isalnum() for c in word) for word in forms], dtype=bool)[form]
    return Gold(
        start, row, place, np.where((head == 0) | no_relation, -1, start[row] + head - 1), relation, tuple(names),
        _numbers(s.coreference for s in sentences), nominal, point, form,
        np.array([words.rank_of(word) for word in forms])[form],
        np.array([words.rare(word) for word in forms])[form], len(words.rank),
    )  # fmt: skip


def spread(counts: Array) -> tuple[Array, Array]:
    """For things with ``counts`` parts each, behind each other: the thing of each part, and its number there.

    >>> [some.tolist() for some in spread(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


class Places:
    """Which units stand for which word: ``first`` (N,), -1 for none, and with :meth:`of` all of them."""

    def __init__(self, gold: Gold, units: Units) -> None:
        word = units.word.numpy()
        row, unit = np.nonzero(word >= 0)
        self.word = gold.start[row] + word[row, unit]
        order = np.argsort(self.word, kind="stable")
        self.row, self.unit, self.word = row[order], unit[order], self.word[order]
        self.count = np.bincount(self.word, minlength=len(gold.row))
        self.begin = np.cumsum(self.count) - self.count
        self.first = np.where(self.count > 0, np.append(self.unit, -1)[self.begin], -1)

    def of(self, words: Array) -> tuple[Array, Array]:
        """All units of each of some words: which of them it is, and the unit."""
        owner, part = spread(self.count[words])
        return owner, self.unit[self.begin[words][owner] + part]


def _numbers(of_each: Iterable[Sequence[int]]) -> Array:
    return np.fromiter(chain.from_iterable(of_each), dtype=np.int64)


def _codes(names: Iterable[str]) -> tuple[list[str], Array]:
    """Names as numbers: those there are, in order, and which each is."""
    known: dict[str, int] = {}
    code = [known.setdefault(name, len(known)) for name in names]
    return list(known), np.array(code, dtype=np.int64)


def _refuse_heads(sentences: Sequence[Sentence], head: Array, row: Array, length: Array) -> None:
    wrong = np.flatnonzero((head < 0) | (head > length[row]))
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"a head is word {head[at]} of a sentence of {length[row[at]]} words: {str(sentences[row[at]])[:80]!r}; "
            "heads count from 1, and 0 is the root"
        )
