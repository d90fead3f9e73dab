"""What both sides of a comparison share: the plain pass, half of the heads, and how numbers are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from subjects import Subject, make, size_of
from torch import Tensor

EXACT_ROWS = 2  # of the batch, for what runs the model once for every head


def subject(kind: str, size: str) -> Subject:
    """The model and batch that both sides build."""
    return make(kind, size_of(kind, size))


def logits(model: torch.nn.Module, subject: Subject) -> dict[str, float]:
    """A pass without gradients; some of its logits, so that the other side can see that it is the same model."""
    with torch.no_grad():
        return some(model(**subject.batch).logits)


def some(values: Tensor) -> dict[str, float]:
    """The first numbers of the last position of every example.

    >>> some(torch.zeros(1, 2, 3))
    {'0 0': 0.0, '0 1': 0.0, '0 2': 0.0}
    """
    rows = values[:, -1, :8].detach().tolist()
    return {f"{i} {j}": number for i, row in enumerate(rows) for j, number in enumerate(row)}


def by_head(parts: Iterable[tuple[str, int, Tensor]]) -> dict[str, float]:
    """Numbers of heads under names like "encoder 3 7".

    >>> by_head([("cross", 1, torch.tensor([0.5, 2.0]))])
    {'cross 1 0': 0.5, 'cross 1 1': 2.0}
    """
    return {f"{kind} {n} {h}": x for kind, n, values in parts for h, x in enumerate(values.detach().tolist())}


def last_weights(maps: Iterable[tuple[str, int, Tensor]]) -> dict[str, float]:
    """How much the last query of the first example gives to the first key, at every head; maps (B, H, T, T)."""
    return by_head((kind, n, each[0, :, -1, 0]) for kind, n, each in maps)


def half(heads: int) -> list[int]:
    """The heads that pruning takes: the first half."""
    return list(range(heads // 2))


def exact(rises: Callable[[str, int, int], Tensor], subject: Subject, kind: str) -> tuple[dict, float]:
    """Costs of one head in every layer, by a function of (kind, layer, head); and which share of a loop that is.

    The heads go round: head n of layer n. All cost the same in a loop, so one of each layer stands for the layer.
    """
    kinds = ("encoder", "decoder", "cross") if kind == "marian" else ("decoder" if kind == "gpt2" else "encoder",)
    size = subject.size
    found = {
        f"{which} {n} {n % size.heads}": rises(which, n, n % size.heads).mean().item()
        for which in kinds
        for n in range(size.layers)
    }
    return found, (1 + len(found)) / (1 + len(found) * size.heads)  # with the pass of the whole model
