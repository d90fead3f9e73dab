"""What a report is about: a model and the sentences or batches that it is measured on, in two halves.

Heads are selected on one half and measured on the other. A score measured on the sentences for which its head was
selected would be too high: the best of a hundred noisy heads is partly the luckiest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from headtools._report.objective import Objective, objective
from headtools._report.page import counted
from headtools.heads._devices import on_device
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.importance.gradient import gradient
from headtools.roles.corpus import corpus as read_corpus
from headtools.roles.sentence import Sentence

# Sentences that run together. Logits of many thousand words take the most memory, and larger batches are hardly faster.
TOGETHER = 8


@dataclass(frozen=True)
class Subject:
    """A model, its corpus as ``sentences`` or as ``batches``, and the batches of both halves: ``selection``, ``test``.

    ``objective``: what importance is measured by; None for batches, which have labels or come with a ``loss``.
    ``unlabelled``: why there are no batches to measure importance on, if so.
    """

    model: nn.Module
    tokenizer: Any
    sentences: Sequence[Sentence]
    batches: Sequence[Mapping]
    loss: Callable | None
    seed: int
    selection: Sequence[Mapping] = ()
    test: Sequence[Mapping] = ()
    objective: Objective | None = None
    unlabelled: str = ""

    @property
    def causal(self) -> bool:
        """Whether the model is a causal language model: it reads tokens from left to right, and nothing else."""
        reads_tokens = bool(self.sentences) or all("input_ids" in batch for batch in self.batches)
        return set(sites(self.model).kinds) == {"decoder"} and reads_tokens

    @property
    def counts(self) -> tuple[int, int]:
        """The number of examples on which heads are selected, and the number on which they are measured."""
        if self.sentences:
            return tuple(map(len, halves(self.sentences)))
        return tuple(sum(map(size_of, half)) for half in (self.selection, self.test))

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
    def by_output(self) -> bool:
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
        if self.by_output:
            return "relative change of the output"
        return "loss (nats)" if self.loss is None else "loss"

    def gradient(self, batches: Sequence[Mapping], signed: bool = False) -> HeadScores:
        """Importance by the gradient of the given loss, of the labels' cross-entropy, or of the objective."""
        if self.by_output:
            return self.objective.gradient(batches)
        return gradient(self.model, batches, self.loss, signed=signed)

    def loss_of(self, batches: Sequence[Mapping]) -> Callable | None:
        """The loss of a pruning curve on these batches; None stands for the cross-entropy of their labels."""
        return self.objective.loss(batches) if self.by_output else self.loss

    def batched(self, sentences: Sequence[Sentence]) -> list[Mapping]:
        """Return sentences as batches for the objective, few at a time and of like length, which spares padding."""
        return self.objective.batches(sorted(sentences, key=lambda sentence: len(sentence.words)), TOGETHER)


def prepare(
    model: nn.Module, corpus: Any, tokenizer: Any, *, loss: Callable | None = None, limit: int = 100, seed: int = 0
) -> Subject:
    """Return a model and its corpus, labelled and in halves; where sentences have no labels, with the reason.

    Raises ``ValueError`` for an empty corpus and ``TypeError`` for one of another kind.
    """
    sentences, batches = sentences_or_batches(corpus, limit)
    subject = Subject(model, tokenizer, sentences, batches, loss, seed)
    if sentences and tokenizer is None:
        return replace(subject, unlabelled="got sentences without the model's tokenizer: pass tokenizer=, or batches")
    if sentences:
        try:
            subject = replace(subject, objective=objective(model, tokenizer, sentences, seed=seed))
            selection, test = map(subject.batched, halves(sentences))
        except (ValueError, TypeError, RuntimeError) as error:
            return replace(subject, objective=None, unlabelled=str(error))
    elif len(batches) > 1:
        selection, test = batches[::2], batches[1::2]
    else:  # one batch is split by its examples
        selection, test = ([_every_second(batches[0], start)] for start in (0, 1))
    selection, test = ([on_device(model, batch) for batch in half] for half in (selection, test))
    return replace(subject, selection=selection, test=test)


def halves(sentences: Sequence[Sentence]) -> tuple[Sequence[Sentence], Sequence[Sentence]]:
    """Return the sentences to select heads on and those to measure them on; a single sentence serves for both."""
    return sentences[1::2] or sentences, sentences[::2]


def sentences_or_batches(corpus: Any, limit: int) -> tuple[list[Sentence], list[Mapping]]:
    """Return the corpus as sentences or as batches; the other list is empty."""
    if isinstance(corpus, (str, Path)):
        return read_corpus(corpus, limit=limit), []
    if not isinstance(corpus, Iterable):
        raise TypeError(
            f'a corpus is "organism", a treebank\'s path, sentences or batches; got {type(corpus).__name__}'
        )
    items = [corpus] if isinstance(corpus, Mapping) else list(corpus)
    if not items:
        raise ValueError('the corpus is empty: pass corpus("organism"), a treebank\'s path or batches')
    if all(isinstance(item, Sentence) for item in items):
        return items[:limit], []
    if all(isinstance(item, Mapping) for item in items):
        return [], items
    raise TypeError(f"a corpus holds Sentences or batches (dicts), this one {type(items[0]).__name__}")


def size_of(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return max(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def _every_second(batch: Mapping, start: int) -> dict:
    """Return every second example of a batch, from ``start`` on; a batch of one as it is."""
    if size_of(batch) < 2:
        return dict(batch)
    # contiguous, since models flatten their labels with view
    return {name: value[start::2].contiguous() if isinstance(value, Tensor) else value for name, value in batch.items()}
