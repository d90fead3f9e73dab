"""One loop over batches for every measure: progress, resuming and several processes are here.

A measure says what is computed from one batch and how the results are put together::

    class Loss:
        settings = {}
        def per_batch(self, batch): return {"loss": losses(model, batch)}
        def finish(self, parts): return torch.cat([part["loss"] for part in parts]).mean()

    run(Loss(), model, batches, checkpoint="folder")

``finish`` gets the parts in the order of the batches, one at a time, as they are measured: a measure that adds them up
needs the memory of one batch, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from headtools._engine.processes import Process, current
from headtools._engine.progress import Bar
from headtools._engine.store import Part, Store, fingerprint, summary


class Measure(Protocol):
    """What is measured.

    ``settings``: all that, besides model and batches, determines the numbers, as JSON can hold it; a stopped run goes
    on only with the same. ``per_batch`` gives tensors by name, ``finish`` the result from all of them, in order. A
    measure whose batches are long may have ``check(batch)``, which gives some of these tensors at less cost.
    """

    settings: Mapping[str, Any]

    def per_batch(self, batch: Any) -> Part: ...
    def finish(self, parts: Iterable[Part]) -> Any: ...


def run(
    measure: Measure,
    model: nn.Module,
    batches: Iterable[Any],
    *,
    checkpoint: str | Path | None = None,
    label: str = "",
    steps: int = 1,
) -> Any:
    """Measure every batch, but for those of a stopped run, and return what ``measure.finish`` makes of all.

    ``checkpoint``: a folder in which each batch's tensors are kept as soon as they are there. On going on, the first
    finished batch is measured once more, since functions and hooks have no fingerprint. ``label`` shows a bar, of
    ``steps`` a batch. Inside ``sharded()`` each process measures a part of the batches, and all return the whole.

    Raises ``ValueError`` for a folder that holds another run, and where processes have different models or batches.
    """
    process = current()
    if checkpoint is None and process.count == 1 and not label:
        return measure.finish(measure.per_batch(batch) for batch in batches)
    batches = list(batches)
    identity: dict[str, Any] = {}
    if process.count > 1:
        process.assert_same(fingerprint([summary(model), batches, dict(measure.settings)]), "models or batches")
    if checkpoint is not None:
        identity = {"measure": type(measure).__name__, "model": fingerprint(model), "batches": fingerprint(batches)}
    # One process after the other opens the folder, the main one first, so that one of them writes the settings.
    store = process.gather(lambda: Store(checkpoint, {**identity, **measure.settings}) if process.main else None)[0]
    with Bar(len(batches) * steps, label, show=bool(label) and process.main) as bar:
        return measure.finish(_parts(measure, batches, store, process, bar, steps))


def _parts(
    measure: Measure, batches: Sequence[Any], store: Store, process: Process, bar: Bar, steps: int
) -> Iterator[Part]:
    """Give the part of each batch in order; batches that are not finished go to the processes in turn."""
    if store.finished:
        first = min(store.finished)
        process.gather(lambda: _compare(store, first, measure, batches[first]) if process.main else None)
    pending = [number for number in range(len(batches)) if number not in store.finished]
    rounds = (pending[start : start + process.count] for start in range(0, len(pending), process.count))
    ready: dict[int, Part] = {}
    for number in range(len(batches)):
        if number not in store.finished and number not in ready:
            ready = _measure_round(next(rounds), measure, batches, store, process)
        yield ready.pop(number) if number in ready else store.get(number)
        bar.advance((number + 1) * steps - bar.done)


def _measure_round(
    numbers: Sequence[int], measure: Measure, batches: Sequence[Any], store: Store, process: Process
) -> dict[int, Part]:
    """Let each process measure one batch, and return what all of them gave."""

    def work() -> dict[int, Part]:
        if process.index >= len(numbers):
            return {}
        number = numbers[process.index]
        part = measure.per_batch(batches[number])
        store.put(number, part)
        return {number: part}

    return {number: part for result in process.gather(work) for number, part in result.items()}


def _compare(store: Store, number: int, measure: Measure, batch: Any) -> None:
    """Measure a finished batch again; raise ``ValueError`` where it gives something else now."""
    part = store.get(number)
    for name, now in getattr(measure, "check", measure.per_batch)(batch).items():
        before = part.get(name)
        same = before is not None and before.shape == now.shape
        if not same or not torch.allclose(before.double(), now.cpu().double(), rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError(
                f"{store.folder} holds another run: {name} of batch {number} is {_few(before)} there and {_few(now)} "
                "now. Was a function changed, or a head switched off? Use another folder, checkpoint='elsewhere'"
            )


def name_of(function: Callable | str | None) -> str | None:
    """Return what tells a function from others when its content cannot be read: its module and name."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def _few(values: torch.Tensor | None) -> str:
    if values is None:
        return "nothing"
    flat = values.flatten()
    return ", ".join(f"{value:.4g}" for value in flat[:3].tolist()) + (", ..." if len(flat) > 3 else "")
