"""Batches for a model, and the queries and keys of each kind of attention in them.

What has to be right here:

- Padding is on the right, whichever side the tokenizer pads: a model that counts positions from the left (GPT-2) then
  reads a sentence at the same positions, whatever is beside it in the batch.
- A decoder reads its target shifted by one: position t reads word t - 1 and writes word t. For its self-attention the
  spans are the words read; for cross-attention ``Conventions.cross`` says which of the two words queries.
- In self-attention queries and keys are the same ``Spans`` object.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._backbone import backbone
from headtools.heads._devices import device_of
from headtools.roles._taxonomy.annotation import Annotation, Vocabulary, annotate
from headtools.roles._taxonomy.spans import Spans, make_spans, span_means, spans_of_words
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align


@dataclass(frozen=True)
class AttentionSequences:
    """The query sequences and key sequences of one kind of attention in one batch, as spans of annotated sentences.

    ``sentences`` are those of the keys, and ``annotation`` is theirs; in cross-attention they carry the alignment of
    the queries. ``embeddings(first, last)`` gives the embeddings of the spans of some sentences, (last - first, U, d),
    cut to the longest of them (None: no content similarity).
    """

    kind: str
    sentences: Sequence[Sentence]
    annotation: Annotation
    queries: Spans
    keys: Spans
    vocabulary: Vocabulary
    embeddings: Callable[[int, int], Tensor] | None = None

    @property
    def causal(self) -> bool:
        """Whether a query sees only itself and what precedes it."""
        return self.kind == "decoder"


def make_sequences(
    model: nn.Module | None, tokenizer: object, sentences: Sequence[Sentence], kinds: Sequence[str],
    conventions: Conventions, vocabulary: Vocabulary, translated: bool,
) -> tuple[object, dict[str, AttentionSequences]]:  # fmt: skip
    """Return a batch for the model, and the sequences of each kind of attention; without a model no embeddings."""
    batch, source_words = _pad_right(*align(tokenizer, sentences))
    source = make_spans(source_words, batch["attention_mask"], batch["input_ids"], conventions.granularity)
    annotation = annotate(sentences, vocabulary)
    sequences = {}
    for kind in [kind for kind in kinds if kind == "encoder" or (kind == "decoder" and not translated)]:
        embeddings = _embeddings(model, batch["input_ids"], source)
        sequences[kind] = AttentionSequences(kind, sentences, annotation, source, source, vocabulary, embeddings)
    if translated and {"decoder", "cross"} & {*kinds}:
        target_batch, target_words = _pad_right(*align(tokenizer, [s.target for s in sentences]))
        ids, mask = target_batch["input_ids"], target_batch["attention_mask"]
        output_spans = make_spans(target_words, mask, ids, conventions.granularity)
        # The decoder reads one word behind what it writes; its start token is no word.
        shifted_words = torch.cat([torch.full_like(target_words[:, :1], -1), target_words[:, :-1]], 1)
        decoder_ids = _shift_right(model, ids)
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = decoder_ids, mask
        input_spans = make_spans(shifted_words, mask, decoder_ids, conventions.granularity)
        if "decoder" in kinds:
            targets = [_without_annotation(s.target) for s in sentences]
            sequences["decoder"] = AttentionSequences(
                "decoder", targets, annotate(targets, vocabulary), input_spans, input_spans, vocabulary,
                _embeddings(model, decoder_ids, input_spans),
            )  # fmt: skip
        if "cross" in kinds:
            # Position t reads word t - 1 and writes word t: a map belongs to either.
            queries = output_spans if conventions.cross == "writes" else input_spans
            sequences["cross"] = AttentionSequences("cross", sentences, annotation, queries, source, vocabulary)
    return batch, sequences


def make_word_sequences(
    sentences: Sequence[Sentence], kinds: Sequence[str], vocabulary: Vocabulary, translated: bool
) -> dict[str, AttentionSequences]:
    """Return the sequences of each kind of attention without tokenizing: enough to count offsets between words.

    Special tokens precede the first word or follow the last, so that between two words there are as many spans as
    words, with them or without.
    """
    annotation, source = annotate(sentences, vocabulary), spans_of_words([len(s.words) for s in sentences])
    sequences = {kind: AttentionSequences(kind, sentences, annotation, source, source, vocabulary)
                 for kind in kinds if kind == "encoder" or (kind == "decoder" and not translated)}  # fmt: skip
    if translated and "cross" in kinds:
        output_spans = spans_of_words([len(s.target) for s in sentences])
        sequences["cross"] = AttentionSequences("cross", sentences, annotation, output_spans, source, vocabulary)
    return sequences


def slice_batch(batch: Mapping[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """Some sentences of a batch, cut to the longest of them: padding is on the right.

    >>> ids, mask = torch.tensor([[5, 6, 7], [8, 9, 0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    >>> slice_batch({"input_ids": ids, "attention_mask": mask}, 1, 2)["input_ids"]
    tensor([[8, 9]])
    """
    out = {}
    for name, value in batch.items():
        mask = batch["decoder_attention_mask" if name.startswith("decoder_") else "attention_mask"]
        by_token = value.shape == mask.shape
        out[name] = value[first:last, : int(mask[first:last].sum(1).max())] if by_token else value[first:last]
    return out


def run_model(model: nn.Module, batch: Mapping[str, Tensor], encoder_only: bool) -> None:
    """Run the model without computing its logits, or only the encoder of a model that has a decoder too."""
    if encoder_only and getattr(model.config, "is_encoder_decoder", False):
        model.get_encoder()(**batch)
    else:
        backbone(model, batch)(**batch)


def _pad_right(batch: MutableMapping[str, Tensor], words: Tensor) -> tuple[MutableMapping[str, Tensor], Tensor]:
    """Move all padding behind the text."""
    mask = batch["attention_mask"].bool()
    if not (mask[:, 1:] & ~mask[:, :-1]).any():
        return batch, words
    # Stable, so that the text keeps its order.
    order = mask.long().argsort(dim=1, descending=True, stable=True)
    for name, values in batch.items():
        if values.shape == order.shape:
            batch[name] = values.gather(1, order)
    return batch, words.gather(1, order)


def _shift_right(model: nn.Module | None, ids: Tensor) -> Tensor:
    """What the decoder reads so that it writes ``ids``: its start token, then all but the last."""
    start = 0 if model is None else model.config.decoder_start_token_id
    if start is None:
        start = model.config.pad_token_id
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _without_annotation(words: tuple[str, ...]) -> Sentence:
    n = len(words)
    return Sentence(words, (0,) * n, ("root",) * n, ("_",) * n, (0,) * n)


def _embeddings(model: nn.Module | None, ids: Tensor, spans: Spans) -> Callable[[int, int], Tensor] | None:
    table = None if model is None else model.get_input_embeddings()
    if table is None:
        return None

    def embeddings(first: int, last: int) -> Tensor:
        batch_spans = spans.slice(first, last)
        batch_ids = ids[first:last, : batch_spans.of_token.shape[1]]
        return span_means(table(batch_ids.to(device_of(model))).cpu(), batch_spans)

    return embeddings
