"""Statistics of rows of attention that ask for no partner: confidence, entropy, distance, rarity, content.

Unless said otherwise maps have the heads last, (B, Q, K, head), so that sums over keys and queries run along memory
for all heads at once; Q and K are units. ``allowed`` (B, Q, K) tells on which keys a look may land, ``rows`` (B, Q)
which queries count. Each statistic is a sum over queries, (B, head). Everything is on the CPU.
"""

import numpy as np
import torch
from torch import Tensor

from headtools.heads._precision import without_autocast


def strongest(maps: Tensor, allowed: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The key with the largest weight of those allowed, and that weight: both (B, Q, head), -1 and 0 for no query.

    Of equal weights the first counts.
    """
    barred = maps + torch.where(allowed, 0.0, -torch.inf)[..., None]
    weight, size = barred.amax(2), maps.shape[2]
    # Of those that equal it the first has the highest number, counted down: twice as fast as a maximum with its place,
    # and numpy compares several times faster than torch.
    down = np.arange(size, 0, -1, dtype=np.min_scalar_type(size))[:, None]
    equal = (barred.numpy() == weight[:, :, None].numpy()).view(np.uint8)
    key = size - torch.from_numpy((equal * down).max(2).astype(np.int32))
    return key.masked_fill_(~rows[..., None], -1), weight.masked_fill_(~rows[..., None], 0.0)


def entropy(maps: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the entropy of the whole row, in nats."""
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny)  # 0 log 0 is 0
    np.log(logs.numpy(), out=logs.numpy())  # several times faster than torch's
    return -_sum(logs.mul_(maps).sum(2), rows)


def distance(maps: Tensor, rows: Tensor) -> Tensor:
    """Sum over queries of the mean number of units between the query and where its weight lies."""
    far = rows[..., None] * offsets(maps[..., 0]).abs()
    return (far.flatten(1)[:, None].to(maps) @ maps.flatten(1, 2))[:, 0]


def rarity(looks: Tensor, rare: Tensor) -> Tensor:
    """Sum over queries of the rarity (B, K) of the key looked at: looks (B, Q, head), -1 for none."""
    seen = rare.gather(1, looks.clamp_min(0).long().flatten(1)).view(looks.shape)
    return (seen * (looks >= 0)).sum(1)


def content(maps: Tensor, vectors: Tensor, pairs: Tensor) -> Tensor:
    """Correlation in each sentence of weight and cosine of the embeddings, position removed: (B, head).

    ``maps`` (B, head, U, U); ``vectors`` (B, U, d) are the units' embeddings, without position; ``pairs`` (B, Q, K) the
    pairs that count. From both, weight and cosine, the mean over the pairs at the same offset of the same sentence is
    subtracted first, so that a map that depends on the offset alone scores 0 (as does one that is constant).

    >>> vectors = torch.eye(4)[[0, 1, 0, 1, 2]][None]
    >>> cosine = (vectors @ vectors.transpose(1, 2))[:, None]
    >>> round(float(content(cosine, vectors, ~torch.eye(5, dtype=torch.bool)[None])), 3)
    1.0
    """
    return correlation(maps.permute(0, 2, 3, 1), likeness(vectors, pairs), pairs)


@without_autocast
def likeness(vectors: Tensor, pairs: Tensor) -> Tensor:
    """Cosines of vectors (B, U, d), less their mean at the same offset: what :func:`correlation` compares with."""
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return _without_offset((vectors @ vectors.transpose(1, 2))[..., None], pairs)[..., 0]


@without_autocast
def correlation(maps: Tensor, likeness: Tensor, pairs: Tensor) -> Tensor:
    """Correlation of maps (B, U, U, head) with likeness (B, U * (2U - 1)) over the pairs, position removed."""
    weight = _without_offset(maps, pairs)
    common = (likeness[:, None] @ weight)[:, 0]
    size = (weight.square_().sum(1) * likeness.square().sum(1, keepdim=True)).sqrt()
    # What rounding leaves of a constant or a purely positional map is no variation.
    return torch.where(size > 1e-6, common / size.clamp_min(1e-6), 0.0)


def offsets(maps: Tensor) -> Tensor:
    """Key minus query, for each cell of maps (..., Q, K): (Q, K)."""
    queries, keys = (torch.arange(size, device=maps.device) for size in maps.shape[-2:])
    return keys - queries[:, None]


def _without_offset(values: Tensor, pairs: Tensor) -> Tensor:
    """Values (B, U, U, H) less their mean over the sentence's pairs at the same offset, 0 where there is no pair.

    Comes as (B, U * (2U - 1), H): one column for each offset.
    """
    pairs = pairs[..., None].to(values)
    values, pairs = _columns_of_offsets(values, pairs), _columns_of_offsets(pairs, pairs)
    mean = values.sum(1, keepdim=True) / pairs.sum(1, keepdim=True).clamp_min(1)
    return values.sub_(mean).mul_(pairs).flatten(1, 2)


def _columns_of_offsets(values: Tensor, pairs: Tensor) -> Tensor:
    """Move row q of values * pairs (B, U, U, H) q places to the left: (B, U, 2U - 1, H), the offset -U + 1 first."""
    size, heads = values.shape[-2:]
    wide = 2 * size - 1
    out = values.new_zeros(len(values), size * wide, heads)
    rows = out.as_strided(values.shape, (size * wide * heads, (wide - 1) * heads, heads, 1), (size - 1) * heads)
    torch.mul(values, pairs, out=rows)
    return out.view(len(values), size, wide, heads)


def _sum(values: Tensor, rows: Tensor) -> Tensor:
    return (values * rows[..., None]).sum(1)
