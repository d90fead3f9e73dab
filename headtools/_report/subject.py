"""What a report is about: a model and the sentences or batches that it is measured on, in two halves.

Heads are selected on one half and measured on the other. A score measured on the sentences for which its head was
selected would be too high: the best of a hundred noisy heads is partly the luckiest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headtools._engine.progress import advance
from headtools.heads._devices import on_device
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch
from headtools.importance.gradient import gradient
from headtools.importance.loss import labels_only_loss
from headtools.importance.objective import Objective, objective
from headtools.roles.sentence import Sentence
from headtools.roles.token_labels import token_labels

if TYPE_CHECKING:
    from headtools._report.page import Finding

EXAMPLE_WORDS = (5, 14)  # fewest and most words of the sentence whose maps are drawn
# Bytes that a forward and a backward pass over one batch may keep. Larger batches were hardly faster for a model of 135
# million parameters; smaller ones were slower, since each pass reads all weights.
ROOM = 384e6


@dataclass
class Subject:
    """A model and its corpus, and the tables measured so far, by section.

    ``objective``: what importance is measured by; None for batches, which have labels or come with a ``loss``.
    ``unlabelled_reason``: why there is neither objective nor labels, if so. ``check``: the name of a second corpus and
    its sentences or batches, if there is one. ``findings``: what the sections say on top of the page, by name.
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
    check: tuple[str, Sequence[Sentence], Sequence[Mapping]] | None = None
    tables: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)

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

    @cached_property
    def is_causal(self) -> bool:
        """Whether the model is a causal language model: it reads tokens from left to right, and nothing else."""
        reads_tokens = bool(self.sentences) or all("input_ids" in batch for batch in self.batches)
        return set(sites(self.model).kinds) == {"decoder"} and reads_tokens

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
        """Batches to select heads on, and batches to measure them on; a single batch is split by its examples.

        Sentences of like length run together, which spares padding, and as many at once as memory has room for.
        """
        if self.objective is not None:
            batches = [self.objective.batches(some) for some in (self.selection_sentences, self.test_sentences)]
            two_texts = is_encoder_decoder(self.model)
            halves = [by_length(some, two_texts, lambda batch: kept_bytes(self.model, batch)) for some in batches]
        elif len(self.batches) > 1:
            halves = self.batches[::2], self.batches[1::2]
        elif self.batches:
            halves = [[_every_second(self.batches[0], start)] for start in (0, 1)]
        else:
            raise ValueError(self.unlabelled_reason or "there are no batches")
        return tuple([on_device(self.model, batch) for batch in half] for half in halves)

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

    def slopes(self, batches: Sequence[Mapping]) -> tuple[HeadScores, HeadScores | None]:
        """Importance by gradient as ``gradient`` gives it, and the rise of the loss without each head to first order.

        Both come of one pass. The second is None for the change of the output, which has no sign.
        """
        if self.uses_output_change:
            return self.gradient(batches), None
        rows = gradient(self.model, batches, self.loss, signed=True).rows
        absolute = HeadScores.from_rows({key: row.abs() for key, row in rows.items()}, "gradient", minimum=0.0)
        return absolute, HeadScores.from_rows({key: -row for key, row in rows.items()}, "rise without the head")

    def test_losses(self) -> Callable[[nn.Module], Tensor]:
        """Return a function from the model to the loss of each example that heads are measured on, (n,)."""
        batches = self.halves[1]
        loss = self.loss_of(batches)  # now, before any head is off: it may compare with the outputs of the full model
        return lambda model: losses(model, batches, loss)

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
    by_batch = []
    for batch in each_batch(model, batches):
        by_batch.append((labels_only_loss(model, batch) if loss is None else loss(model(**batch), batch)).cpu())
        advance()
    return torch.cat(by_batch)


