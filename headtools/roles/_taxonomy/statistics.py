"""Statistics of attention maps that need no targets: argmax key, entropy, distance, rarity, correlation with content.

Shapes and devices, which are chosen for speed:

- Maps have the heads last, (B, Q, K, head), Q and K being spans: sums over keys and queries then run along memory for
  all heads at once. Each statistic is a sum over queries, (B, head).
- Everything is on the CPU: numpy takes logarithms and compares several times faster than torch does there.

``candidates`` (B, Q, K) are the keys over which the argmax is taken, ``scored`` (B, Q) the queries that are counted.
"""

import numpy as np
import torch
from torch import Tensor

from headtools.heads._devices import without_autocast


def argmax_key(maps: Tensor, candidates: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """The candidate with the largest weight, and that weight: both (B, Q, head), -1 and 0 for a query not counted.

    Of equal weights the first counts.
    """
    masked = maps + torch.where(candidates, 0.0, -torch.inf)[..., None]
    weight, n_keys = masked.amax(2), maps.shape[2]
    # Number the keys backwards: of the keys that equal the maximum the first has the highest number. This takes half
    # the time of a maximum with its index.
    backwards = np.arange(n_keys, 0, -1, dtype=np.min_scalar_type(n_keys))[:, None]
    equal = (masked.numpy() == weight[:, :, None].numpy()).view(np.uint8)
    key = n_keys - torch.from_numpy((equal * backwards).max(2).astype(np.int32))
    return key.masked_fill_(~scored[..., None], -1), weight.masked_fill_(~scored[..., None], 0.0)


def entropy(maps: Tensor, scored: Tensor) -> Tensor:
    """Sum over queries of the entropy of the row, over all keys, in nats."""
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny)  # 0 log 0 is 0
    np.log(logs.numpy(), out=logs.numpy())
    return -(logs.mul_(maps).sum(2) * scored[..., None]).sum(1)


def distance(maps: Tensor, scored: Tensor) -> Tensor:
    """Sum over queries of the mean distance of the attended key, Σ_k A_qk |k − q| (Vig and Belinkov 2019)."""
    distances = scored[..., None] * offsets(maps[..., 0]).abs()
    return (distances.flatten(1)[:, None].to(maps) @ maps.flatten(1, 2))[:, 0]


def rarity(keys: Tensor, key_rarity: Tensor) -> Tensor:
    """Sum over queries of the rarity (B, K) of the argmax key: keys (B, Q, head), -1 for none."""
    attended = key_rarity.gather(1, keys.clamp_min(0).long().flatten(1)).view(keys.shape)
    return (attended * (keys >= 0)).sum(1)


@without_autocast
def similarity(vectors: Tensor, pairs: Tensor) -> Tensor:
    """Cosines of vectors (B, U, d), less their mean at the same offset: what :func:`correlation` compares with."""
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    return _without_offset_means((vectors @ vectors.transpose(1, 2))[..., None], pairs)[..., 0]


@without_autocast
def correlation(maps: Tensor, similarity: Tensor, pairs: Tensor) -> Tensor:
    """Correlation in each sentence of weights and similarities, position removed: (B, head).

    ``maps`` (B, U, U, head), ``similarity`` as :func:`similarity` gives it, ``pairs`` (B, U, U) the pairs that count.
    From weights and cosines the mean over the pairs at the same offset of the same sentence is subtracted first, so
    that a map that depends on the offset alone scores 0, as does a constant one.

    >>> vectors = torch.eye(4)[[0, 1, 0, 1, 2]][None]
    >>> cosine, pairs = vectors @ vectors.transpose(1, 2), ~torch.eye(5, dtype=torch.bool)[None]
    >>> round(float(correlation(cosine[..., None], similarity(vectors, pairs), pairs)), 3)
    1.0
    """
    weight = _without_offset_means(maps, pairs)
    covariance = (similarity[:, None] @ weight)[:, 0]
    scale = (weight.square_().sum(1) * similarity.square().sum(1, keepdim=True)).sqrt()
    # What rounding leaves of a constant or a purely positional map is no variation.
    return torch.where(scale > 1e-6, covariance / scale.clamp_min(1e-6), 0.0)


def offsets(maps: Tensor) -> Tensor:
    """Key minus query, for each cell of maps (..., Q, K): (Q, K)."""
    queries, keys = (torch.arange(size, device=maps.device) for size in maps.shape[-2:])
    return keys - queries[:, None]


def _without_offset_means(values: Tensor, pairs: Tensor) -> Tensor:
    """Values (B, U, U, H) less their mean over the sentence's pairs at the same offset, 0 where there is no pair.

    Returned as (B, U * (2U - 1), H): each offset is a column before the two axes are flattened.
    """
    pairs = pairs[..., None].to(values)
    values, pairs = _offsets_as_columns(values, pairs), _offsets_as_columns(pairs, pairs)
    mean = values.sum(1, keepdim=True) / pairs.sum(1, keepdim=True).clamp_min(1)
    return values.sub_(mean).mul_(pairs).flatten(1, 2)


def _offsets_as_columns(values: Tensor, pairs: Tensor) -> Tensor:
    """Move row q of values * pairs (B, U, U, H) q columns to the left: (B, U, 2U - 1, H), the offset -U + 1 first."""
    size, heads = values.shape[-2:]
    n_offsets = 2 * size - 1
    out = values.new_zeros(len(values), size * n_offsets, heads)
    # A view of ``out`` in which cell (q, k) is at column k - q + U - 1 of row q: each row begins one column earlier.
    shifted = out.as_strided(
        values.shape, (size * n_offsets * heads, (n_offsets - 1) * heads, heads, 1), (size - 1) * heads
    )
    torch.mul(values, pairs, out=shifted)
    return out.view(len(values), size, n_offsets, heads)
