"""Spans: what attention is scored between, words and single special tokens (or all single tokens).

>>> words = torch.tensor([[-1, 0, 1, 1, -1]])  # [CLS] the play ##ing [SEP]
>>> spans = make_spans(words, torch.ones(1, 5), torch.tensor([[7, 1, 2, 3, 8]]), granularity="word")
>>> spans.of_token, spans.word
(tensor([[0, 1, 2, 2, 3]]), tensor([[-1,  0,  1, -1]]))
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._devices import without_autocast


@dataclass(frozen=True)
class Spans:
    """The spans of a batch, numbered from 0 in each sentence: B sentences of at most T tokens and U spans.

    of_token        (B, T) span of each token, -1 for padding
    word            (B, U) word that the span is, from 0; -1 for special tokens and where there is no span
    exists          (B, U) whether there is such a span
    special_token   (B, U) token id of a span that is not a word, else -1
    """

    of_token: Tensor
    word: Tensor
    exists: Tensor
    special_token: Tensor

    def words(self) -> list[list[int]]:
        """The word of each span, sentence by sentence."""
        return _without_padding(self.word, self.exists)

    def special_tokens(self) -> list[list[int]]:
        """The token id of each span that is not a word, else -1, sentence by sentence."""
        return _without_padding(self.special_token, self.exists)


def make_spans(words: Tensor, mask: Tensor, ids: Tensor, granularity: str) -> Spans:
    """Group tokens into spans: ``words`` (B, T) as ``align`` gives them, ``mask`` and ``ids`` (B, T) the batch's.

    With granularity 'word' neighbouring tokens of one word are one span, and so is every special token; with 'token'
    every token is one.
    """
    mask = mask.bool()
    previous = torch.cat([torch.full_like(words[:, :1], -2), words[:, :-1]], 1)
    starts_span = mask & ((words != previous) | (words < 0)) if granularity == "word" else mask
    of_token = torch.where(mask, starts_span.cumsum(1) - 1, -1)
    shape = len(words), int(of_token.max()) + 1
    index = of_token.clamp_min(0)
    empty = torch.full(shape, -1, dtype=torch.long, device=words.device)
    # Padding is scattered to span 0 with the value -1, and amax keeps what is really there.
    word = empty.scatter_reduce(1, index, torch.where(mask, words, -1), "amax")
    special_token = empty.scatter_reduce(1, index, torch.where(mask & (words < 0), ids, -1), "amax")
    exists = torch.arange(shape[1], device=words.device) <= of_token.amax(1, keepdim=True)
    return Spans(of_token, word, exists, special_token)


@without_autocast
def maps_between_spans(maps: Tensor, queries: Spans, keys: Spans) -> Tensor:
    """Maps between tokens (B, head, T, S) to maps between spans (B, head, U, V).

    Attention to a span is the sum over its tokens, attention from a span the mean over its tokens (Clark et al. 2019,
    section 4.1), so that rows still sum to 1. Rows and columns where there is no span are 0.

    >>> spans = make_spans(torch.tensor([[0, 0, 1]]), torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.long), "word")
    >>> maps_between_spans(torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]]]), spans, spans)
    tensor([[[[0.7500, 0.2500],
              [0.5000, 0.5000]]]])
    """
    if _one_token_each(queries) and _one_token_each(keys):  # nothing to sum: masking is enough
        cropped = maps[:, :, : queries.exists.shape[1], : keys.exists.shape[1]]
        return cropped * queries.exists[:, None, :, None] * keys.exists[:, None, None]
    to_span, from_span = _membership(keys, maps), _membership(queries, maps)
    from_span = from_span / from_span.sum(1, keepdim=True).clamp_min(1)
    return from_span.transpose(1, 2)[:, None] @ (maps.float() @ to_span[:, None])


@without_autocast
def span_means(vectors: Tensor, spans: Spans) -> Tensor:
    """Mean of the tokens' vectors (B, T, d) in each span: (B, U, d); 0 where there is no span."""
    if _one_token_each(spans):
        return vectors[:, : spans.exists.shape[1]].float() * spans.exists[:, :, None]
    member = _membership(spans, vectors)
    return (member / member.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2) @ vectors.float()


def _without_padding(values: Tensor, exists: Tensor) -> list[list[int]]:
    return [row[:n] for row, n in zip(values.tolist(), exists.sum(1).tolist(), strict=True)]


def _one_token_each(spans: Spans) -> bool:
    """Whether every span is one token, and padding is on the right."""
    tokens = torch.arange(spans.of_token.shape[1], device=spans.of_token.device)
    return bool(((spans.of_token == tokens) | (spans.of_token < 0)).all())


def _membership(spans: Spans, like: Tensor) -> Tensor:
    """Which token belongs to which span, as 0 and 1: (B, T, U)."""
    index = torch.arange(spans.exists.shape[1], device=spans.of_token.device)
    return (spans.of_token[:, :, None] == index).float().to(like.device)
