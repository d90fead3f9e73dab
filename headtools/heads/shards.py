"""Work that several processes share, on one machine or many: each does a part, and every one gets all of it.

``accelerate launch`` starts a program several times. Inside ``sharded()`` the measures that go through a corpus batch
by batch (roles, gradient, ablation, relevance, confidence) then deal out the batches; outside of it, or where the
program was started once, each process works for itself. A batch is never cut, so that its numbers are those of one
process bit for bit, and everything that is computed of all examples (means, intervals) comes after the exchange.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")
R = TypeVar("R")
PATIENCE = timedelta(days=7)  # a process that died is noticed at once; one that is slower than the others may be
_MARKS = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")  # what launchers leave in the environment


class ElsewhereError(RuntimeError):
    """Another process of the same run failed; the message says which, and how."""


@dataclass(frozen=True)
class Shard:
    """Which of ``count`` processes this is (``index``, from 0), and the ``device`` it was given."""

    index: int = 0
    count: int = 1
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def main(self) -> bool:
        """Whether this is the process that writes results and shows progress."""
        return self.index == 0

    def mine(self, items: Iterable[T], done: Collection[int] = ()) -> Iterator[tuple[int, T]]:
        """Give this process's items with their numbers; ``items`` must be the same in every process.

        Those that are ``done`` are dealt out by themselves, so that what is left of a stopped run is shared evenly.

        >>> list(Shard(1, 2).mine("abcde")), list(Shard(1, 2).mine("abcde", done=[0, 1]))
        ([(1, 'b'), (3, 'd')], [(1, 'b'), (3, 'd')])
        >>> list(Shard(0, 2).mine("abcde", done=[1])), list(Shard(3, 4).mine("ab"))
        ([(0, 'a'), (1, 'b'), (3, 'd')], [])
        """
        dealt = {True: 0, False: 0}
        for number, item in enumerate(items):
            finished = number in done
            if dealt[finished] % self.count == self.index:
                yield number, item
            dealt[finished] += 1

    def all(self, work: Callable[[], R]) -> list[R]:
        """Do some work in every process and return, in each, what it gave in all of them, by process.

        Raises what ``work`` raises, and in the other processes ``ElsewhereError``: none waits for one that has failed.
        """
        if self.count == 1:
            return [work()]
        from accelerate.utils import gather_object

        made, error = None, None
        try:
            made = work()
        except Exception as raised:  # it goes on below, when the others know
            error = raised
        said = None if error is None else f"{type(error).__name__}: {error}"
        told = gather_object([(made, said)])
        if error is not None:
            raise error
        for index, (_, said) in enumerate(told):
            if said is not None:
                raise ElsewhereError(f"process {index} of {self.count} failed: {said}")
        return [made for made, _ in told]

    def merged(self, work: Callable[[], Mapping[int, R]]) -> list[R]:
        """Do some work in every process, {number of the item: result}; return all results in the items' order.

        Raises as ``all``, and ``ValueError`` where the processes did not have the same number of items.

        >>> Shard().merged(lambda: {1: "b", 0: "a"})
        ['a', 'b']
        """
        parts = self.all(work)
        found = {number: result for part in parts for number, result in part.items()}
        if len(found) < sum(map(len, parts)) or found.keys() != set(range(len(found))):
            raise ValueError(
                f"the processes had different numbers of batches: {[len(part) for part in parts]} of them make no "
                "whole; give every process all batches, for instance a list"
            )
        return [found[number] for number in range(len(found))]

    def total(self, part: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes, which hold one of the same shape each; on the CPU."""
        if self.count == 1:
            return part
        from accelerate.utils import reduce

        return reduce(part.to(self.device), "sum").cpu()

    def agree(self, told: str, what: str) -> None:
        """Raise ``ValueError`` in every process unless all of them tell the same, such as a digest of their batches."""
        others = set(self.all(lambda: told))
        if len(others) > 1:
            raise ValueError(
                f"the {self.count} processes have {len(others)} different {what}, and each should do a part of the "
                f"same: set the same seed in all of them before {what} are made"
            )


_CURRENT: ContextVar[Shard | None] = ContextVar("headtools_shard", default=None)


def current() -> Shard:
    """Return the shard of this process: one of one outside ``sharded()``.

    >>> current()
    Shard(index=0, count=1, device=device(type='cpu'))
    """
    return _CURRENT.get() or Shard()


def launched() -> int:
    """Return how many processes a launcher says it has started; 0 where there was no launcher."""
    if not any(name in os.environ for name in _MARKS):
        return 0
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def sharded() -> Iterator[Shard]:
    """Share the work of this context with the other processes that a launcher started; alone without a launcher.

    Inside, ``taxonomy``, ``gradient``, ``ablation``, ``relevance``, ``confidence`` and ``label`` run a part of the
    batches in each process and return the same result in all of them, that of one process: every process must call
    them, in the same order, with the same model and the same batches. ``shard.main`` says who writes results,
    ``shard.device`` where this process's model belongs::

        accelerate launch --multi_gpu --num_processes 4 score.py   # the switch for several processes, GPU or none

        with ht.sharded() as shard:
            scores = ht.gradient(model.to(shard.device), batches)
            if shard.main:
                ht.save_scores(scores, "scores.safetensors")

    Needs accelerate where there is a launcher (``pip install "headtools[scale]"``), and nothing where there is none.

    Raises ``RuntimeError`` without accelerate, or where the processes that were started do not find each other.

    >>> with sharded() as shard:
    ...     shard.main, shard.count
    (True, 1)
    """
    shard = _connected() if launched() else Shard()
    token = _CURRENT.set(shard)
    try:
        yield shard
    finally:
        _CURRENT.reset(token)


def _connected() -> Shard:
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise RuntimeError(
            f"a launcher started {launched()} processes, and without accelerate they cannot share the work: "
            'pip install "headtools[scale]"'
        ) from error
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    alone = here is None or here.type == "mps"  # no messages go between processes from there
    asked = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    more = {"timeout": PATIENCE} if launched() > 1 else {}
    state = PartialState(cpu=alone or asked, **more)
    if state.num_processes != launched():
        raise RuntimeError(
            f"{launched()} processes were started and {state.num_processes} found each other: start them with "
            "accelerate launch --multi_gpu --num_processes N"
        )
    state.wait_for_everyone()  # or one that is done at once is gone before the others have found it
    device = torch.device("cpu") if state.device.type == "cpu" else state.device
    return Shard(state.process_index, state.num_processes, device)


def outline(model: nn.Module) -> str:
    """Return what tells a model from another at a glance: names, shapes and the first numbers of its tensors."""
    told = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        some = [] if tensor.is_meta else tensor.detach().flatten()[:4].cpu().double().tolist()
        told.append(f"{name} {tuple(tensor.shape)} {some}")
    return "\n".join(told)
