"""A number for each query of a head, averaged over queries: the form of most scores that are read off maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from headtools._engine.loop import run
from headtools._engine.store import Part
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.intervals import linearised_ratio
from headtools.heads.record import Captured, record
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import check_all_ran, each_batch, evaluating, select_sites

OfQueries = Callable[[Site, Captured, Mapping, Tensor], tuple[Tensor, Tensor]]


@torch.no_grad()
def query_means(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    sites: Iterable[str | tuple] | str | None,
    of_queries: OfQueries,
    *,
    name: str,
    want: Sequence[str] = ("maps",),
    minimum: float | None = None,
    maximum: float | None = None,
) -> HeadScores:
    """Return each head's mean over all queries that are no padding, with 95 % intervals over examples.

    ``of_queries(site, captured, batch, queries)`` gets what ``record`` keeps of a layer in one batch, and which queries
    are no padding, (B, query) bool. It returns a number for each query, (B, head, query), and the queries that count.
    ``want`` is what to record, ("maps", "v"), maps always among it. ``minimum`` and ``maximum``, the range of the score
    if it has one, limit its interval.

    Raises ``ValueError`` for sites that no batch runs, and as ``record`` does.
    """
    selected = select_sites(model, sites)

    def accumulate(site: Site, captured: Captured, previous: tuple | None, batch: Mapping) -> tuple[Tensor, Tensor]:
        maps = captured.maps  # (B, head, query, key)
        queries = real_tokens(model, site, batch, (len(maps), maps.shape[2])).to(maps.device)
        values, queries = of_queries(site, captured, batch, queries)
        sums = values.masked_fill(~queries[:, None], 0).sum(-1)  # masked: 0 times the NaN of padding is NaN
        counts = queries.sum(-1)
        return (sums, counts) if previous is None else (previous[0] + sums, previous[1] + counts)

    def per_batch(batch: Mapping) -> Part:
        """Return sums (B, H) and counts (B,) of every site that the batch runs; a shared layer runs several times."""
        add = partial(accumulate, batch=batch)
        with evaluating(model), record(model, want, accumulate=add, only=[site.key for site in selected]) as recorded:
            model(**model_inputs(model, batch))
        part = {"ran": torch.tensor([site.key in recorded.captured for site in selected])}
        for site in selected:
            if site.key in recorded.captured:
                sums, counts = recorded[site.key]
                part |= {f"sums|{site.label}": sums.cpu(), f"counts|{site.label}": counts.cpu()}
        return part

    parts, rows = list(run(per_batch, each_batch(model, batches))), {}
    check_all_ran(parts, selected, "{} did not run on any batch")
    for site in selected:
        sums, counts = (
            torch.cat([part[f"{what}|{site.label}"] for part in parts if f"{what}|{site.label}" in part])
            for what in ("sums", "counts")
        )
        if not counts.any():
            raise ValueError(f"{site.label}: every query is padding or excluded, so none is left: pass exclude=[]")
        rows[site.key] = linearised_ratio(sums, counts)
    return HeadScores.from_rows(rows, name, minimum, maximum)
