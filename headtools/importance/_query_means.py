"""A number for each query of a head, averaged over queries: the form of most scores that are read off maps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import run
from headtools._engine.store import Part
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.intervals import linearised_ratio
from headtools.heads.record import Captured, record
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import check_all_ran, each_batch, frozen, select_sites

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
    settings: Mapping[str, Any] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
) -> HeadScores:
    """Return each head's mean over all queries that are no padding, with 95 % intervals over examples.

    ``of_queries(site, captured, batch, queries)`` gets what ``record`` keeps of a layer in one batch, and which queries
    are no padding, (B, query) bool. It returns a number for each query, (B, head, query), and the queries that count.
    ``want`` is what to record, ("maps", "v"), maps always among it. ``settings``: what else determines the numbers.
    ``minimum`` and ``maximum``: the range of the score, if it has one; its interval is clamped to it.

    Raises ``ValueError`` for sites that no batch runs, and as ``record`` does.
    """
    selected = select_sites(model, sites)
    measure = _QueryMeans(model, selected, of_queries, name, tuple(want), settings or {}, (minimum, maximum))
    return run(measure, model, each_batch(model, batches))


@dataclass
class _QueryMeans:
    """Each head's sum over the queries of an example, and the number of these queries."""

    model: nn.Module
    sites: Sequence[Site]
    of_queries: OfQueries
    name: str
    want: tuple[str, ...]
    more_settings: Mapping[str, Any]
    limits: tuple[float | None, float | None]

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the sums."""
        return {"name": self.name, "sites": [site.label for site in self.sites], **self.more_settings}

    def per_batch(self, batch: Mapping) -> Part:
        """Return sums (B, H) and counts (B,) of every site that the batch runs, on the CPU."""

        def accumulate(site: Site, captured: Captured, previous: tuple | None) -> tuple[Tensor, Tensor]:
            maps = captured.maps  # (B, head, query, key)
            queries = real_tokens(self.model, site, batch, (len(maps), maps.shape[2])).to(maps.device)
            values, queries = self.of_queries(site, captured, batch, queries)
            sums = values.masked_fill(~queries[:, None], 0).sum(-1)  # masked: 0 times the NaN of padding is NaN
            counts = queries.sum(-1)
            if previous is None:
                return sums, counts
            return previous[0] + sums, previous[1] + counts  # a shared layer runs several times

        keys = [site.key for site in self.sites]
        with frozen(self.model), record(self.model, self.want, accumulate=accumulate, only=keys) as recorded:
            self.model(**model_inputs(self.model, batch))
        ran = [site.key in recorded.captured for site in self.sites]
        part = {"ran": torch.tensor(ran)}
        for site, site_ran in zip(self.sites, ran, strict=True):
            if site_ran:
                sums, counts = recorded[site.key]
                part |= {f"sums|{site.label}": sums.cpu(), f"counts|{site.label}": counts.cpu()}
        return part

    def finish(self, parts: Iterable[Part]) -> HeadScores:
        """Return all sums over all counts, with intervals."""
        parts, rows = list(parts), {}
        check_all_ran(parts, self.sites, "{} did not run on any batch")
        for site in self.sites:
            sums, counts = (
                torch.cat([part[f"{what}|{site.label}"] for part in parts if f"{what}|{site.label}" in part])
                for what in ("sums", "counts")
            )
            rows[site.key] = linearised_ratio(sums, counts)
        return HeadScores.from_rows(rows, self.name, *self.limits)
