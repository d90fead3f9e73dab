"""Sentences of the organism as the tensors it takes: batches to measure on, and an endless supply to train on."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from headtools.organism.grammar import SHORT, USUAL
from headtools.organism.language import sentences as sample
from headtools.organism.vocabulary import END, PAD, vocabulary
from headtools.roles.sentence import Sentence

IGNORE = -100  # the label of a position that no loss counts
# Chunks of training sentences are numbered; the organism's own training ended long before this one.
UNSEEN = 500_000


def batches(sentences: Sequence[Sentence], size: int = 50) -> list[dict[str, Tensor]]:
    """Return sentences as batches that the organism takes, in their order, ``size`` to a batch.

    Each is a dict of ``input_ids`` and ``attention_mask`` (B, S), ``decoder_input_ids`` and ``labels`` (B, T); labels
    are -100 after the EOS token. Raises ValueError for no sentences and for sentences without a translation.

    >>> from headtools.roles.corpus import corpus
    >>> {name: tensor.shape for name, tensor in batches(corpus("organism", limit=2))[0].items() if name == "labels"}
    {'labels': torch.Size([2, 20])}
    """
    if not sentences or size < 1:
        raise ValueError(f"{len(sentences)} sentences and size {size} make no batch: batches(corpus('organism'))")
    without = next((i for i, sentence in enumerate(sentences) if sentence.target is None), None)
    if without is not None:
        raise ValueError(f"sentence {without} has no translation; only corpus('organism') has")
    return [encode(sentences[start : start + size]) for start in range(0, len(sentences), size)]


def encode(sentences: Sequence[Sentence], ids: Mapping[str, int] | None = None) -> dict[str, Tensor]:
    """Return one batch of sentences with their translations: (B, S) for the source, (B, T) for the target.

    S and T count the EOS token. The decoder reads the target moved one position to the right. ``ids`` are the token ids
    of another vocabulary.
    """
    ids = word_ids() if ids is None else ids
    pad, end = ids[PAD], ids[END]
    sources = [[ids[word] for word in sentence.words] for sentence in sentences]
    targets = [[ids[word] for word in sentence.target] for sentence in sentences]

    def padded(rows: list[list[int]], value: int) -> Tensor:
        return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)

    source = padded([[*row, end] for row in sources], pad)
    return {
        "input_ids": source,
        "attention_mask": (source != pad).long(),
        "decoder_input_ids": padded([[pad, *row] for row in targets], pad),
        "labels": padded([[*row, end] for row in targets], IGNORE),
    }


class TrainingBatches:
    """Batches of training sentences by step, as ``fit_gates`` takes them: about ``tokens`` padded tokens each.

    The sentences follow from ``seed`` and were not in the organism's own training.

    >>> batch = TrainingBatches(seed=1, tokens=128)(0)
    >>> sorted(batch)
    ['attention_mask', 'decoder_input_ids', 'input_ids', 'labels']
    >>> len(batch["input_ids"]) * (batch["input_ids"].shape[1] + batch["labels"].shape[1]) <= 128
    True
    """

    def __init__(self, seed: int = 0, tokens: int = 1_024) -> None:
        self.seed, self.tokens = seed, tokens
        self.chunk, self.first, self.groups = -1, 0, []

    def __call__(self, step: int) -> dict[str, Tensor]:
        """Return the batch of a step, whichever step was asked for before."""
        if step < self.first:
            self.chunk, self.first, self.groups = -1, 0, []
        while step >= self.first + len(self.groups):
            self.first += len(self.groups)
            self.chunk += 1
            self.groups = training_sentences(self.seed, UNSEEN + self.chunk, self.tokens, n=512)
        return encode(self.groups[step - self.first])


def training_sentences(seed: int, chunk: int, tokens: int, n: int, short: bool = False) -> list[list[Sentence]]:
    """Return ``n`` training sentences in groups of similar length, in random order; the same for a seed and chunk.

    A group has at most about ``tokens`` source and target tokens when it is padded.
    """
    stream = sample("train", SHORT if short else USUAL, seed * 1_000_003 + chunk)
    return grouped(islice(stream, n), tokens, f"order {seed} {chunk}")


def grouped(sentences: Iterable[Sentence], tokens: int, order: str) -> list[list[Sentence]]:
    """Return sentences in groups of similar length, of at most about ``tokens`` padded tokens each, shuffled."""
    sampled = list(sentences)
    sampled.sort(key=lambda sentence: len(sentence.words))
    groups: list[list[Sentence]] = [[]]
    for sentence in sampled:
        if groups[-1] and 2 * (len(sentence.words) + 1) * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(sentence)
    random.Random(order).shuffle(groups)
    return groups


@cache
def word_ids() -> dict[str, int]:
    """Return the token id of every word."""
    return {word: i for i, word in enumerate(vocabulary())}
