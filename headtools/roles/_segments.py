"""Random segments that repeat: input without grammar or frequent pairs, in which only repetition can be used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def segments(n: int, length: int, repeats: int, tokens: Sequence[int], *, seed: int = 0) -> Tensor:
    """Draw ``n`` random segments of different tokens, each repeated: (n, length * repeats).

    ``tokens`` are the ids to draw from, without replacement within a segment: each token is at one position in it.

    Raises ``ValueError`` for fewer tokens than ``length``, and for sizes that repeat nothing.

    >>> segments(1, 3, 2, range(10, 13))
    tensor([[12, 10, 11, 12, 10, 11]])
    """
    vocabulary = torch.as_tensor(list(tokens))
    if n < 1 or length < 2 or repeats < 2:
        raise ValueError(
            f"got n={n}, length={length} and repeats={repeats}; expected n >= 1, length >= 2, repeats >= 2"
        )
    if len(vocabulary) < length:
        n_tokens = len(vocabulary)
        raise ValueError(f"got {n_tokens} tokens to draw from; expected {length} or more: write length={n_tokens}")
    generator = torch.Generator().manual_seed(seed)
    index = torch.rand(n, len(vocabulary), generator=generator).argsort(-1)[:, :length]  # a permutation a row, cut off
    return vocabulary[index].repeat(1, repeats)


def ordinary_tokens(model: nn.Module) -> list[int]:
    """Return the ids that the model embeds, without the special tokens that its configuration names.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> ordinary_tokens(ToyDecoder()) == list(range(64))
    True
    """
    config, size = getattr(model, "config", None), model.get_input_embeddings().num_embeddings
    special: set[int] = set()
    for name in ("pad", "bos", "eos", "sep", "cls", "mask", "unk"):
        value = getattr(config, f"{name}_token_id", None)
        special |= set(value) if isinstance(value, (list, tuple)) else {value}
    return [token for token in range(size) if token not in special]
