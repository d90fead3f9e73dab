"""What a report is about: a model and the sentences or batches that it is measured on, in two halves.

Heads are selected on one half and measured on the other. A score measured on the sentences for which its head was
selected would be too high: the best of a hundred noisy heads is partly the luckiest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.progress import advance
from headtools.heads.scores import HeadScores
from headtools.importance._inputs import each_batch
from headtools.importance.gradient import gradient
from headtools.importance.loss import labels_only_loss
from headtools.importance.objective import Objective, objective
from headtools.roles.sentence import Sentence

EXAMPLE_WORDS = (5, 14)  # fewest and most words of the sentence whose maps are drawn


@dataclass
class Subject:
    """A model and its corpus, and the tables measured so far, by section.

    ``objective``: what importance is measured by; None for batches, which have labels or come with a ``loss``.
    ``unlabelled_reason``: why there is neither objective nor labels, if so.
    """

    model: nn.Module
    tokenizer: Any
    sentences: Sequence[Sentence]
    batches: Sequence[Mapping]
    loss: Callable | None
    orders: int
    seed: int
    objective: Objective | None = None
    unlabelled_reason: str = ""
    tables: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Determine the objective and label the sentences for it; where that fails, keep the reason."""
        try:
            self.objective = objective(self.model, self.tokenizer, self.sentences, seed=self.seed)
            _ = self.halves  # a cached property: computed here, so that its errors are caught here
        except (ValueError, TypeError, RuntimeError) as error:
            self.objective, self.unlabelled_reason = None, str(error)

    @property
    def has_importance(self) -> bool:
        """Whether importance can be measured."""
        return bool(self.batches) or self.objective is not None

    @property
    def selection_sentences(self) -> Sequence[Sentence]:
        """The sentences on which heads and offsets are selected; a single sentence serves for both."""
        return self.sentences[1::2] or self.sentences

    @property
    def test_sentences(self) -> Sequence[Sentence]:
        """The sentences on which the selected heads are measured."""
        return self.sentences[::2]

    @cached_property
    def halves(self) -> tuple[Sequence[Mapping], Sequence[Mapping]]:
        """Batches to select heads on, and batches to measure them on; a single batch is split by its examples."""
        if self.objective is not None:
            return self.objective.batches(self.selection_sentences), self.objective.batches(self.test_sentences)
        if not self.batches:
            raise ValueError(self.unlabelled_reason or "there are no batches")
        if len(self.batches) > 1:
            return self.batches[::2], self.batches[1::2]
        return tuple([_every_second(self.batches[0], start)] for start in (0, 1))

    @property
    def counts(self) -> tuple[int, int]:
        """The number of examples on which heads are selected, and the number on which they are measured."""
        if self.sentences:
            return len(self.selection_sentences), len(self.test_sentences)
        return tuple(sum(map(size_of, half)) for half in self.halves)

    @property
    def unit(self) -> str:
        """What is counted: sentences, or the examples of batches."""
        return "sentence" if self.sentences else "example"

    @property
    def test_text(self) -> str:
        """The number of sentences or examples behind every number of the page, in words."""
        return counted(self.counts[1], self.unit)

    @property
    def corpus_text(self) -> str:
        """The corpus and its halves, in words."""
        n_selection, n_test = self.counts
        total = len(self.sentences) or sum(map(size_of, self.batches))
        in_words = counted(total, self.unit)
        if not self.sentences:
            in_words = f"{counted(len(self.batches), 'batch')} of {in_words}"
        if total < 2:
            return f"{in_words}, on which heads are chosen as well"
        return f"{in_words}: heads are chosen on {n_selection} and measured on the other {n_test}"

    @property
    def uses_output_change(self) -> bool:
        """Whether importance is the change of the output, because the model has no loss."""
        return self.loss is None and self.objective is not None and self.objective.name == "output"

    @property
    def measure_text(self) -> str:
        """What importance and the pruning curve measure, in words."""
        if self.loss is not None:
            return "the loss that was given"
        return "cross-entropy of the labels" if self.objective is None else self.objective.description

    @property
    def metric(self) -> str:
        """The label of the pruning curve, with its unit."""
        if self.uses_output_change:
            return "relative change of the output"
        return "loss (nats)" if self.loss is None else "loss"

    @cached_property
    def selection_scores(self) -> HeadScores:
        """Gradient importance on the half on which heads are selected."""
        return self.gradient(self.halves[0])

    def gradient(self, batches: Sequence[Mapping]) -> HeadScores:
        """Importance by the gradient of the given loss, of the labels' cross-entropy, or of the objective."""
        if self.objective is not None and self.loss is None:
            return self.objective.gradient(batches)
        return gradient(self.model, batches, self.loss)

    def loss_of(self, batches: Sequence[Mapping]) -> Callable | None:
        """The loss of a pruning curve on these batches; None stands for the cross-entropy of their labels."""
        if self.objective is not None and self.loss is None:
            return self.objective.loss(batches)
        return self.loss


def counted(n: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it needs one.

    >>> counted(1, "sentence"), counted(3, "batch")
    ('1 sentence', '3 batches')
    """
    return f"{n:,} {noun}" + ("" if n == 1 else "es" if noun.endswith("ch") else "s")


def size_of(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def _every_second(batch: Mapping, start: int) -> dict:
    """Return every second example of a batch, from ``start`` on; a batch of one as it is."""
    if size_of(batch) < 2:
        return dict(batch)
    # contiguous, since models flatten their labels with view
    return {name: value[start::2].contiguous() if isinstance(value, Tensor) else value for name, value in batch.items()}


def losses(model: nn.Module, batches: Sequence[Mapping], loss: Callable | None) -> Tensor:
    """Return the loss of each example, (n,)."""
    device = next(model.parameters()).device
    by_batch = []
    for batch in each_batch(model, batches):
        batch = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
        by_batch.append((labels_only_loss(model, batch) if loss is None else loss(model(**batch), batch)).cpu())
        advance()
    return torch.cat(by_batch)


def example(subject: Subject) -> tuple[dict, Sequence[str] | None, Sequence[str] | None]:
    """Return one example whose maps are drawn, the tokens of its decoder and those of its input, where it has any."""
    if not subject.sentences:
        batch = next(each_batch(subject.model, subject.batches[0]))
        batch = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
        return _without_labels(batch), None, None
    fewest, most = EXAMPLE_WORDS
    suitable = [sentence for sentence in subject.sentences if fewest <= len(sentence.words) <= most]
    sentence = suitable[0] if suitable else min(subject.sentences, key=lambda sentence: len(sentence.words))
    if subject.objective is not None:
        batch = next(each_batch(subject.model, subject.objective.batches([sentence])))
    else:
        batch = dict(subject.tokenizer([" ".join(sentence.words)], return_tensors="pt"))
    input_tokens = subject.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    decoder_ids = batch.get("decoder_input_ids")
    decoder_tokens = None if decoder_ids is None else subject.tokenizer.convert_ids_to_tokens(decoder_ids[0].tolist())
    return _without_labels(batch), decoder_tokens, input_tokens


def _without_labels(batch: Mapping) -> dict:
    return {name: value for name, value in batch.items() if name != "labels"}
