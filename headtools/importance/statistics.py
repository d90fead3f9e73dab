"""Statistics of attention without attention maps: rows come some hundred queries at a time, and only numbers are kept.

A map of T tokens has T x T cells in every head, 2.4 GB a layer for 8,192 tokens and nine heads. But what is read off
maps are sums over rows: a largest weight, an entropy, the weight on some keys. ``record(want="rows")`` gives the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.loop import run
from headtools._engine.store import Part
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.intervals import linearised_ratio
from headtools.heads.record import Captured, backbone, record
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site, SiteSelection
from headtools.importance._inputs import check_all_ran, each_batch, evaluating, select_sites


@dataclass(frozen=True)
class Block:
    """Rows of the maps of one layer: ``rows`` (B, head, query, key) float32 of the queries from index ``first`` on.

    ``real`` (B, T) tells which of *all* queries are no padding, ``queries`` (B, query) which of these; ``batch`` is
    what the model got.
    """

    site: Site
    rows: Tensor
    first: int
    real: Tensor
    batch: Mapping[str, Any]

    @property
    def queries(self) -> Tensor:
        """Which of the rows are no padding, (B, query)."""
        return self.real[:, self.first : self.first + self.rows.shape[2]]


OfQueries = Callable[[Block], Tensor | tuple[Tensor, Tensor]]  # (B, head, query), and which count, (B, query)


@torch.no_grad()
def statistics(
    model: nn.Module, batches: Mapping | Iterable[Mapping], wanted: Mapping[str, OfQueries], sites: SiteSelection = None
) -> dict[str, HeadScores]:
    """Return statistics of every head's attention, computed together in one pass, by name.

    Each of ``wanted`` is a function of a :class:`Block` to a number for each of its queries, (B, head, query), which
    becomes ``HeadScores``: the mean over queries that are no padding. It may return a second tensor, (B, query), which
    queries count. There are ``largest``, ``entropy`` and ``offset``.

    Raises as ``record`` does, and ``ValueError`` for sites that no batch runs.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> wanted = {"previous": offset(-1), "key 0": lambda block: block.rows[..., 0]}
    >>> found = statistics(BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3, 4]])}, wanted)
    >>> len(found["key 0"]), bool(found["previous"].rows["encoder", 1].shape == (1, 4))
    (8, True)
    """
    selected = select_sites(model, sites, batches)

    def per_batch(batch: Mapping) -> Part:
        """Return by site sums (B, H) and counts (B,) of each function; a layer that runs several times adds up."""
        real: dict[tuple, Tensor] = {}
        part: dict[str, Tensor] = {}

        def see(site: Site, captured: Captured, _previous: object) -> bool:
            if captured.first == 0:
                shape = len(captured.rows), captured.n_queries
                real[site.key] = real_tokens(model, site, batch, shape).to(captured.rows.device)
            block = Block(site, captured.rows, captured.first, real[site.key], batch)
            for name, function in wanted.items():
                values = function(block)
                values, counted = values if isinstance(values, tuple) else (values, block.queries)
                # masked, as 0 times the NaN of padding is NaN
                sums = values.masked_fill(~counted[:, None], 0).sum(-1).cpu()
                for what, added in (("sums", sums), ("counts", counted.sum(-1).cpu())):
                    key = f"{what}|{name}|{site.label}"
                    part[key] = part[key] + added if key in part else added
            return True

        inputs = model_inputs(model, batch)
        with evaluating(model), record(model, "rows", see, only=[site.key for site in selected]):
            backbone(model, inputs)(**inputs)
        return part | {"ran": torch.tensor([site.key in real for site in selected])}

    parts = list(run(per_batch, each_batch(model, batches)))
    check_all_ran(parts, selected, "{} did not run on any batch")
    found = {}
    for name, function in wanted.items():
        rows = {}
        for site in selected:
            sums, counts = (
                torch.cat([part[key] for part in parts if (key := f"{what}|{name}|{site.label}") in part])
                for what in ("sums", "counts")
            )
            if not counts.any():
                raise ValueError(f"{site.label}: every query is padding or excluded, so none is left to average over")
            rows[site.key] = linearised_ratio(sums, counts)
        found[name] = HeadScores.from_rows(rows, name, *getattr(function, "limits", (None, None)))
    return found


def largest(block: Block) -> Tensor:
    """Return the largest weight of each row: ``confidence`` without excluded tokens."""
    return block.rows.amax(-1)


def entropy(block: Block) -> Tensor:
    """Return the entropy of each row in nats."""
    return torch.special.entr(block.rows).sum(-1)


def offset(by: int) -> OfQueries:
    """Return a statistic: the weight on the key ``by`` tokens after the query (-1: before it), where there is one."""

    def on_offset(block: Block) -> tuple[Tensor, Tensor]:
        n_keys = block.rows.shape[3]
        if block.site.kind == "cross" or n_keys != block.real.shape[1]:
            raise ValueError(
                f"{block.site.label} has {n_keys} keys for {block.real.shape[1]} queries; where in the text a key "
                'stands needs attention of a text to itself: pass sites=["encoder"] or ["decoder"]'
            )
        keys = torch.arange(block.rows.shape[2], device=block.rows.device) + block.first + by
        inside = (keys >= 0) & (keys < n_keys)
        keys = keys.clamp(0, n_keys - 1)
        weight = block.rows.gather(-1, keys[:, None].expand(*block.rows.shape[:3], 1))[..., 0]
        return weight, block.queries & inside & block.real[:, keys]

    on_offset.limits = (0.0, 1.0)
    return on_offset


# beyond which no interval goes
largest.limits, entropy.limits = (0.0, 1.0), (0.0, None)
