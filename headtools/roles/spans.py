"""Spans: what attention is scored between, words and single special tokens; and maps between spans, made of tokens'."""

from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._devices import without_autocast


@dataclass(frozen=True)
class Spans:
    """The spans of a batch, numbered from 0 in each sentence: B sentences of at most T tokens and U spans.

    of_token        (B, T) span of each token, -1 for padding
    word            (B, U) word that the span is, from 0; -1 for special tokens and where there is no span
    special_token   (B, U) token id of a span that is not a word, else -1
    exists          (B, U) whether there is such a span
    """

    of_token: Tensor
    word: Tensor
    special_token: Tensor
    exists: Tensor


def make_spans(words: Tensor, mask: Tensor, ids: Tensor) -> Spans:
    """Group tokens into spans: ``words`` (B, T) as ``align`` gives them, ``mask`` and ``ids`` (B, T) the batch's.

    Neighbouring tokens of one word are one span, and so is every special token.

    >>> words = torch.tensor([[-1, 0, 1, 1, -1]])  # [CLS] the play ##ing [SEP]
    >>> make_spans(words, torch.ones(1, 5), torch.tensor([[7, 1, 2, 3, 8]])).of_token
    tensor([[0, 1, 2, 2, 3]])
    """
    mask = mask.bool()
    previous = torch.cat([torch.full_like(words[:, :1], -2), words[:, :-1]], 1)
    starts_span = mask & ((words != previous) | (words < 0))
    of_token = torch.where(mask, starts_span.cumsum(1) - 1, -1)
    empty = torch.full((len(words), int(of_token.max()) + 1), -1)
    # Padding is scattered to span 0 with the value -1, and amax keeps what is really there.
    index = of_token.clamp_min(0)
    word = empty.scatter_reduce(1, index, torch.where(mask, words, -1), "amax")
    special_token = empty.scatter_reduce(1, index, torch.where(mask & (words < 0), ids, -1), "amax")
    exists = torch.arange(empty.shape[1]) <= of_token.amax(1, keepdim=True)
    return Spans(of_token, word, special_token, exists)


def visible_keys(kind: str, queries: Tensor, keys: Tensor) -> Tensor:
    """Which keys each query can see in one kind of attention: (B, Q) and (B, K), true for what exists, to (B, Q, K).

    In a decoder a query sees itself and what precedes it. A sliding window is not known here: what is outside has
    weight 0, but counts as seen in what chance scores.

    >>> visible_keys("decoder", *[torch.tensor([[True, True, False]])] * 2).int()
    tensor([[[1, 0, 0],
             [1, 1, 0],
             [0, 0, 0]]], dtype=torch.int32)
    """
    visible = queries[:, :, None] & keys[:, None]
    return visible.tril() if kind == "decoder" else visible


@without_autocast
def between_groups(maps: Tensor, queries: Tensor, keys: Tensor, n_queries: int, n_keys: int, first: int = 0) -> Tensor:
    """Maps between tokens (B, head, T, S) to maps between groups of tokens (B, head, n_queries, n_keys), float32.

    ``queries`` (B, T) and ``keys`` (B, S) have the group of each token, any other number for none. Attention to a group
    is the sum over its tokens, attention from a group the mean over its tokens (Clark et al. 2019, section 4.1), so
    that rows still sum to 1. Rows and columns of groups without a token are 0. Rows of queries from ``first`` on give
    what they add to the result.
    """
    # one matrix of 0 and 1 for each side, (B, tokens, groups)
    from_group = group_means(queries, n_queries)[..., first : first + maps.shape[-2]].to(maps.device)
    to_group = (keys[..., None] == torch.arange(n_keys, device=keys.device)).float().to(maps.device)
    return from_group[:, None] @ (maps.float() @ to_group[:, None])


def group_means(groups: Tensor, n: int) -> Tensor:
    """The matrix (B, n, T) that takes the mean over the tokens of each group, by the group of each token (B, T)."""
    member = (groups[..., None] == torch.arange(n, device=groups.device)).float()
    return (member / member.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2)
