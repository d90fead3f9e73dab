"""Which heads of a layer could be one: ``alike`` measures every pair, ``closest`` picks some that share no head."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.geometry.subspaces import cosine
from headtools.heads._select import wide
from headtools.heads._tokens import real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site
from headtools.importance._inputs import each_batch, frozen, select_sites
from headtools.sparse._least_squares import moments
from headtools.sparse._merge_plan import fit_merged
from headtools.sparse.merge import RIDGE

if TYPE_CHECKING:
    import pandas as pd


def alike(
    model: nn.Module,
    batches: list[Mapping],
    sites: Iterable[str | tuple] | str | None = None,
    ridge: float = RIDGE,
) -> pd.DataFrame:
    """Return every pair of heads of a layer, and how near the two are to being one.

    ``batches``: a list of dicts of the model's arguments; ``sites``: kinds or keys, as in ``gradient``. Columns:
    ``first`` and ``second``, heads as (kind, layer, head); ``pattern``, the mean total variation distance of their
    maps, 0 for the same map and 1 for maps that share no key; ``ov``, the cosine of their W_OV; ``missed``, the share
    of what the two wrote together that the best merged head does not reproduce (see ``merge``); ``cost``, the same as
    a share of what the whole layer wrote. Two heads with one map and one W_OV cost 0. Sorted by cost.

    Raises as ``merge`` does, and ``ValueError`` for a layer of one head.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> frame = alike(BertModel(tiny).eval(), [{"input_ids": torch.tensor([[1, 2, 3, 4]])}])
    >>> len(frame), bool(frame.pattern.between(0, 1).all()), frame.cost.is_monotonic_increasing
    (12, True, True)
    """
    import pandas as pd

    found = [site for site in select_sites(model, sites) if site.heads > 1]
    if not found:
        raise ValueError("these layers have one head each, and one head has no like")
    seen = moments(model, batches, {site: range(site.heads) for site in found})
    apart = _apart(model, batches, found)
    rows = []
    for site in found:
        m, turned = seen.pop(site.key), cosine(ov(site)).values  # pop: moments of a wide layer are large
        whole = m.size(m.output(range(site.heads))) or 1.0
        for pair in combinations(range(site.heads), 2):
            lost = min(fit_merged(m, head, pair, ridge)[0] for head in pair)
            both = m.size(m.output(pair)) or 1.0
            rows.append(
                ((*site.key, pair[0]), (*site.key, pair[1]), float(apart[site.key][pair]), float(turned[pair]),
                 lost / both, lost / whole)
            )  # fmt: skip
    frame = pd.DataFrame(rows, columns=["first", "second", "pattern", "ov", "missed", "cost"])
    return frame.sort_values("cost", kind="stable", ignore_index=True)


def closest(pairs: pd.DataFrame, n: int) -> list[tuple[tuple, tuple]]:
    """Return the first ``n`` pairs of a frame, from the top, that share no head: what ``merge`` takes.

    Raises ``ValueError`` where there are not so many.

    >>> import pandas as pd
    >>> heads = [("encoder", 0, h) for h in range(4)]
    >>> closest(pd.DataFrame({"first": heads[:3], "second": heads[1:]}), 2)
    [(('encoder', 0, 0), ('encoder', 0, 1)), (('encoder', 0, 2), ('encoder', 0, 3))]
    """
    chosen, taken = [], set()
    for first, second in zip(pairs["first"], pairs["second"], strict=True):
        if len(chosen) < n and not {first, second} & taken:
            chosen.append((first, second))
            taken |= {first, second}
    if len(chosen) < n:
        raise ValueError(f"these heads make {len(chosen)} pairs that share none, and {n} were asked for")
    return chosen


@torch.no_grad()
def _apart(model: nn.Module, batches: list[Mapping], found: list[Site]) -> dict[tuple, Tensor]:
    """Return the mean total variation distance of the maps of every two heads, {key: (H, H)}."""
    now: dict[str, Mapping] = {}

    def fold(site: Site, seen: Captured, before: list | None) -> list:
        rows = seen.maps.transpose(1, 2)  # (B, T, head, key)
        rows = rows[real_tokens(model, site, now["batch"], rows.shape[:2]).to(rows.device)]
        distance = torch.stack([(rows - rows[:, h : h + 1]).abs().sum((0, 2)) / 2 for h in range(site.heads)])
        sums = [wide(distance), len(rows)]
        return sums if before is None else [a + b for a, b in zip(before, sums, strict=True)]

    keys = [site.key for site in found]
    with frozen(model), record(model, "maps", accumulate=fold, only=keys) as seen:
        for batch in each_batch(model, batches):
            now["batch"] = batch
            model(**batch)
        return {key: seen[key][0] / seen[key][1] for key in keys}
