"""A second device without the hardware: tensors that compute on the CPU, say they are elsewhere, and refuse to mix.

What this tests is what goes wrong before a card's own kernels run: a tensor made where the model is not, an index left
behind, ``numpy()`` of what lies on a card, float64 on a device that has none. torch has no public device of this kind.
The one that it calls "lazy" is taken, because nothing is initialised for it and its way back needs no threads of its
own; for the same want of a public one, two private names of torch are used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

CARD = torch.device("lazy", 0)
aten = torch.ops.aten
MOVES = {aten._to_copy.default, aten.copy_.default}  # read from one device and write to the other
# As on CUDA, what is indexed and what is put there must be on one device, and indices may be on the CPU.
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}


class OnCard(torch.Tensor):
    """A tensor that says it is on the card; ``inner`` holds its numbers."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnCard:
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype, device=CARD
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"OnCard({self.inner})"

    def tolist(self) -> list:
        return self.inner.tolist()

    def numpy(self, **_: object) -> None:
        raise TypeError("a tensor on the card cannot be read by numpy: use Tensor.cpu() first")

    def __array__(self, *_: object) -> None:
        self.numpy()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return dispatched(func, args, kwargs or {})


class Card(TorchDispatchMode):
    """While it is on, tensors can be made on the card, except of the data types it is ``without``."""

    def __init__(self, without: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.without = without

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = dispatched(func, args, kwargs or {})
        for x in tree_leaves(found):
            if isinstance(x, OnCard) and x.dtype in self.without:
                raise TypeError(f"the card has no {x.dtype}")
        return found


def dispatched(func, args, kwargs):
    """Run an operation on what the tensors hold, if all are in one place, and leave its results there."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    where = tensors[:1] if func in MOVES else [args[0], *args[2:3]] if func in INDEXED else tensors
    if len({isinstance(x, OnCard) for x in where if isinstance(x, OnCard) or x.dim()}) > 1:
        raise RuntimeError(f"{func}: two devices: {[(tuple(x.shape), x.device.type) for x in tensors]}")
    there = any(isinstance(x, OnCard) for x in where)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == CARD.type
        kwargs = kwargs | {"device": torch.device("cpu")}
    bare = tree_map(lambda x: x.inner if isinstance(x, OnCard) else x, (args, kwargs))
    found = func(*bare[0], **bare[1])
    if not there:
        return found.clone() if func in MOVES else found
    found = tree_map(lambda x: OnCard(x) if isinstance(x, torch.Tensor) else x, found)
    return return_and_correct_aliasing(func, args, kwargs, found)


@contextmanager
def second_device(*without: torch.dtype) -> Iterator[torch.device]:
    """Give a device that lasts as long as the block."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=) moves what the mode can see
    try:
        with Card(without):
            yield CARD
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
