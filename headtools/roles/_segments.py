"""Random segments that repeat: input without grammar, in which a head can do nothing but look back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def segments(
    n: int, length: int, repeats: int, tokens: Sequence[int], *, start: int | None = None, seed: int = 0
) -> Tensor:
    """Draw ``n`` random segments of different tokens, each repeated: (n, length * repeats), one more with ``start``.

    ``tokens`` are the ids to draw from, without replacement within a segment, so that a copy has one place in each.

    Raises ``ValueError`` for fewer tokens than ``length``, and for sizes that repeat nothing.

    >>> segments(1, 3, 2, range(10, 13), start=0)
    tensor([[ 0, 12, 10, 11, 12, 10, 11]])
    """
    pool = torch.as_tensor(list(tokens))
    if n < 1 or length < 2 or repeats < 2:
        raise ValueError(f"needed n >= 1, length >= 2 and repeats >= 2; got {n}, {length} and {repeats}")
    if len(pool) < length:
        raise ValueError(f"{length} different tokens are needed, {len(pool)} may be drawn: pass length={len(pool)}")
    generator = torch.Generator().manual_seed(seed)
    picked = torch.rand(n, len(pool), generator=generator).argsort(-1)[:, :length]
    ids = pool[picked].repeat(1, repeats)
    return ids if start is None else torch.cat([torch.full((n, 1), start), ids], 1)


def ordinary(model: nn.Module) -> list[int]:
    """Return the ids that the model embeds, without the special ones that its configuration names.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> ordinary(ToyDecoder()) == list(range(64))
    True
    """
    config, size = getattr(model, "config", None), model.get_input_embeddings().num_embeddings
    special: set[int] = set()
    for name in ("pad", "bos", "eos", "sep", "cls", "mask", "unk"):
        value = getattr(config, f"{name}_token_id", None)
        special |= set(value) if isinstance(value, (list, tuple)) else {value}
    return [token for token in range(size) if token not in special]
