"""One loop over batches for every measure: progress, resuming and several processes are handled here.

A measure says what is computed from one batch and how the results are combined::

    class Loss:
        settings = {}
        def per_batch(self, batch): return {"loss": losses(model, batch)}
        def finish(self, parts): return torch.cat([part["loss"] for part in parts]).mean()

    run(Loss(), model, batches, checkpoint="folder")

``finish`` gets the parts in the order of the batches, one at a time, while they are measured: a measure that sums them
needs the memory of one batch, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from headtools._engine.processes import Process, current_process
from headtools._engine.progress import ProgressBar
from headtools._engine.store import Part, Store, fingerprint, summary


class Measure(Protocol):
    """What is measured.

    ``settings``: everything besides model and batches that determines the numbers, as JSON can hold it; a stopped run
    resumes only with equal settings. ``per_batch`` returns tensors by name, ``finish`` the result of all of them, in
    order. A measure whose batches take long may have ``check(batch)``, which returns some of these tensors cheaply.
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
    """Measure every batch that a stopped run has not finished, and return what ``measure.finish`` makes of all.

    ``checkpoint``: a folder that keeps each batch's tensors as soon as they are computed. On resuming, the first
    finished batch is measured once more, because functions and hooks have no fingerprint. ``label`` shows a progress
    bar, of ``steps`` per batch. Inside ``sharded()`` each process measures some batches, and all return the same.

    Raises ``ValueError`` for a folder that holds another run, and where processes have different models or batches.
    """
    process = current_process()
    if checkpoint is None and process.count == 1 and not label:
        return measure.finish(measure.per_batch(batch) for batch in batches)
    batches = list(batches)
    identity: dict[str, Any] = {}
    if process.count > 1:
        process.assert_same(fingerprint([summary(model), batches, dict(measure.settings)]), "models or batches")
    if checkpoint is not None:
        identity = {"measure": type(measure).__name__, "model": fingerprint(model), "batches": fingerprint(batches)}
    # only the main process opens the folder and writes its settings; the others get a copy of its Store
    store = process.gather(lambda: Store(checkpoint, {**identity, **measure.settings}) if process.main else None)[0]
    with ProgressBar(len(batches) * steps, label, show=bool(label) and process.main) as bar:
        return measure.finish(_parts(measure, batches, store, process, bar, steps))


def _parts(
    measure: Measure, batches: Sequence[Any], store: Store, process: Process, bar: ProgressBar, steps: int
) -> Iterator[Part]:
    """Yield the part of each batch in order; unfinished batches are dealt out to the processes in rounds."""
    if store.finished:
        first = min(store.finished)
        process.gather(lambda: _check_same(store, first, measure, batches[first]) if process.main else None)
    pending = [index for index in range(len(batches)) if index not in store.finished]
    rounds = (pending[start : start + process.count] for start in range(0, len(pending), process.count))
    ready: dict[int, Part] = {}
    for index in range(len(batches)):
        if index not in store.finished and index not in ready:
            ready = _measure_round(next(rounds), measure, batches, store, process)
        yield ready.pop(index) if index in ready else store.get(index)
        bar.advance((index + 1) * steps - bar.done)  # a measure that advances the bar itself has done some of them


def _measure_round(
    indices: Sequence[int], measure: Measure, batches: Sequence[Any], store: Store, process: Process
) -> dict[int, Part]:
    """Let each process measure one batch, and return the parts of all of them, by batch index."""

    def work() -> dict[int, Part]:
        if process.index >= len(indices):
            return {}
        index = indices[process.index]
        part = measure.per_batch(batches[index])
        store.put(index, part)
        return {index: part}

    return {index: part for result in process.gather(work) for index, part in result.items()}


def _check_same(store: Store, index: int, measure: Measure, batch: Any) -> None:
    """Measure a finished batch again; raise ``ValueError`` where the result differs from the stored one."""
    part = store.get(index)
    for name, now in getattr(measure, "check", measure.per_batch)(batch).items():
        stored = part.get(name)
        same = stored is not None and stored.shape == now.shape
        if not same or not torch.allclose(stored.double(), now.cpu().double(), rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError(
                f"{store.folder} holds another run: {name} of batch {index} is {_first_values(stored)} there and "
                f"{_first_values(now)} now. Was a function changed, or a head switched off? Use another folder, "
                "checkpoint='elsewhere'"
            )


def function_name(function: Callable | str | None) -> str | None:
    """Return what identifies a function, whose content has no fingerprint: its module and name."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def _first_values(values: torch.Tensor | None) -> str:
    if values is None:
        return "nothing"
    flat = values.flatten()
    return ", ".join(f"{value:.4g}" for value in flat[:3].tolist()) + (", ..." if len(flat) > 3 else "")
