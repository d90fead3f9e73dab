"""What a report is about: a model, the sentences or batches it is measured on, and the two halves of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.scores import HeadScores
from headtools.importance._inputs import each_batch
from headtools.importance.gradient import gradient
from headtools.importance.loss import label_loss
from headtools.importance.objective import Objective, objective
from headtools.roles.sentence import Sentence

EXAMPLE = (5, 14)  # words of the sentence that maps are drawn for


@dataclass
class Subject:
    """What a report is about, and what it has found so far: ``tables`` by part.

    Heads are chosen on one half of the sentences and measured on the other, in every section alike. ``objective`` is
    what heads are weighed by, None for batches, whose labels or ``loss`` say so; ``unlabelled`` why there is neither.
    """

    model: nn.Module
    tokenizer: Any
    sentences: Sequence[Sentence]
    batches: Sequence[Mapping]
    loss: Callable | None
    orders: int
    seed: int
    objective: Objective | None = None
    unlabelled: str = ""
    tables: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Find what heads are weighed by and label the sentences for it; where that cannot be, keep the reason."""
        try:
            self.objective = objective(self.model, self.tokenizer, self.sentences, seed=self.seed)
            _ = self.halves  # labelled here, and kept
        except (ValueError, TypeError, RuntimeError) as error:
            self.objective, self.unlabelled = None, str(error)

    @property
    def can_weigh(self) -> bool:
        """Whether there is anything to weigh heads by."""
        return bool(self.batches) or self.objective is not None

    @property
    def chosen_on(self) -> Sequence[Sentence]:
        """The sentences that heads and offsets are chosen on; of a single one, the same."""
        return self.sentences[1::2] or self.sentences

    @property
    def measured_on(self) -> Sequence[Sentence]:
        """The sentences that what was chosen is measured on."""
        return self.sentences[::2]

    @cached_property
    def halves(self) -> tuple[Sequence[Mapping], Sequence[Mapping]]:
        """Batches to choose heads on, and others to measure them on; of a single batch, its examples."""
        if self.objective is not None:
            chosen_on = self.objective.batches(self.chosen_on)
            return chosen_on, self.objective.batches(self.measured_on)
        if not self.batches:
            raise ValueError(self.unlabelled or "there are no batches")
        if len(self.batches) > 1:
            return self.batches[::2], self.batches[1::2]
        return tuple([_rows(self.batches[0], start)] for start in (0, 1))

    @property
    def counts(self) -> tuple[int, int]:
        """How many examples heads are chosen on, and how many they are measured on."""
        if self.sentences:
            return len(self.chosen_on), len(self.measured_on)
        return tuple(sum(map(size_of, half)) for half in self.halves)

    @property
    def unit(self) -> str:
        """What is counted: sentences, or the examples of batches."""
        return "sentence" if self.sentences else "example"

    @property
    def measured(self) -> str:
        """How many sentences or examples every number of the page is of, in words."""
        return counted(self.counts[1], self.unit)

    @property
    def described(self) -> str:
        """What everything was measured on, in words."""
        chosen, measured = self.counts
        total = len(self.sentences) or sum(map(size_of, self.batches))
        in_words = counted(total, self.unit)
        if not self.sentences:
            in_words = f"{counted(len(self.batches), 'batch')} of {in_words}"
        if total < 2:
            return f"{in_words}, on which heads are chosen as well"
        return f"{in_words}: heads are chosen on {chosen} and measured on the other {measured}"

    @property
    def by_output(self) -> bool:
        """Whether heads are weighed by the change of the output, for want of a loss."""
        return self.loss is None and self.objective is not None and self.objective.name == "output"

    @property
    def weighed_by(self) -> str:
        """What importance and the pruning curve are about, in words."""
        if self.loss is not None:
            return "the loss that was given"
        return "cross-entropy of the labels" if self.objective is None else self.objective.description

    @property
    def metric(self) -> str:
        """What the pruning curve shows, with its unit."""
        if self.by_output:
            return "relative change of the output"
        return "loss (nats)" if self.loss is None else "loss"

    @cached_property
    def choice(self) -> HeadScores:
        """Gradient importance on the half that heads are chosen on."""
        return self.gradient(self.halves[0])

    def gradient(self, batches: Sequence[Mapping]) -> HeadScores:
        """Importance by gradient of the loss that was given, of the labels, or of the objective."""
        if self.objective is not None and self.loss is None:
            return self.objective.gradient(batches)
        return gradient(self.model, batches, self.loss)

    def loss_of(self, batches: Sequence[Mapping]) -> Callable | None:
        """The loss of a pruning curve on some batches; None is the cross-entropy of their labels."""
        if self.objective is not None and self.loss is None:
            return self.objective.loss(batches)
        return self.loss


def counted(number: int, what: str) -> str:
    """Write a number of things.

    >>> counted(1, "sentence"), counted(3, "batch")
    ('1 sentence', '3 batches')
    """
    return f"{number:,} {what}" + ("" if number == 1 else "es" if what.endswith("ch") else "s")


def size_of(batch: Mapping) -> int:
    """How many examples a batch has."""
    return max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def _rows(batch: Mapping, start: int) -> dict:
    """Every second example of a batch, from ``start`` on; all of a batch of one."""
    if size_of(batch) < 2:
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
    if subject.objective is not None:
        batch = next(each_batch(subject.model, subject.objective.batches(some)))
    else:
        batch = dict(subject.tokenizer([" ".join(some[0].words)], return_tensors="pt"))
    read = subject.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    inside = batch.get("decoder_input_ids")
    written = None if inside is None else subject.tokenizer.convert_ids_to_tokens(inside[0].tolist())
    return {name: value for name, value in batch.items() if name != "labels"}, written, read
