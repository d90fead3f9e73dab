"""How often the organism writes the right word: fast, with the words so far given, one number a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor, nn

from headtools.organism.objective import IGNORE, arguments, encode
from headtools.organism.vocabulary import vocabulary
from headtools.roles.corpus import Sentence


def batches(sentences: Sequence[Sentence], size: int = 50) -> list[dict[str, Tensor]]:
    """Return sentences as batches that the organism takes, in their order, ``size`` to a batch.

    Each is a dict of ``input_ids`` and ``attention_mask`` (B, S), ``decoder_input_ids`` and ``labels`` (B, T); labels
    are -100 after the end mark. Raises ValueError for no sentences and for sentences without a translation.

    >>> from headtools.roles.corpus import corpus
    >>> {name: tensor.shape for name, tensor in batches(corpus("organism", limit=2))[0].items() if name == "labels"}
    {'labels': torch.Size([2, 20])}
    """
    if not sentences or size < 1:
        raise ValueError(f"{len(sentences)} sentences and size {size} make no batch: batches(corpus('organism'))")
    without = next((i for i, sentence in enumerate(sentences) if sentence.target is None), None)
    if without is not None:
        raise ValueError(f"sentence {without} has no translation; only corpus('organism') has")
    starts = range(0, len(sentences), size)
    return [arguments(encode(list(sentences[start : start + size]), _numbers())) for start in starts]


@torch.no_grad()
def token_accuracy(model: nn.Module, sentences: Sequence[Sentence], size: int = 50) -> Tensor:
    """Return the share of target words (end mark included) that the model gets right, by sentence: (B,), 0 to 1.

    The right words so far are given, so a whole sentence costs one step: some twenty times faster than translating.
    Works inside ``ablate`` and ``gates``, and as ``evaluate`` of a pruning curve. Raises as :func:`batches` does.

    >>> import headtools as ht
    >>> model, _ = ht.load()
    >>> right = token_accuracy(model, ht.corpus("organism", limit=20))
    >>> right.shape, bool(right.mean() > 0.9)
    (torch.Size([20]), True)
    """
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i].words))  # alike in length: less padding
    shares = torch.zeros(len(sentences))
    for start, batch in enumerate(batches([sentences[i] for i in order], size)):
        batch = {name: tensor.to(model.device) for name, tensor in batch.items()}
        labels = batch.pop("labels")
        counted = labels != IGNORE
        right = (model(**batch).logits.argmax(-1) == labels) & counted
        shares[order[start * size : (start + 1) * size]] = (right.sum(1) / counted.sum(1)).cpu()
    return shares


@cache
def _numbers() -> dict[str, int]:
    return {word: i for i, word in enumerate(vocabulary())}
