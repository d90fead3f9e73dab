"""What a report will cost, said before it starts: forward passes, minutes and memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headtools._report.sections import RANDOM_POINTS
from headtools._report.subject import Subject, counted, kept_bytes
from headtools.heads._devices import device_of
from headtools.heads._tokens import model_inputs
from headtools.importance._inputs import each_batch, frozen

# Forward passes over the sentences on which heads are measured; a backward pass counts as two.
_PASSES = {"roles": 1, "importance": 6, "maps": 0, "sinks": 1, "induction": 2, "check": 2}
_POINTS = 11  # of the pruning curve in the order of the gradient, all heads and none among them


@dataclass(frozen=True)
class Cost:
    """``steps``: forward passes over one batch, by section; ``passes``: over all of them; and what they will take."""

    steps: Mapping[str, int]
    passes: int
    seconds: float
    weights: int
    memory: int

    def text(self, subject: Subject) -> str:
        """Say it in a sentence."""
        took = f"some {self.seconds:.0f} seconds" if self.seconds < 90 else f"some {self.seconds / 60:.0f} minutes"
        return (
            f"about {self.passes} forward passes over {counted(subject.counts[1], subject.unit)}, "
            f"{took if self.seconds >= 5 else 'a few seconds'} on {device_of(subject.model)}; "
            f"{_gigabytes(self.weights)} of weights and up to {_gigabytes(self.memory)} while it works"
        )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


def estimate(subject: Subject, sections: Iterable[str]) -> Cost | None:
    """Return what a report will cost, by a pass over its first batch; None where nothing runs the model."""
    if not subject.has_importance:
        return None
    batches = list(each_batch(subject.model, subject.halves[1]))
    passes = {name: _PASSES.get(name, 0) for name in sections}
    passes["pruning"] = _POINTS + subject.orders * len(RANDOM_POINTS)
    seconds = _seconds(subject, batches)
    steps = {name: n * len(batches) for name, n in passes.items()}
    weights = sum(weight.numel() * weight.element_size() for weight in subject.model.parameters())
    memory = max(kept_bytes(subject.model, batch) for half in subject.halves for batch in half)
    return Cost(steps, sum(passes.values()), seconds * sum(passes.values()), weights, memory)


def _seconds(subject: Subject, batches: list[dict]) -> float:
    """Return how long a forward pass over all batches takes, by the second of two over one in the middle."""
    middle = sorted(batches, key=_numbers)[len(batches) // 2]
    device = device_of(subject.model)
    inputs = {name: value.to(device) if isinstance(value, Tensor) else value
              for name, value in model_inputs(subject.model, middle).items()}  # fmt: skip
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
