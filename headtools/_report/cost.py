"""What a report will cost, said before it starts: forward passes, minutes and memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from headtools._report.subject import Subject, counted, size_of
from headtools.heads._devices import device_of
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch, frozen

# Forward passes over the sentences on which heads are measured; a backward pass counts as two.
_PASSES = {"roles": 2, "importance": 6, "maps": 0, "sinks": 1, "induction": 3, "check": 4}
_POINTS = 9  # of a pruning curve, between all heads and none


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
    batches = list(each_batch(subject.model, subject.test_by_length[0]))
    passes = {name: _PASSES.get(name, 0) for name in sections}
    passes["pruning"] = (1 + subject.orders) * _POINTS + 2
    seconds = _seconds(subject, batches)
    steps = {name: n * len(batches) for name, n in passes.items()}
    weights = sum(weight.numel() * weight.element_size() for weight in subject.model.parameters())
    memory = max(_activations(subject, batch) for half in subject.halves for batch in half)
    return Cost(steps, sum(passes.values()), seconds * sum(passes.values()), weights, memory)


def _seconds(subject: Subject, batches: list[dict]) -> float:
    """Return how long a forward pass over all batches takes, by the second of two over the largest."""
    largest = max(batches, key=_numbers)
    device = device_of(subject.model)
    inputs = {name: value.to(device) if isinstance(value, Tensor) else value
              for name, value in model_inputs(subject.model, largest).items()}  # fmt: skip
    took = 0.0
    with torch.no_grad(), frozen(subject.model):
        for _ in range(2):
            began = time.perf_counter()
            subject.model(**inputs)
            took = time.perf_counter() - began
    return took * sum(map(_numbers, batches)) / _numbers(largest)


def _numbers(batch: Mapping) -> int:
    """Return how many numbers a model reads of a batch: its tokens or pixels."""
    return max(value.numel() for value in batch.values() if isinstance(value, Tensor))


def _activations(subject: Subject, batch: Mapping) -> int:
    """Return about how many bytes a forward and a backward pass over a batch keep.

    Of each layer the maps before and after the softmax and some sixteen states of each token, and of a language model
    four sets of logits: as they are, in single precision, their logarithms and their gradient.
    """
    found, examples = list(sites(subject.model)), size_of(batch)
    tokens = next((batch[name].shape[1] for name in ("input_ids", "decoder_input_ids") if name in batch), None)
    if tokens is None:  # images, sound: as many patches as would be usual
        tokens = 200
    width = max(site.heads * site.head_dim for site in found if not site.empty)
    table = getattr(subject.model, "get_output_embeddings", lambda: None)()
    classes = getattr(table, "out_features", 0)
    maps = sum(2 * site.heads * tokens * tokens for site in found)
    return 4 * examples * (maps + len(found) * 16 * tokens * width + 4 * tokens * classes)
