"""What a report will cost, said before it starts: forward passes, minutes and memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from headtools._report.sections import RANDOM_POINTS
from headtools._report.subject import Subject, counted, kept_bytes
from headtools.heads._devices import device_of
from headtools.heads._tokens import model_inputs
from headtools.importance._inputs import each_batch, frozen

# Forward passes over the sentences on which heads are measured; a backward pass counts as two.
_PASSES = {"roles": 2, "importance": 6, "maps": 0, "sinks": 1, "induction": 2, "check": 4}
_POINTS = 11  # of the pruning curve in the order of the gradient, all heads and none among them


def estimate(subject: Subject, sections: Iterable[str]) -> tuple[dict[str, int], str]:
    """Return the forward passes over one batch by section, and in a sentence what they will cost.

    It takes two passes over one batch; where nothing runs the model, both are empty.
    """
    if not subject.has_importance:
        return {}, ""
    batches = list(each_batch(subject.model, subject.halves[1]))
    passes = {name: _PASSES.get(name, 0) for name in sections}
    passes["pruning"] = _POINTS + subject.orders * len(RANDOM_POINTS)
    n_passes = sum(passes.values())
    seconds = _seconds(subject, batches) * n_passes
    took = f"some {seconds:.0f} seconds" if seconds < 90 else f"some {seconds / 60:.0f} minutes"
    weights = sum(weight.numel() * weight.element_size() for weight in subject.model.parameters())
    memory = max(kept_bytes(subject.model, batch) for half in subject.halves for batch in half)
    text = (
        f"about {n_passes} forward passes over {counted(subject.counts[1], subject.unit)}, "
        f"{took if seconds >= 5 else 'a few seconds'} on {device_of(subject.model)}; "
        f"{_gigabytes(weights)} of weights and up to {_gigabytes(memory)} while it works"
    )
    return {name: n * len(batches) for name, n in passes.items()}, text


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def _seconds(subject: Subject, batches: list[dict]) -> float:
    """Return how long a forward pass over all batches takes, by the second of two over one in the middle."""
    middle = sorted(batches, key=_numbers)[len(batches) // 2]
    inputs = model_inputs(subject.model, middle)
    took = 0.0
    with torch.no_grad(), frozen(subject.model):
        for _ in range(2):
            began = time.perf_counter()
            subject.model(**inputs)
            took = time.perf_counter() - began
    return took * sum(map(_numbers, batches)) / _numbers(middle)


def _numbers(batch: Mapping) -> int:
    """Return how many numbers a model reads of a batch: its tokens or pixels."""
    return max(value.numel() for value in batch.values() if isinstance(value, Tensor))
