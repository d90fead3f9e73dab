"""Which heads of a layer could be merged: ``head_similarity`` compares every pair, ``disjoint_pairs`` selects some."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.geometry.subspaces import cosine
from headtools.heads._devices import to_float64
from headtools.heads._tokens import real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site
from headtools.importance._inputs import each_batch, frozen, select_sites
from headtools.sparse._least_squares import moments
from headtools.sparse._merge_plan import fit_merged
from headtools.sparse.merge import RIDGE

COLUMNS = ("first", "second", "map_distance", "ov", "relative_error", "layer_error")


def head_similarity(
    model: nn.Module,
    batches: list[Mapping],
    sites: Iterable[str | tuple] | str | None = None,
    ridge: float = RIDGE,
) -> pd.DataFrame:
    """Return how similar the two heads of each pair in a layer are, and how well one head could replace both.

    ``batches``: a list of dicts of the model's arguments; ``sites``: kinds or keys, as in ``gradient``. Columns:
    ``first`` and ``second``, heads as (kind, layer, head); ``map_distance``, the mean total variation distance of their
    maps, 0 for equal maps and 1 for maps that share no key; ``ov``, the cosine of their W_OV; ``relative_error``, the
    fraction of what the two wrote together that the best merged head does not reproduce (see ``merge``);
    ``layer_error``, the same as a fraction of what the whole layer wrote. For two heads with equal maps and equal W_OV
    both are 0. Sorted by ``layer_error``.

    Raises as ``merge`` does, and ``ValueError`` for a layer of one head.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> frame = head_similarity(BertModel(tiny).eval(), [{"input_ids": torch.tensor([[1, 2, 3, 4]])}])
    >>> len(frame), bool(frame.map_distance.between(0, 1).all()), frame.layer_error.is_monotonic_increasing
    (12, True, True)
    """
    layers = [site for site in select_sites(model, sites) if site.heads > 1]
    if not layers:
        raise ValueError("got layers of one head each; expected at least one with two heads to compare")
    moments_of = moments(model, batches, {site: range(site.heads) for site in layers})
    distances = _map_distances(model, batches, layers)
    rows = []
    for site in layers:
        m, cosines = moments_of.pop(site.key), cosine(ov(site)).values  # pop: the moments of a wide layer are large
        layer_total = m.sum_of_squares(m.written(range(site.heads))) or 1.0
        for pair in combinations(range(site.heads), 2):
            # Either head may be the one that stays, with its map; ``merge`` keeps the better, too.
            error = min(fit_merged(m, head, pair, ridge)[0] for head in pair)
            pair_total = m.sum_of_squares(m.written(pair)) or 1.0
            first, second = ((*site.key, head) for head in pair)
            distance, similarity = float(distances[site.key][pair]), float(cosines[pair])
            rows.append((first, second, distance, similarity, error / pair_total, error / layer_total))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values("layer_error", kind="stable", ignore_index=True)


def disjoint_pairs(pairs: pd.DataFrame, n: int) -> list[tuple[tuple, tuple]]:
    """Return the first ``n`` pairs of a frame, from the top, of which no two share a head: groups for ``merge``.

    Raises ``ValueError`` where there are fewer.

    >>> import pandas as pd
    >>> heads = [("encoder", 0, h) for h in range(4)]
    >>> disjoint_pairs(pd.DataFrame({"first": heads[:3], "second": heads[1:]}), 2)
    [(('encoder', 0, 0), ('encoder', 0, 1)), (('encoder', 0, 2), ('encoder', 0, 3))]
    """
    selected, used_heads = [], set()
    for first, second in zip(pairs["first"], pairs["second"], strict=True):
        if len(selected) < n and not {first, second} & used_heads:
            selected.append((first, second))
            used_heads |= {first, second}
    if len(selected) < n:
        raise ValueError(f"got n={n}; expected at most {len(selected)}, the number of these pairs that share no head")
    return selected


@torch.no_grad()
def _map_distances(model: nn.Module, batches: list[Mapping], layers: list[Site]) -> dict[tuple, Tensor]:
    """Return the mean total variation distance between the maps of every two heads, {key: (H, H)}."""
    batch: Mapping = {}

    def accumulate(site: Site, captured: Captured, total: list | None) -> list:
        maps = captured.maps.transpose(1, 2)  # (B, query, head, key)
        maps = maps[real_tokens(model, site, batch, maps.shape[:2]).to(maps.device)]  # (n, head, key)
        # One head at a time against all: (n, H, H, key) at once would need H times the memory of the maps.
        distance = torch.stack([(maps - maps[:, h : h + 1]).abs().sum((0, 2)) / 2 for h in range(site.heads)])
        sums = [to_float64(distance), len(maps)]
        return sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]

    with frozen(model), record(model, "maps", accumulate=accumulate, only=[site.key for site in layers]) as totals:
        for batch in each_batch(model, batches):  # accumulate reads it, too
            model(**batch)
        return {site.key: totals[site][0] / totals[site][1] for site in layers}
