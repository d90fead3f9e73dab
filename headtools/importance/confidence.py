"""Confidence: how much of its attention a head gives to the one token it looks at most. Needs no loss and no labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.record import Captured, record
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.heads.tokens import model_inputs, real_tokens, two_sided
from headtools.importance.by_batch import by_batch
from headtools.importance.inputs import chosen_sites, frozen
from headtools.importance.intervals import of_ratio, scored


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
    ``[tokenizer.cls_token_id, tokenizer.sep_token_id]``; None means the end mark of the model's configuration, if it
    names one, and ``[]`` no token. An even spread over m tokens gives 1/m, so the number falls with length.

    ``batches``: dicts of what the model takes. ``sites`` limits the measure: ``["encoder"]``, ``[("cross", 3)]``.
    ``low`` and ``high`` bound each value by 95 % bootstrap over examples, where there are two or more. The model is run
    without dropout and left as it was.

    Raises ``ValueError`` where ids are to be excluded and the batch has none, and as ``record`` does: for models that
    show no maps, empty batches and rows of padding.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> sure = confidence(BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> bool((sure.flat() >= 1 / 4).all() and (sure.flat() <= 1).all())
    True
    """
    chosen = chosen_sites(model, sites)
    ids = _excluded(model, exclude)

    def measure(batch: dict) -> dict[str, Tensor]:
        def fold(site: Site, seen: Captured, before: tuple | None) -> tuple[Tensor, Tensor]:
            maps, keys = seen.maps, _keys(model, site, batch)
            real = real_tokens(model, site, batch, (maps.shape[0], maps.shape[2])).to(maps.device)
            if ids:
                out = _found(keys, ids, site, maps).to(maps.device)
                maps = maps.masked_fill(out[:, None, None], 0.0)
                lookers = batch.get("decoder_input_ids" if two_sided(model) and site.kind != "encoder" else "input_ids")
                if isinstance(lookers, Tensor) and lookers.shape == real.shape:
                    real = real & ~torch.isin(lookers, torch.tensor(ids, device=lookers.device)).to(real.device)
            total, number = (maps.amax(-1) * real[:, None]).sum(-1), real.sum(-1)
            return (total, number) if before is None else (before[0] + total, before[1] + number)

        with frozen(model), record(model, ("maps",), reduce=fold, only=[site.key for site in chosen]) as found:
            model(**model_inputs(model, batch))
        return {f"{part}|{place}": found[site.key][part].cpu() for part in (0, 1) for place, site in enumerate(chosen)
                if site.key in found.seen}  # fmt: skip

    parts = by_batch(model, batches, measure)
    rows, idle = {}, []
    for place, site in enumerate(chosen):
        ran = [part for part in parts if f"0|{place}" in part]
        if not ran:
            idle.append(site.label)
            continue
        sums, counts = (torch.cat([part[f"{which}|{place}"] for part in ran]) for which in (0, 1))
        rows[site.key] = of_ratio(sums, counts)
    if idle:
        raise ValueError(f"{', '.join(idle)} did not run on any batch: leave them out with sites=[...]")
    return scored(rows, "confidence", least=0.0, most=1.0)


def _excluded(model: nn.Module, exclude: Iterable[int] | int | None) -> list[int]:
    if exclude is None:
        exclude = getattr(getattr(model, "config", None), "eos_token_id", None)
        exclude = [] if exclude is None else exclude
    return [exclude] if isinstance(exclude, int) else [int(number) for number in exclude]


def _keys(model: nn.Module, site: Site, batch: Mapping) -> Any:
    """Return the ids of the tokens that a site looks at: the decoder's own, or those of the text that is read."""
    own = two_sided(model) and site.kind == "decoder"
    return batch.get("decoder_input_ids" if own else "input_ids")


def _found(keys: Any, ids: list[int], site: Site, maps: Tensor) -> Tensor:
    """Return which keys have one of the ids: (B, S) bool."""
    shape = (maps.shape[0], maps.shape[3])
    if not isinstance(keys, Tensor) or keys.shape != shape:
        has = f"ids of shape {tuple(keys.shape)}" if isinstance(keys, Tensor) else "no ids"
        raise ValueError(
            f"{site.label} looks at {shape} tokens and the batch has {has} for them, so none can be excluded: "
            "pass exclude=[]"
        )
    return torch.isin(keys, torch.tensor(ids, device=keys.device))
