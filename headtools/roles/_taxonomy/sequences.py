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

from headtools.heads._devices import device_of
from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.record import backbone
from headtools.roles._taxonomy.spans import Spans, make_spans, span_means
from headtools.roles.conventions import Conventions
from headtools.roles.sentence import Sentence
from headtools.roles.word_alignment import align


@dataclass(frozen=True)
class AttentionSequences:
    """The query sequences and key sequences of one kind of attention in one batch, as spans of annotated sentences.

    ``sentences`` are those of the keys; in cross-attention they carry the alignment of the queries. ``embeddings()``
    gives the embeddings of the spans, (B, U, d) (None: no content similarity).
    """

    kind: str
    sentences: Sequence[Sentence]
    queries: Spans
    keys: Spans
    embeddings: Callable[[], Tensor] | None = None


def make_sequences(
    model: nn.Module | None,
    tokenizer: object,
    sentences: Sequence[Sentence],
    kinds: Sequence[str],
    conventions: Conventions,
    translated: bool,
) -> tuple[MutableMapping[str, Tensor], dict[str, AttentionSequences]]:
    """Return a batch for the model, and the sequences of each kind of attention; without a model no embeddings."""
    batch, source_words = align(tokenizer, sentences, padding_side="right")
    source = make_spans(source_words, batch["attention_mask"], batch["input_ids"], conventions.granularity)
    sequences = {}
    for kind in [kind for kind in kinds if kind == "encoder" or (kind == "decoder" and not translated)]:
        embeddings = _embeddings(model, batch["input_ids"], source)
        sequences[kind] = AttentionSequences(kind, sentences, source, source, embeddings)
    if translated and {"decoder", "cross"} & {*kinds}:
        target_batch, target_words = align(tokenizer, [s.target for s in sentences], padding_side="right")
        ids, mask = target_batch["input_ids"], target_batch["attention_mask"]
        output_spans = make_spans(target_words, mask, ids, conventions.granularity)
        # The decoder reads one word behind what it writes; its start token is no word.
        shifted_words = torch.cat([torch.full_like(target_words[:, :1], -1), target_words[:, :-1]], 1)
        decoder_ids = _shift_right(model, ids)
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = decoder_ids, mask
        input_spans = make_spans(shifted_words, mask, decoder_ids, conventions.granularity)
        if "decoder" in kinds:
            targets = [_without_annotation(s.target) for s in sentences]
            embeddings = _embeddings(model, decoder_ids, input_spans)
            sequences["decoder"] = AttentionSequences("decoder", targets, input_spans, input_spans, embeddings)
        if "cross" in kinds:
            # Position t reads word t - 1 and writes word t: a map belongs to either.
            queries = output_spans if conventions.cross == "writes" else input_spans
            sequences["cross"] = AttentionSequences("cross", sentences, queries, source)
    return batch, sequences


def run_model(model: nn.Module, batch: Mapping[str, Tensor], encoder_only: bool) -> None:
    """Run the model without computing its logits, or only the encoder of a model that has a decoder too."""
    if encoder_only and is_encoder_decoder(model):
        model.get_encoder()(**batch)
    else:
        backbone(model, batch)(**batch)


def _shift_right(model: nn.Module | None, ids: Tensor) -> Tensor:
    """What the decoder reads so that it writes ``ids``: its start token, then all but the last."""
    start = 0 if model is None else model.config.decoder_start_token_id
    if start is None:
        start = model.config.pad_token_id
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)


def _without_annotation(words: tuple[str, ...]) -> Sentence:
    n = len(words)
    return Sentence(words, (0,) * n, ("root",) * n, ("_",) * n, (0,) * n)


def _embeddings(model: nn.Module | None, ids: Tensor, spans: Spans) -> Callable[[], Tensor] | None:
    table = None if model is None else model.get_input_embeddings()
    return None if table is None else lambda: span_means(table(ids.to(device_of(model))).cpu(), spans)
