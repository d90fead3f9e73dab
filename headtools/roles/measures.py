"""Statistics of rows of attention that ask for no partner: confidence, entropy, distance, rarity, content.

Maps are (B, head, Q, K) between units, ``visible`` and ``allowed`` (B, Q, K) tell which keys a row can see and on
which of them a look may land, ``rows`` (B, Q) which queries count. Each gives sums over queries, (B, head).
"""

import torch
from torch import Tensor


def confidence(maps: Tensor, allowed: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the largest weight on an allowed key (Voita et al. 2019, section 4)."""
    return _sum(maps.masked_fill(~allowed[:, None], 0.0).amax(-1), rows)


def entropy(maps: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the entropy of the whole row, in nats."""
    return _sum(torch.special.entr(maps).sum(-1), rows)


def distance(maps: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the mean number of units between the query and where its weight lies."""
    return _sum((maps * offsets(maps).abs()).sum(-1), rows)


def rarity(looks: Tensor, rare: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the rarity (B, K) of the key looked at: looks (B, head, Q), -1 for none."""
    return _sum(rare[:, None].expand(*looks.shape[:2], -1).gather(-1, looks.clamp_min(0)) * (looks >= 0), rows)


def content(maps: Tensor, vectors: Tensor, pairs: Tensor) -> Tensor:
    """Correlation in each sentence of weight and cosine of the embeddings, position removed: (B, head).

    ``vectors`` (B, U, d) are the units' embeddings, without position; ``pairs`` (B, Q, K) the pairs that count. From
    both, weight and cosine, the mean over the pairs at the same offset of the same sentence is subtracted first, so
    that a map that depends on the offset alone scores 0 (as does one that is constant).

    >>> vectors = torch.eye(4)[[0, 1, 0, 1, 2]][None]
    >>> cosine = (vectors @ vectors.transpose(1, 2))[:, None]
    >>> round(float(content(cosine, vectors, ~torch.eye(5, dtype=torch.bool)[None])), 3)
    1.0
    """
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    cosine = (vectors @ vectors.transpose(1, 2))[:, None]
    a, c = _without_offset(maps, pairs), _without_offset(cosine, pairs)
    size = (a.square().sum((-1, -2)) * c.square().sum((-1, -2))).sqrt()
    # What rounding leaves of a constant or a purely positional map is no variation.
    return torch.where(size > 1e-6, (a * c).sum((-1, -2)) / size.clamp_min(1e-6), 0.0)


def offsets(maps: Tensor) -> Tensor:
    """Key minus query, for each cell of maps: (Q, K)."""
    q, k = (torch.arange(size, device=maps.device) for size in maps.shape[-2:])
    return k - q[:, None]


def _without_offset(values: Tensor, pairs: Tensor) -> Tensor:
    """Values (B, H, U, U) less their mean over the sentence's pairs at the same offset; 0 where there is no pair."""
    size = values.shape[-1]
    place = (offsets(values) + size - 1).flatten()
    flat = (values * pairs[:, None]).flatten(-2)
    sums = flat.new_zeros(*flat.shape[:-1], 2 * size - 1).index_add_(-1, place, flat)
    count = flat.new_zeros(len(flat), 1, 2 * size - 1).index_add_(-1, place, pairs[:, None].flatten(-2).to(flat))
    mean = (sums / count.clamp_min(1))[..., place].view(values.shape)
    return (values - mean) * pairs[:, None]


def _sum(values: Tensor, rows: Tensor) -> Tensor:
    return (values * rows[:, None]).sum(-1)