def example(subject: Subject) -> tuple[dict, Sequence[str] | None, Sequence[str] | None]:
    """Return one example whose maps are drawn, the tokens of its decoder and those of its input, where it has any."""
    if not subject.sentences:
        batch = next(each_batch(subject.model, subject.batches[0]))
        batch = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
        return _as_input(subject.model, batch), None, None
    min_words, max_words = EXAMPLE_WORDS
    suitable = [sentence for sentence in subject.sentences if min_words <= len(sentence.words) <= max_words]
    sentence = suitable[0] if suitable else min(subject.sentences, key=lambda sentence: len(sentence.words))
    if subject.objective is not None:
        batch = next(each_batch(subject.model, subject.objective.batches([sentence])))
    else:
        batch = dict(subject.tokenizer([" ".join(sentence.words)], return_tensors="pt"))
    input_tokens = _names(subject.tokenizer, batch["input_ids"][0])
    decoder_ids = batch.get("decoder_input_ids")
    decoder_tokens = None if decoder_ids is None else _names(subject.tokenizer, decoder_ids[0])
    return _as_input(subject.model, batch), decoder_tokens, input_tokens


def _names(tokenizer: Any, ids: Tensor) -> list[str]:
    """Return tokens as people read them, or as the tokenizer has them where it cannot be asked for their text."""
    try:
        return token_labels(tokenizer, ids)
    except (TypeError, ValueError, AttributeError, KeyError):
        return tokenizer.convert_ids_to_tokens(ids.tolist())


def by_length(
    batches: Sequence[Mapping], two_texts: bool = False, size: Callable[[Mapping], float] | None = None
) -> list[Mapping]:
    """Return texts in batches of like length, cut to the longest; batches that are not texts alone as they are.

    No text of a batch is more than 1.4 times as long as its shortest, and ``size`` of a batch, in bytes, stays below
    ``ROOM`` unless a single text takes more. With ``two_texts`` labels are a text of their own, a translation, else
    they belong to the tokens. Texts with padding on the left stay as they are, too. Losses are the same but for
    rounding.

    >>> mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    >>> found = by_length([{"input_ids": mask * 7, "attention_mask": mask, "labels": mask * 7}] * 2)
    >>> [tuple(batch["input_ids"].shape) for batch in found]
    [(2, 1), (2, 2), (2, 3)]
    """
    padding = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "labels": -100}
    rows = []
    for batch in batches:
        mask = batch.get("attention_mask")
        if not batch.keys() <= padding.keys() or not isinstance(mask, Tensor) or mask.dim() != 2:
            return list(batches)
        if (mask[:, 1:] > mask[:, :-1]).any():
            return list(batches)
        for i in range(len(mask)):
            ends = {name: int(mask[i].sum()) for name, value in batch.items() if value.dim() == 2}
            if two_texts and "labels" in ends:
                ends["labels"] = int((batch["labels"][i] != -100).nonzero().max()) + 1
            rows.append({name: value[i, : ends[name]] if name in ends else value[i] for name, value in batch.items()})

    def together(texts: Sequence[Mapping]) -> dict:
        return {
            name: torch.nn.utils.rnn.pad_sequence([row[name] for row in texts], True, padding[name])
            if texts[0][name].dim()
            else torch.stack([row[name] for row in texts])
            for name in texts[0]
        }

    batch_size = max(map(size_of, batches))
    groups: list[list[Mapping]] = []
    for row in sorted(rows, key=lambda row: len(row["input_ids"])):
        group = groups[-1] if groups else []
        fits_length = group and len(row["input_ids"]) <= 1.4 * len(group[0]["input_ids"])
        if fits_length and len(group) < batch_size and (size is None or size(together([*group, row])) < ROOM):
            group.append(row)
        else:
            groups.append([row])
    return [together(group) for group in groups]


def kept_bytes(model: nn.Module, batch: Mapping) -> int:
    """Return about how many bytes a forward and a backward pass over a batch keep.

    Of each layer the maps before and after the softmax and some sixteen states of each token, and of a language model
    four sets of logits: as they are, in single precision, their logarithms and their gradient.
    """
    every_site, examples = list(sites(model)), size_of(batch)
    tokens = next((batch[name].shape[1] for name in ("input_ids", "decoder_input_ids") if name in batch), None)
    if tokens is None:  # images, sound: as many patches as would be usual
        tokens = 200
    width = max(site.heads * site.head_dim for site in every_site if not site.empty)
    table = getattr(model, "get_output_embeddings", lambda: None)()
    classes = getattr(table, "out_features", 0)
    maps = sum(2 * site.heads * tokens * tokens for site in every_site)
    return 4 * examples * (maps + len(every_site) * 16 * tokens * width + 4 * tokens * classes)


def _as_input(model: nn.Module, batch: Mapping) -> dict:
    return on_device(model, {name: value for name, value in batch.items() if name != "labels"})
