"""What a report is about: a model, the sentences or batches it is measured on, and the two halves of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.scores import HeadScores
from headtools.importance.gradient import gradient
from headtools.importance.inputs import each_batch
from headtools.importance.labels import label
from headtools.importance.loss import label_loss
from headtools.roles.corpus import Sentence

EXAMPLE = (5, 14)  # words of the sentence that maps are drawn for


@dataclass
class Subject:
    """What a report is about, and what it has found so far: ``tables`` by part, ``order`` of the heads."""

    model: nn.Module
    tokenizer: Any
    sentences: Sequence[Sentence]
    batches: Sequence[Mapping]
    loss: Callable | None
    orders: int
    seed: int
    unlabelled: str = ""
    tables: dict[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """What it was measured on, in words."""
        n, what = (len(self.sentences), "sentence") if self.sentences else (len(self.batches), "batch")
        return f"{n} {what}{'' if n == 1 else 'es' if what == 'batch' else 's'}"

    @property
    def halves(self) -> tuple[Sequence[Mapping], Sequence[Mapping]]:
        """Batches to choose heads on, and others to measure them on; of a single batch, its examples."""
        if not self.batches:
            raise ValueError(self.unlabelled or "there are no batches")
        if len(self.batches) > 1:
            return self.batches[::2], self.batches[1::2]
        return tuple([_rows(self.batches[0], start)] for start in (0, 1))

    @cached_property
    def choice(self) -> HeadScores:
        """Gradient importance on the half that heads are chosen on."""
        return gradient(self.model, self.halves[0], self.loss)


def _rows(batch: Mapping, start: int) -> dict:
    """Every second example of a batch, from ``start`` on; all of a batch of one."""
    size = max(len(value) for value in batch.values() if isinstance(value, Tensor))
    if size < 2:
        return dict(batch)
    # contiguous, since models flatten their labels with view
    return {name: value[start::2].contiguous() if isinstance(value, Tensor) else value for name, value in batch.items()}


def losses(model: nn.Module, batches: Sequence[Mapping], loss: Callable | None) -> Tensor:
    """Return the loss of every example, (n,)."""
    at = next(model.parameters()).device
    found = []
    for batch in each_batch(model, batches):
        batch = {name: value.to(at) if isinstance(value, Tensor) else value for name, value in batch.items()}
        outputs = model(**batch)
        found.append((label_loss(model, outputs, batch) if loss is None else loss(outputs, batch)).cpu())
    return torch.cat(found)


def example(subject: Subject) -> tuple[dict, Sequence[str] | None, Sequence[str] | None]:
    """Return one example to draw maps of, its decoder's tokens and the tokens that are read, where there are any."""
    if not subject.sentences:
        first = next(each_batch(subject.model, subject.batches[0]))
        return (
            {name: v[:1] if isinstance(v, Tensor) else v for name, v in first.items() if name != "labels"},
            None,
            None,
        )
    fits = [s for s in subject.sentences if EXAMPLE[0] <= len(s.words) <= EXAMPLE[1]] or subject.sentences
    some = [min(fits, key=lambda s: len(s.words)) if fits is subject.sentences else fits[0]]
    if subject.batches:
        batch = next(each_batch(subject.model, label(subject.model, subject.tokenizer, some, seed=subject.seed)))
    else:
        batch = dict(subject.tokenizer([" ".join(some[0].words)], return_tensors="pt"))
    read = subject.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    inside = batch.get("decoder_input_ids")
    written = None if inside is None else subject.tokenizer.convert_ids_to_tokens(inside[0].tolist())
    return {name: value for name, value in batch.items() if name != "labels"}, written, read
