"""The annotation of a batch as arrays, and what is known of the words of a corpus.

The sentences of a batch follow one another: its N words are numbered from 0 through the batch, and what is known of
them are arrays (N,). All sentences are then handled by a few array operations, without a loop over words.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import log

import numpy as np

from headtools.roles.sentence import Sentence

Array = np.ndarray
NOMINAL = ("NOUN", "PROPN", "PRON")
SPECIAL_TOKENS = ("bos", "eos", "cls", "sep")
_NO_RELATION = ("root", "punct")


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
    frequencies = [counts[word] for word in by_frequency]
    first_rank = {n: rank for rank, n in reversed([*enumerate(frequencies)])}  # equal frequencies have equal ranks
    special_tokens: dict[str, int] = {}
    for name in SPECIAL_TOKENS:
        token = getattr(tokenizer, f"{name}_token_id", None)
        if token is not None and token not in special_tokens.values():  # RoBERTa's BOS token is also its [CLS]
            special_tokens[name] = token
    rarity = {word: log(total / (n + 1)) for word, n in counts.items()}
    other_case = {word.casefold(): word for word in reversed(by_frequency)}  # of several the most frequent
    rank = {word: first_rank[counts[word]] for word in by_frequency}
    return Vocabulary(rank, rarity, log(total), special_tokens, other_case)


@dataclass(frozen=True)
class Annotation:
    """What is known of the N words of B sentences.

    first_word       (B,) index of each sentence's first word
    sentence         (N,) sentence of each word
    position         (N,) position of the word in its sentence, from 0
    head             (N,) index of the word's syntactic head; -1 for roots, punctuation and words without a head
    relation         (N,) relation of the word to its head, an index into ``relations``
    coreference      (N,) as in :class:`Sentence`: counted from 1 within the sentence, 0 for none
    is_nominal       (N,) whether it is a noun, a name or a pronoun
    is_punctuation   (N,)
    form             (N,) equal for equal words, in alphabetical order
    rank, rarity     (N,) as in :class:`Vocabulary`; a word without a rank has a higher one than all others
    n_ranked         how many words the vocabulary ranks
    """

    first_word: Array
    sentence: Array
    position: Array
    head: Array
    relation: Array
    relations: tuple[str, ...]
    coreference: Array
    is_nominal: Array
    is_punctuation: Array
    form: Array
    rank: Array
    rarity: Array
    n_ranked: int

    @property
    def n_sentences(self) -> int:
        """How many sentences there are."""
        return len(self.first_word)


def annotate(sentences: Sequence[Sentence], vocabulary: Vocabulary) -> Annotation:
    """Put the annotation of sentences into arrays.

    Raises ValueError for a sentence without words, with more or less annotation than words, or with a head that is
    not one of its words.

    >>> slept = Sentence(("it", "slept"), (2, 0), ("nsubj", "root"), ("PRON", "VERB"), (0, 0))
    >>> annotation = annotate([slept, slept], Vocabulary({}, {}, 0.0, {}))
    >>> annotation.head.tolist(), annotation.position.tolist(), annotation.is_nominal.tolist()
    ([1, -1, 3, -1], [0, 1, 0, 1], [True, False, True, False])
    """
    for i, s in enumerate(sentences):
        if not s.words or not len(s.words) == len(s.heads) == len(s.relations) == len(s.upos) == len(s.coreference):
            lengths = [len(values) for values in (s.heads, s.relations, s.upos, s.coreference)]
            raise ValueError(
                f"sentence {i} has {len(s.words)} words, and heads, relations, upos and coreference of {lengths}; "
                "expected at least one word, and one of each for every word; correct the sentence or leave it out"
            )
    length = np.array([len(s.words) for s in sentences])
    sentence, position = ragged_index(length)
    first_word = np.cumsum(length) - length
    head = _flatten(s.heads for s in sentences)
    _check_heads(sentences, head, sentence, length)
    # What depends on a word's form, relation or tag alone is looked up once for each different one.
    relations, relation = _encode(chain.from_iterable(s.relations for s in sentences))
    no_relation = np.array([name in _NO_RELATION for name in relations], dtype=bool)[relation]
    words = list(chain.from_iterable(s.words for s in sentences))
    forms = sorted(set(words))
    form_index = {word: i for i, word in enumerate(forms)}
    form = np.array([form_index[word] for word in words])
    tags, tag = _encode(chain.from_iterable(s.upos for s in sentences))
    is_punctuation = np.array([t == "PUNCT" for t in tags], dtype=bool)[tag]
    is_nominal = np.array([t in NOMINAL for t in tags], dtype=bool)[tag]
    untagged = np.array([t in ("_", "") for t in tags], dtype=bool)[tag]
    if untagged.any():  # a word without a part of speech is punctuation if it has no letter and no digit
        no_letter = np.array([not any(c.isalnum() for c in word) for word in forms], dtype=bool)[form]
        is_punctuation = is_punctuation | untagged & no_letter
    return Annotation(
        first_word=first_word,
        sentence=sentence,
        position=position,
        head=np.where((head == 0) | no_relation, -1, first_word[sentence] + head - 1),
        relation=relation,
        relations=tuple(relations),
        coreference=_flatten(s.coreference for s in sentences),
        is_nominal=is_nominal,
        is_punctuation=is_punctuation,
        form=form,
        rank=np.array([vocabulary.rank_of(word) for word in forms])[form],
        rarity=np.array([vocabulary.rarity_of(word) for word in forms])[form],
        n_ranked=len(vocabulary.rank),
    )


def ragged_index(lengths: Array) -> tuple[Array, Array]:
    """For lists of the given lengths, one after the other: which list each item is in, and its position there.

    >>> [index.tolist() for index in ragged_index(np.array([2, 0, 3]))]
    [[0, 0, 2, 2, 2], [0, 1, 0, 1, 2]]
    """
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]


def _flatten(lists: Iterable[Sequence[int]]) -> Array:
    return np.fromiter(chain.from_iterable(lists), dtype=np.int64)


def _encode(names: Iterable[str]) -> tuple[list[str], Array]:
    """The different names, in order of first occurrence, and the index of each name among them."""
    index_of: dict[str, int] = {}
    index = [index_of.setdefault(name, len(index_of)) for name in names]
    return list(index_of), np.array(index, dtype=np.int64)


def _check_counts(counts: Mapping[str, float]) -> None:
    for word, n in counts.items():
        if not (n >= 0 and n % 1 == 0):
            raise ValueError(
                f"got frequency[{word!r}] = {n!r}; expected how often the word occurs, a whole number from 0: write "
                "frequency=Counter(words), or multiply fractions by the size of their corpus"
            )


def _check_heads(sentences: Sequence[Sentence], head: Array, sentence: Array, length: Array) -> None:
    wrong = np.flatnonzero((head < 0) | (head > length[sentence]))
    if len(wrong):
        word = int(wrong[0])
        text = str(sentences[sentence[word]])[:80]
        raise ValueError(
            f"got word {head[word]} as a head in a sentence of {length[sentence[word]]} words: {text!r}; expected 1 to "
            f"{length[sentence[word]]}, or 0 for the root"
        )
