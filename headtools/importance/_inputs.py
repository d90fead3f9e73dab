"""What the measures share: a model that comes back unchanged, the sites to measure, batches in one form.

What would silently give a wrong number is refused: weights that are NaN (fused attention can turn them into finite
zeros), compiled models (which ignore hooks), and sites that no batch ran, whose score of 0 would mean nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_batch, check_not_compiled, check_weights
from headtools.heads._hooks import claimed, without_dropout
from headtools.heads._kinds import names_in
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import Site, SiteSelection, sites
from headtools.heads.verify import check_padding_verified, verify_once


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Freeze the weights and switch dropout off while the context lasts; every flag comes back, whatever happens."""
    with claimed("a measurement", model.modules()), without_dropout(model):
        # By module and name: accelerate replaces offloaded weights in each run.
        learning = [
            (m, n) for m in model.modules() for n, w in m._parameters.items() if w is not None and w.requires_grad
        ]
        try:
            for module, name in learning:
                module._parameters[name].requires_grad_(False)
            yield
        finally:
            for module, name in learning:
                module._parameters[name].requires_grad_(True)


def select_sites(model: nn.Module, only: SiteSelection, batches: Any = None) -> list[Site]:
    """Return the sites to measure: all, or those of ``only``, a kind ("encoder"), a key (("cross", 3)) or a list.

    Sites whose heads are all pruned are left out. A model that nobody has tried is tried first (``verify``), on the
    first of ``batches``. Raises ``KeyError`` for an unknown site, ``ValueError`` where no head
    remains and for weights that are NaN, ``RuntimeError`` for a compiled model.
    """
    check_not_compiled(model)
    every_site = sites(model)
    check_weights(model, every_site)
    selected = [site for site in every_site.pick(only) if not site.empty]
    verify_once(model, batches, selected)
    if not selected:
        raise ValueError(f'sites={only!r} leaves no heads to measure: pass sites=["encoder"], or None for all')
    return selected


def each_batch(model: nn.Module, batches: Mapping | Iterable[Mapping]) -> Iterator[dict[str, Any]]:
    """Give the batches one by one, each a new dict of the model's arguments; a single batch may be passed as it is.

    A sequence-to-sequence batch with labels and no decoder input gets the decoder input that the model would make of
    the labels. Raises ``ValueError`` where there is no batch and for a batch that is empty, has a cache, or is padded
    where ``verify`` has found that padding is read, and ``TypeError`` for one that is not a dict.
    """
    n_batches = 0
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch is a dict of the model's arguments, got {type(batch).__name__}: "
                'write [{"input_ids": ..., "attention_mask": ..., "labels": ...}]'
            )
        check_batch(batch)
        check_padding_verified(model, batch)
        n_batches += 1
        batch = dict(batch)
        if "labels" in batch and model_inputs(model, batch).get("labels") is not None:
            decoder_input_ids = decoder_inputs(model, batch["labels"])
            if decoder_input_ids is not None:
                batch["decoder_input_ids"] = decoder_input_ids
        yield batch
    if not n_batches:
        raise ValueError("got no batches: pass a list of dicts, and a list rather than a generator that is used up")


def decoder_inputs(model: nn.Module, labels: Tensor) -> Tensor | None:
    """Return labels shifted right, as the model's own forward does it, or None where that is done in no known way.

    Transformers has three ways: ``prepare_decoder_input_ids_from_labels`` of the model, ``shift_tokens_right`` of its
    module, or ``_shift_right`` of the model. Which of the last two, if any, shows in the code of ``forward``.
    """
    base = getattr(model, "get_base_model", lambda: model)()  # of a PEFT model
    if type(base).__name__ == "EncoderDecoderModel":
        return None  # its forward derives a decoder_attention_mask from the labels, too
    labels = labels.clone()  # FSMT's own function writes into its argument
    shift = getattr(base, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    names_in_forward = names_in(type(base).forward)
    shift = getattr(sys.modules.get(type(base).__module__), "shift_tokens_right", None)
    if "shift_tokens_right" in names_in_forward and shift is not None:
        tokens = list(inspect.signature(shift).parameters)[1:]  # pad_token_id, decoder_start_token_id
        missing = [name for name in tokens if getattr(base.config, name, None) is None]
        if missing:
            raise ValueError(
                f"{type(base).__name__} makes decoder_input_ids of labels and its configuration has no {missing[0]}: "
                f"write model.config.{missing[0]} = ..., or add decoder_input_ids to the batch"
            )
        return shift(labels, **{name: getattr(base.config, name) for name in tokens})
    return base._shift_right(labels) if "_shift_right" in names_in_forward else None


def collect_products(site: Site, z: Tensor, products: dict[tuple, Tensor], by_token: bool = False) -> None:
    """Add <z, g> to ``products[site.key]`` as soon as z gets its gradient g: (B, head), or by token (B, T, head).

    Raises ``ValueError`` for a pass under ``torch.no_grad``, whose share would be missing without a word.
    """
    if not torch.is_grad_enabled():
        raise ValueError(
            f"the gradient at {site.label} would not be the head's: the model uses torch.utils.checkpoint or runs "
            "it under torch.no_grad; call the layers without it, or measure with ablation(model, batches)"
        )
    value = z.detach()  # not z itself: a tensor whose hook holds it would never be freed

    def store(g: Tensor) -> None:
        dtype = torch.promote_types(value.dtype, torch.float32)
        product = (value.to(dtype) * g.to(dtype)).sum(-1)  # (B, T, head)
        if not by_token:
            product = product.flatten(1, -2).sum(1)
        previous = products.get(site.key)  # of another call, where layers share one module
        products[site.key] = product if previous is None else previous + product

    z.register_hook(store)


def check_all_ran(parts: Sequence[Mapping[str, Tensor]], sites: Sequence[Site], message: str) -> None:
    """Raise ``ValueError`` for sites that no batch ran; ``message`` says so, with ``{}`` for their names.

    Each batch's part has ``ran``, (len(sites),): whether the batch ran the site.
    """
    ran = torch.stack([part["ran"] for part in parts]).any(0).tolist()
    not_run = [site.label for site, site_ran in zip(sites, ran, strict=True) if not site_ran]
    if not_run:
        raise ValueError(message.format(", ".join(not_run)) + ": leave them out with sites=[...]")
