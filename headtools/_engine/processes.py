"""Several processes, on one machine or many, share the batches of a measure; each gets the whole result.

``accelerate launch`` starts a program several times. Inside ``sharded()`` the engine deals out the batches; outside of
it, or where the program was started once, each process works for itself. A batch is never cut, so its numbers are those
of one process bit for bit, and everything that is computed of all examples comes after the exchange.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")
_TIMEOUT = timedelta(days=7)  # a process that died is noticed at once; one that is slower than the others may be
_LAUNCHER_VARIABLES = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")  # what launchers leave in the environment


class OtherProcessError(RuntimeError):
    """Another process of the same run failed; the message says which, and how."""


@dataclass(frozen=True)
class Process:
    """Which of ``count`` processes this is (``index``, from 0), and the ``device`` it was given."""

    index: int = 0
    count: int = 1
    device: torch.device = field(default=torch.device("cpu"))

    @property
    def main(self) -> bool:
        """Whether this is the process that writes results and shows progress."""
        return self.index == 0

    def gather(self, work: Callable[[], Result]) -> list[Result]:
        """Run ``work`` in every process and return, in each of them, all results in the order of the processes.

        Raises what ``work`` raises, and ``OtherProcessError`` in the other processes, so that none waits forever.
        """
        if self.count == 1:
            return [work()]
        from accelerate.utils import gather_object

        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # raised again below, when the others know of it
            error = raised
        message = None if error is None else f"{type(error).__name__}: {error}"
        gathered = gather_object([(result, message)])
        if error is not None:
            raise error
        for index, (_, message) in enumerate(gathered):
            if message is not None:
                raise OtherProcessError(f"process {index} of {self.count} failed: {message}")
        return [result for result, _ in gathered]

    def assert_same(self, content: Any, what: str) -> None:
        """Raise ``ValueError`` in every process unless all of them have the same content, such as their batches."""
        if self.count > 1 and len(set(self.gather(lambda: content))) > 1:
            raise ValueError(
                f"the {self.count} processes have different {what}, and each should do a part of the same: set the "
                f"same seed in all of them before {what} are made"
            )


_CURRENT: ContextVar[Process | None] = ContextVar("headtools_process", default=None)


def current_process() -> Process:
    """Return this process: one of one outside ``sharded()``.

    >>> current_process()
    Process(index=0, count=1, device=device(type='cpu'))
    """
    return _CURRENT.get() or Process()


def launched_count() -> int:
    """Return how many processes a launcher says it has started; 0 where there was no launcher."""
    if not any(name in os.environ for name in _LAUNCHER_VARIABLES):
        return 0
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def sharded() -> Iterator[Process]:
    """Share the work of this context with the other processes that a launcher started; alone without a launcher.

    Inside, ``taxonomy``, ``gradient``, ``ablation``, ``relevance``, ``confidence`` and ``label`` run a part of the
    batches in each process and return the same result in all of them, that of one process: every process must call
    them, in the same order, with the same model and the same batches. ``process.main`` says who writes results,
    ``process.device`` where this process's model belongs::

        accelerate launch --multi_gpu --num_processes 4 score.py   # the switch for several processes, GPU or none

        with ht.sharded() as process:
            scores = ht.gradient(model.to(process.device), batches)
            if process.main:
                ht.save_scores(scores, "scores.safetensors")

    Needs accelerate where there is a launcher (``pip install "headtools[scale]"``), and nothing where there is none.

    Raises ``RuntimeError`` without accelerate, or where the processes that were started do not find each other.

    >>> with sharded() as process:
    ...     process.main, process.count
    (True, 1)
    """
    token = _CURRENT.set(_connect() if launched_count() else Process())
    try:
        yield current_process()
    finally:
        _CURRENT.reset(token)


def _connect() -> Process:
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise RuntimeError(
            f"a launcher started {launched_count()} processes, and without accelerate they cannot share the work: "
            'pip install "headtools[scale]"'
        ) from error
    here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    cpu_only = here is None or here.type == "mps"  # no messages go between processes from there
    requested = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    more = {"timeout": _TIMEOUT} if launched_count() > 1 else {}
    state = PartialState(cpu=cpu_only or requested, **more)
    if state.num_processes != launched_count():
        raise RuntimeError(
            f"{launched_count()} processes were started and {state.num_processes} found each other: start them with "
            "accelerate launch --multi_gpu --num_processes N"
        )
    state.wait_for_everyone()  # or one that is done at once is gone before the others have found it
    device = torch.device("cpu") if state.device.type == "cpu" else state.device
    return Process(state.process_index, state.num_processes, device)
