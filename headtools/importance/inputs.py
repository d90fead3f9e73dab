"""What the measures of importance share: a model left as it was, batches as it takes them, which tokens count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.selection import refuse_compiled
from headtools.heads.sites import Site, Sites, sites

IGNORE = -100  # the label of a token that no loss counts, as everywhere in transformers


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Freeze the weights and switch dropout off while the context lasts; every flag comes back, whatever happens.

    >>> layer = nn.Dropout()
    >>> with frozen(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    before = [
        (module, module.training, {name: weight.requires_grad for name, weight in _own(module)})
        for module in model.modules()
    ]
    try:
        for module, training, _ in before:
            for _, weight in _own(module):
                weight.requires_grad_(False)
            if training:
                module.training = False
        yield
    finally:
        for module, training, needed in before:
            for name, weight in _own(module):  # by name: weights that are offloaded are other objects after each run
                weight.requires_grad_(needed[name])
            if module.training != training:
                module.training = training


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return a module's own weights by name; one of several modules' is each one's own."""
    return [(name, weight) for name, weight in module._parameters.items() if weight is not None]


def chosen_sites(model: nn.Module, only: Iterable[str | tuple] | str | None) -> list[Site]:
    """Return the sites to measure: all, or those of ``only``, a list of kinds ("encoder") or keys (("cross", 3)).

    A site whose heads are all cut is left out. Raises ``KeyError`` for an unknown one, ``ValueError`` for none and
    ``RuntimeError`` for a compiled model.
    """
    refuse_compiled(model)
    found = sites(model)
    if only is None:
        picked = list(found)
    else:
        parts = [found[key] for key in ([only] if isinstance(only, str) else only)]
        picked = [site for part in parts for site in (part if isinstance(part, Sites) else [part])]
    picked = list({site.key: site for site in picked if not site.empty}.values())
    if not picked:
        raise ValueError(f'sites={only!r} leaves no heads to measure: pass sites=["encoder"], or None for all')
    return picked


def each_batch(model: nn.Module, batches: Mapping | Iterable[Mapping]) -> Iterator[dict[str, Any]]:
    """Give the batches one by one, each a dict of what the model takes; a single batch will do.

    A sequence-to-sequence batch with labels and no decoder input gets the labels, moved by one, as decoder input.
    Raises ``ValueError`` where there is no batch and ``TypeError`` for one that is no dict.
    """
    count = 0
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch is a dict of what the model takes, got {type(batch).__name__}: "
                'write [{"input_ids": ..., "attention_mask": ..., "labels": ...}]'
            )
        count += 1
        batch = dict(batch)
        given = batch.keys() & {"decoder_input_ids", "decoder_inputs_embeds"}
        shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
        if two_sided(model) and not given and isinstance(batch.get("labels"), Tensor) and shift is not None:
            batch["decoder_input_ids"] = shift(labels=batch["labels"])
        yield batch
    if not count:
        raise ValueError("no batches came: pass a list of dicts, and a list rather than a generator that is used up")


def two_sided(model: nn.Module) -> bool:
    """Tell whether a model reads one sequence and writes another."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def real_queries(model: nn.Module, site: Site, batch: Mapping, shape: tuple[int, int]) -> Tensor:
    """Return which queries of a site are no padding: (B, T) bool, all true where the batch does not tell.

    On the decoder's side of a two-sided model the decoder's mask tells, or else the labels: what comes after the last
    one that is counted is padding.
    """
    if two_sided(model) and site.kind != "encoder":
        mask, labels = batch.get("decoder_attention_mask"), batch.get("labels")
        if mask is None and isinstance(labels, Tensor) and labels.shape == shape:
            counted = (labels != IGNORE).long()
            mask = counted.flip(1).cumsum(1).flip(1)  # how many are counted from here on
    else:
        mask = batch.get("attention_mask")
    if isinstance(mask, Tensor) and mask.shape == shape:
        return mask.bool()
    return torch.ones(shape, dtype=torch.bool)
