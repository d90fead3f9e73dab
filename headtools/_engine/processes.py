"""Several processes, on one machine or many, share the batches of a measure; each returns the full result.

``accelerate launch`` starts a program several times. Inside ``sharded()`` the engine deals out the batches; outside it,
or where the program was started once, each process works for itself. A batch is never split, and everything that is
computed from all examples is computed after the exchange, so the numbers equal those of one process bit for bit.
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
# long, because a process may be much slower than the others; one that has died is noticed at once anyway
_TIMEOUT = timedelta(days=7)
_LAUNCHER_VARIABLES = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")  # set by launchers


class OtherProcessError(RuntimeError):
    """Another process of the same run failed; the message says which one, and its error."""


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

        Raises what ``work`` raises, and ``OtherProcessError`` in the other processes: none waits for a failed one.
        """
        if self.count == 1:
            return [work()]
        from accelerate.utils import gather_object

        result, error = None, None
        try:
            result = work()
        except Exception as raised:  # raised again below, after the others have been notified
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
                f"the {self.count} processes have different {what}; expected the same in all of them, of which each "
                f"measures a part: set the same seed in all of them before {what} are made"
            )


_CURRENT: ContextVar[Process | None] = ContextVar("headtools_process", default=None)


def current_process() -> Process:
    """Return this process; outside ``sharded()`` it is the only one.

    >>> current_process()
    Process(index=0, count=1, device=device(type='cpu'))
    """
    return _CURRENT.get() or Process()


def launched_count() -> int:
    """Return the number of processes that a launcher has started; 0 without a launcher."""
    if not any(name in os.environ for name in _LAUNCHER_VARIABLES):
        return 0
    return int(os.environ.get("WORLD_SIZE", 1))


@contextmanager
def sharded() -> Iterator[Process]:
    """Share the measures inside this context with the other processes that a launcher started, if there are any.

    Inside, ``taxonomy``, ``gradient``, ``ablation``, ``relevance``, ``confidence`` and ``label`` run some of the
    batches in each process and return the same result in all of them, that of a single process. Every process must
    call them in the same order, with the same model and the same batches. The process whose ``main`` is true writes
    results; ``process.device`` is the device for this process's model::

        accelerate launch --multi_gpu --num_processes 4 score.py   # works without GPUs, too

        with ht.sharded() as process:
            scores = ht.gradient(model.to(process.device), batches)
            if process.main:
                scores.save("scores.safetensors")

    With a launcher this needs accelerate (``pip install "headtools[scale]"``).

    Raises ``RuntimeError`` without accelerate, or where the processes cannot connect to each other.

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
            f"a launcher started {launched_count()} processes, which need accelerate to share the work: "
            'pip install "headtools[scale]"'
        ) from error
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    cpu_only = accelerator is None or accelerator.type == "mps"  # torch.distributed has no backend for MPS
    requested = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    options = {"timeout": _TIMEOUT} if launched_count() > 1 else {}
    state = PartialState(cpu=cpu_only or requested, **options)
    if state.num_processes != launched_count():
        raise RuntimeError(
            f"got {state.num_processes} connected processes; expected {launched_count()}: start them with "
            "accelerate launch --multi_gpu --num_processes N"
        )
    state.wait_for_everyone()  # else a process with little to do might exit before the others have connected
    device = torch.device("cpu") if state.device.type == "cpu" else state.device
    return Process(state.process_index, state.num_processes, device)
