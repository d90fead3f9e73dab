"""Confidence: how much of its attention a head gives to the one token it looks at most. Needs no loss and no labels."""

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
    """Return each head's greatest attention weight, averaged over the tokens that look: between 0 and 1.

    So Voita et al. 2019 (arXiv:1905.09418), section 4, who leave out weights on the end of the sentence. ``exclude``
    gives the ids of tokens that count neither as looked at nor as looking, like padding, for instance
    ``[tokenizer.cls_token_id, tokenizer.sep_token_id]``; None means the EOS token of the model's configuration, if it
    names one, and ``[]`` no token. An even spread over m tokens gives 1/m, so the number falls with length.

    ``batches``: dicts of what the model takes. ``sites`` limits the measure: ``["encoder"]``, ``[("cross", 3)]``.
    ``low`` and ``high`` bound each value by 95 %, over examples, where there are five or more. The model is run
    without dropout and left as it was.

    Raises ``ValueError`` where ids are to be excluded and the batch has none, and as ``record`` does: for models that
    show no maps, empty batches and rows of padding.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> sure = confidence(BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> bool((sure.flat() >= 1 / 4).all() and (sure.flat() <= 1).all())
    True
    """
    measure = _Confidence(model, select_sites(model, sites), _excluded(model, exclude))
    return run(measure, model, each_batch(model, batches))


@dataclass
class _Confidence:
    """Each head's greatest weight, summed over the queries of an example, and the number of these queries."""

    model: nn.Module
    sites: Sequence[Site]
    excluded: Sequence[int]

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the sums."""
        return {"sites": [site.label for site in self.sites], "excluded": self.excluded}

    def per_batch(self, batch: dict) -> dict[str, Tensor]:
        """Return sums (B, H) and counts (B,) of every layer that the batch reaches."""

        def accumulate(site: Site, captured: Captured, before: tuple | None) -> tuple[Tensor, Tensor]:
            weights = captured.maps
            queries = real_tokens(self.model, site, batch, weights.shape[::2]).to(weights.device)
            if self.excluded:
                weights, queries = self._without_excluded(site, batch, weights, queries)
            sums, counts = (weights.amax(-1) * queries[:, None]).sum(-1), queries.sum(-1)
            return (sums, counts) if before is None else (before[0] + sums, before[1] + counts)

        keys = [site.key for site in self.sites]
        with frozen(self.model), record(self.model, ("maps",), accumulate=accumulate, only=keys) as found:
            self.model(**model_inputs(self.model, batch))
        reached = [site for site in self.sites if site.key in found.seen]
        return {f"{name}|{site.label}": value.cpu() for site in reached
                for name, value in zip(("sums", "counts"), found[site.key], strict=True)}  # fmt: skip

    def finish(self, parts: Iterable[Part]) -> HeadScores:
        """Return all sums over all counts, with intervals."""
        parts, rows = list(parts), {}
        for site in self.sites:
            reached = [part for part in parts if f"sums|{site.label}" in part]
            if not reached:
                continue
            rows[site.key] = linearised_ratio(*(torch.cat([part[f"{name}|{site.label}"] for part in reached])
                                        for name in ("sums", "counts")))  # fmt: skip
        idle = [site.label for site in self.sites if site.key not in rows]
        if idle:
            raise ValueError(f"{', '.join(idle)} did not run on any batch: leave them out with sites=[...]")
        return with_intervals(rows, "confidence", minimum=0.0, maximum=1.0)

    def _without_excluded(self, site: Site, batch: Mapping, weights: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights that are 0 on excluded keys, and queries without excluded ones."""
        weights = weights.masked_fill(_among(_keys(self.model, site, batch), self.excluded, site, weights), 0.0)
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
    if not all(isinstance(number, int) for number in ids):
        raise TypeError(
            f"exclude is token ids, got {exclude!r}: write exclude=[tokenizer.cls_token_id, tokenizer.sep_token_id] "
            "or sites= for kinds and layers"
        )
    return ids


def _keys(model: nn.Module, site: Site, batch: Mapping) -> Any:
    """Return the ids of the tokens that a site looks at: the decoder's own, or those of the text that is read."""
    own = is_encoder_decoder(model) and site.kind == "decoder"
    return batch.get("decoder_input_ids" if own else "input_ids")


def _among(keys: Any, ids: Sequence[int], site: Site, maps: Tensor) -> Tensor:
    """Return which keys have one of the ids, to be spread over heads and queries: (B, 1, 1, S) bool."""
    shape = (maps.shape[0], maps.shape[3])
    if not isinstance(keys, Tensor) or keys.shape != shape:
        has = f"ids of shape {tuple(keys.shape)}" if isinstance(keys, Tensor) else "no ids"
        raise ValueError(
            f"{site.label} looks at {shape} tokens and the batch has {has} for them, so none can be excluded: "
            "pass exclude=[]"
        )
    return torch.isin(keys, torch.tensor(ids, device=keys.device)).to(maps.device)[:, None, None]
