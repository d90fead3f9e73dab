"""Sentences of the second organism as tensors."""

from collections.abc import Sequence
from functools import cache
from itertools import islice

from torch import Tensor

from headtools.organism.batches import UNSEEN, grouped
from headtools.organism.batches import encode as encode_with
from headtools.organism.second.grammar import SHORT, USUAL
from headtools.organism.second.language import sentences as sample
from headtools.organism.second.vocabulary import vocabulary
from headtools.roles.sentence import Sentence


@cache
def word_ids() -> dict[str, int]:
    """Return the token id of every word."""
    return {word: i for i, word in enumerate(vocabulary())}


def batches(sentences: Sequence[Sentence], size: int = 50) -> list[dict[str, Tensor]]:
    """Return sentences as batches that the model takes, in their order; see ``headtools.organism.batches``.

    >>> from headtools.organism.second.language import corpus
    >>> [len(batch["labels"]) for batch in batches(corpus("test", 5), size=3)]
    [3, 2]
    """
    return [encode_with(sentences[i : i + size], word_ids()) for i in range(0, len(sentences), size)]


def training_sentences(seed: int, chunk: int, tokens: int, n: int, short: bool = False) -> list[list[Sentence]]:
    """Return ``n`` training sentences in groups of similar length, in random order; the same for a seed and chunk.

    A group has at most about ``tokens`` source and target tokens when it is padded.
    """
    stream = sample("train", SHORT if short else USUAL, seed * 1_000_003 + chunk)
    return grouped(islice(stream, n), tokens, f"order {seed} {chunk}")


def unseen(seed: int, tokens: int, n: int) -> list[dict[str, Tensor]]:
    """Return ``n`` training batches of sentences that were drawn for no model's training.

    >>> [len(batch) for batch in unseen(seed=1, tokens=128, n=2)]
    [4, 4]
    """
    groups, chunk = [], UNSEEN
    while len(groups) < n:
        groups += training_sentences(seed, chunk, tokens, n=512)
        chunk += 1
    return [encode_with(group, word_ids()) for group in groups[:n]]
