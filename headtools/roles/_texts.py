"""Batches for a model, and the queries and keys of each kind of attention in them.

- Padding is on the right, whichever side the tokenizer pads: a model that counts positions from the left (GPT-2) then
  reads a sentence at the same positions, whatever is beside it in the batch.
- The decoder of an encoder-decoder reads its target shifted by one: position t reads word t - 1 and writes word t. For
  its self-attention the spans are the words read; in cross-attention the word that a position writes is the query.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._devices import device_of
from headtools.roles.sentence import Sentence
from headtools.roles.spans import Spans, make_spans
from headtools.roles.word_alignment import align


@dataclass(frozen=True)
class Text:
    """The queries and keys of one kind of attention in one batch, as spans of annotated sentences.

    ``sentences`` are those of the keys; in cross-attention they carry the alignment of the queries. ``embeddings``
    (B, T, d) are those of the tokens of the keys; None in cross-attention, and where the model has none.
    """

    kind: str
    sentences: Sequence[Sentence]
    queries: Spans
    keys: Spans
    embeddings: Tensor | None = None


def make_texts(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], kinds: Sequence[str], translated: bool
) -> tuple[MutableMapping[str, Tensor], dict[str, Text]]:
    """Return a batch for the model, and what attends to what in each kind of its attention.

    ``translated``: the sentences have targets, which the decoder of an encoder-decoder model reads.
    """
    table = model.get_input_embeddings()

    def text(kind: str, sentences: Sequence[Sentence], spans: Spans, ids: Tensor) -> Text:
        embeddings = None if table is None else table(ids.to(device_of(model))).cpu()
        return Text(kind, sentences, spans, spans, embeddings)

    batch, words = align(tokenizer, sentences, padding_side="right")
    source = make_spans(words, batch["attention_mask"], batch["input_ids"])
    texts = {
        kind: text(kind, sentences, source, batch["input_ids"])
        for kind in kinds
        if kind == "encoder" or (kind == "decoder" and not translated)
    }
    if translated and {"decoder", "cross"} & {*kinds}:
        target, words = align(tokenizer, [s.target for s in sentences], padding_side="right")
        ids, mask = target["input_ids"], target["attention_mask"]
        start = model.config.decoder_start_token_id
        start = model.config.pad_token_id if start is None else start
        # The decoder reads one word behind what it writes; its start token is no word.
        read_ids = torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], 1)
        read_words = torch.cat([torch.full_like(words[:, :1], -1), words[:, :-1]], 1)
        batch["decoder_input_ids"], batch["decoder_attention_mask"] = read_ids, mask
        if "decoder" in kinds:
            bare = [without_annotation(s.target) for s in sentences]
            texts["decoder"] = text("decoder", bare, make_spans(read_words, mask, read_ids), read_ids)
        if "cross" in kinds:
            texts["cross"] = Text("cross", sentences, make_spans(words, mask, ids), source)
    return batch, texts


def without_annotation(words: tuple[str, ...]) -> Sentence:
    """A sentence of which only the words are known."""
    n = len(words)
    return Sentence(words, (0,) * n, ("root",) * n, ("_",) * n, (0,) * n)
