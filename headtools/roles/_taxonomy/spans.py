"""What attention is counted between: words with the marks around them, or single tokens.

>>> words = torch.tensor([[-1, 0, 1, 1, -1]])  # [CLS] the play ##ing [SEP]
>>> units = make_units(words, torch.ones(1, 5), torch.tensor([[7, 1, 2, 3, 8]]), level="word")
>>> units.of_token, units.word
(tensor([[0, 1, 2, 2, 3]]), tensor([[-1,  0,  1, -1]]))
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast


@dataclass(frozen=True)
class Units:
    """The units of a batch, numbered from 0 in each sentence; B sentences, T tokens, U units at most.

    of_token   (B, T) unit of each token, -1 for padding
    word       (B, U) number of the unit's word, from 0; -1 for marks and where there is no unit
    real       (B, U) whether there is such a unit
    mark       (B, U) token id of a unit that is no word, else -1
    """

    of_token: Tensor
    word: Tensor
    real: Tensor
    mark: Tensor

    def part(self, first: int, last: int) -> "Units":
        """Those of some sentences, as narrow as these are: padding stands behind the text."""
        tokens = int((self.of_token[first:last] >= 0).any(0).sum())
        units = int(self.real[first:last].any(0).sum())
        of_units = (some[first:last, :units] for some in (self.word, self.real, self.mark))
        return Units(self.of_token[first:last, :tokens], *of_units)


def make_units(words: Tensor, mask: Tensor, ids: Tensor, level: str) -> Units:
    """Group tokens into units: ``words`` (B, T) as ``align`` gives them, ``mask`` and ``ids`` the batch's (B, T).

    At level 'word' neighbouring tokens of one word are one unit, and every mark is one; at level 'token' every token.
    """
    mask = mask.bool()
    before = torch.cat([torch.full_like(words[:, :1], -2), words[:, :-1]], 1)
    opens = mask & ((words != before) | (words < 0)) if level == "word" else mask
    of_token = torch.where(mask, opens.cumsum(1) - 1, -1)
    shape = len(words), int(of_token.max()) + 1
    place = of_token.clamp_min(0)
    blank = torch.full(shape, -1, dtype=torch.long, device=words.device)
    # Padding is sent to unit 0 with the value -1, and the maximum keeps what is really there.
    word = blank.scatter_reduce(1, place, torch.where(mask, words, -1), "amax")
    mark = blank.scatter_reduce(1, place, torch.where(mask & (words < 0), ids, -1), "amax")
    real = torch.arange(shape[1], device=words.device) <= of_token.amax(1, keepdim=True)
    return Units(of_token, word, real, mark)


def units_of_words(lengths: Sequence[int]) -> Units:
    """The units of sentences of nothing but words, each of one token: ``lengths`` tells how many words each has."""
    place = torch.arange(max(lengths)).expand(len(lengths), -1)
    real = place < torch.tensor(lengths)[:, None]
    word = torch.where(real, place, -1)
    return Units(word, word, real, torch.full_like(word, -1))


@without_autocast
def between(maps: Tensor, queries: Units, keys: Units) -> Tensor:
    """Maps between units: (B, head, T, S) of tokens to (B, head, U, V), summed into a unit, averaged from it.

    Rows and columns where there is no unit are 0.

    >>> units = make_units(torch.tensor([[0, 0, 1]]), torch.ones(1, 3), torch.zeros(1, 3, dtype=torch.long), "word")
    >>> between(torch.tensor([[[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]]]), units, units)
    tensor([[[[0.7500, 0.2500],
              [0.5000, 0.5000]]]])
    """
    if _plain(queries) and _plain(keys):  # one token a unit and padding behind: nothing to sum
        cut = maps[:, :, : queries.real.shape[1], : keys.real.shape[1]]
        return cut * queries.real[:, None, :, None] * keys.real[:, None, None]
    to, fro = _members(keys, maps), _members(queries, maps)
    fro = fro / fro.sum(1, keepdim=True).clamp_min(1)
    return fro.transpose(1, 2)[:, None] @ (maps.float() @ to[:, None])


@without_autocast
def means(vectors: Tensor, units: Units) -> Tensor:
    """Mean of the tokens' vectors (B, T, d) in each unit: (B, U, d); 0 where there is no unit."""
    if _plain(units):
        return vectors[:, : units.real.shape[1]].float() * units.real[:, :, None]
    member = _members(units, vectors)
    return (member / member.sum(1, keepdim=True).clamp_min(1)).transpose(1, 2) @ vectors.float()


def _plain(units: Units) -> bool:
    tokens = torch.arange(units.of_token.shape[1], device=units.of_token.device)
    return bool(((units.of_token == tokens) | (units.of_token < 0)).all())


def _members(units: Units, like: Tensor) -> Tensor:
    """Which token belongs to which unit, as 0 and 1: (B, T, U)."""
    numbers = torch.arange(units.real.shape[1], device=units.of_token.device)
    return (units.of_token[:, :, None] == numbers).float().to(like.device)
