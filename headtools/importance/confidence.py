"""Confidence: the largest attention weight of a head's queries. Needs no loss and no labels.

The measure of Voita et al. 2019 (arXiv:1905.09418), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import run
from headtools._engine.store import Part
from headtools.heads._tokens import is_encoder_decoder, model_inputs, real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import each_batch, frozen, select_sites
from headtools.importance._intervals import linearised_ratio, with_intervals


@torch.no_grad()
def confidence(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    exclude: Iterable[int] | int | None = None,
    sites: Iterable[str | tuple] | str | None = None,
) -> HeadScores:
    """Return each head's largest attention weight, averaged over its queries: between 0 and 1.

    Voita et al. 2019 (arXiv:1905.09418), section 4, leave out weights on the end of the sentence. ``exclude`` gives the
    ids of tokens that count neither as keys nor as queries, like padding, for instance
    ``[tokenizer.cls_token_id, tokenizer.sep_token_id]``; None means the EOS token of the model's configuration, if it
    has one, and ``[]`` no token. Uniform attention to m tokens gives 1/m, so the number falls with length.

    ``batches``: dicts of the model's arguments. ``sites`` limits the measure: ``["encoder"]``, ``[("cross", 3)]``.
    ``low`` and ``high`` are the ends of a 95 % bootstrap interval over examples, where there are five or more. The
    model is run without dropout and left unchanged.

    Raises ``ValueError`` where ids are to be excluded and the batch has none, and as ``record`` does: for models that
    return no maps, empty batches and rows of padding.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> scores = confidence(BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> bool((scores.flat() >= 1 / 4).all() and (scores.flat() <= 1).all())
    True
    """
    measure = _Confidence(model, select_sites(model, sites), _excluded(model, exclude))
    return run(measure, model, each_batch(model, batches))


@dataclass
class _Confidence:
    """Each head's largest weight, summed over the queries of an example, and the number of these queries."""

    model: nn.Module
    sites: Sequence[Site]
    excluded: Sequence[int]

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the sums."""
        return {"sites": [site.label for site in self.sites], "excluded": self.excluded}

    def per_batch(self, batch: dict) -> dict[str, Tensor]:
        """Return sums (B, H) and counts (B,) of every site that the batch runs."""

        def accumulate(site: Site, captured: Captured, previous: tuple | None) -> tuple[Tensor, Tensor]:
            weights = captured.maps  # (B, head, query, key)
            queries = real_tokens(self.model, site, batch, weights.shape[::2]).to(weights.device)
            if self.excluded:
                weights, queries = self._without_excluded(site, batch, weights, queries)
            sums, counts = (weights.amax(-1) * queries[:, None]).sum(-1), queries.sum(-1)
            if previous is None:
                return sums, counts
            return previous[0] + sums, previous[1] + counts  # a shared layer runs several times

        keys = [site.key for site in self.sites]
        with frozen(self.model), record(self.model, ("maps",), accumulate=accumulate, only=keys) as recorded:
            self.model(**model_inputs(self.model, batch))
        ran = [site for site in self.sites if site.key in recorded.captured]
        return {f"{name}|{site.label}": value.cpu() for site in ran
                for name, value in zip(("sums", "counts"), recorded[site.key], strict=True)}  # fmt: skip

    def finish(self, parts: Iterable[Part]) -> HeadScores:
        """Return all sums over all counts, with intervals."""
        parts, rows = list(parts), {}
        for site in self.sites:
            of_site = [part for part in parts if f"sums|{site.label}" in part]
            if of_site:
                sums, counts = (torch.cat([part[f"{name}|{site.label}"] for part in of_site])
                                for name in ("sums", "counts"))  # fmt: skip
                rows[site.key] = linearised_ratio(sums, counts)
        not_run = [site.label for site in self.sites if site.key not in rows]
        if not_run:
            raise ValueError(f"{', '.join(not_run)} did not run on any batch: leave them out with sites=[...]")
        return with_intervals(rows, "confidence", minimum=0.0, maximum=1.0)

    def _without_excluded(self, site: Site, batch: Mapping, weights: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights that are 0 on excluded keys, and queries without excluded ones."""
        key_ids = _key_ids(self.model, site, batch)
        weights = weights.masked_fill(_is_excluded(key_ids, self.excluded, site, weights), 0.0)
        decodes = is_encoder_decoder(self.model) and site.kind != "encoder"
        ids = batch.get("decoder_input_ids" if decodes else "input_ids")
        if isinstance(ids, Tensor) and ids.shape == queries.shape:
            queries = queries & ~torch.isin(ids, torch.tensor(self.excluded, device=ids.device)).to(queries.device)
        return weights, queries


def _excluded(model: nn.Module, exclude: Iterable[int] | int | None) -> list[int]:
    if exclude is None:
        exclude = getattr(getattr(model, "config", None), "eos_token_id", None)
        exclude = [] if exclude is None else exclude
    ids = [exclude] if isinstance(exclude, int) else list(exclude)
    if not all(isinstance(id_, int) for id_ in ids):
        raise TypeError(
            f"exclude takes token ids, got {exclude!r}: write exclude=[tokenizer.cls_token_id, tokenizer.sep_token_id] "
            "or sites= for kinds and layers"
        )
    return ids


def _key_ids(model: nn.Module, site: Site, batch: Mapping) -> Any:
    """Return the ids of a site's keys: the decoder's own tokens, or (cross-attention too) those of the input."""
    own = is_encoder_decoder(model) and site.kind == "decoder"
    return batch.get("decoder_input_ids" if own else "input_ids")


def _is_excluded(key_ids: Any, excluded: Sequence[int], site: Site, maps: Tensor) -> Tensor:
    """Return which keys have an excluded id, for all heads and queries: (B, 1, 1, key) bool."""
    shape = (maps.shape[0], maps.shape[3])
    if not isinstance(key_ids, Tensor) or key_ids.shape != shape:
        got = f"ids of shape {tuple(key_ids.shape)}" if isinstance(key_ids, Tensor) else "no ids"
        raise ValueError(
            f"{site.label} has keys of shape {shape} and the batch has {got} for them, so none can be excluded: "
            "pass exclude=[]"
        )
    return torch.isin(key_ids, torch.tensor(excluded, device=key_ids.device)).to(maps.device)[:, None, None]
