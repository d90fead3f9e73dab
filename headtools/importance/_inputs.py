"""What the measures of importance share: a model left as it was, and batches as it takes them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._finite import refuse_unfit
from headtools.heads._interventions import claimed
from headtools.heads._select import check_batch, refuse_compiled
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import Site, Which, sites


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
    with claimed("a measurement", model.modules()):
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
                for name, weight in _own(module):  # by name: offloaded weights are other objects after each run
                    weight.requires_grad_(needed[name])
                if module.training != training:
                    module.training = training


def _own(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return a module's own weights by name; one of several modules' is each one's own."""
    return [(name, weight) for name, weight in module._parameters.items() if weight is not None]


def chosen_sites(model: nn.Module, only: Which) -> list[Site]:
    """Return the sites to measure: all, or those of ``only``, a kind ("encoder"), a key (("cross", 3)) or a list.

    A site whose heads are all cut is left out. Raises ``KeyError`` for an unknown one, ``ValueError`` for none
    and for weights that are NaN, ``RuntimeError`` for a compiled model.
    """
    refuse_compiled(model)
    refuse_unfit(model)
    picked = [site for site in sites(model).pick(only) if not site.empty]
    if not picked:
        raise ValueError(f'sites={only!r} leaves no heads to measure: pass sites=["encoder"], or None for all')
    return picked


def each_batch(model: nn.Module, batches: Mapping | Iterable[Mapping]) -> Iterator[dict[str, Any]]:
    """Give the batches one by one, each a dict of what the model takes; a single batch will do.

    A sequence-to-sequence batch with labels and no decoder input gets the decoder input that the model would make of
    the labels. Raises ``ValueError`` where there is no batch, or one that is empty or brings a cache, and ``TypeError``
    for one that is no dict.
    """
    count = 0
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"a batch is a dict of what the model takes, got {type(batch).__name__}: "
                'write [{"input_ids": ..., "attention_mask": ..., "labels": ...}]'
            )
        check_batch(batch)
        count += 1
        batch = dict(batch)
        if "labels" in batch and model_inputs(model, batch).get("labels") is not None:
            made = decoder_inputs(model, batch["labels"])
            if made is not None:
                batch["decoder_input_ids"] = made
        yield batch
    if not count:
        raise ValueError("no batches came: pass a list of dicts, and a list rather than a generator that is used up")


def decoder_inputs(model: nn.Module, labels: Tensor) -> Tensor | None:
    """Return labels moved by one, as the model's own forward does it, or None where it does it in no known way."""
    own = getattr(model, "get_base_model", lambda: model)()  # of a model with adapters
    if type(own).__name__ == "EncoderDecoderModel":
        return None  # its forward makes a decoder_attention_mask of them, too
    labels = labels.clone()  # FSMT's own function writes into what it is given
    shift = getattr(own, "prepare_decoder_input_ids_from_labels", None)
    if shift is not None:
        return shift(labels=labels)
    used = getattr(getattr(inspect.unwrap(type(own).forward), "__code__", None), "co_names", ())
    shift = getattr(sys.modules.get(type(own).__module__), "shift_tokens_right", None)
    if "shift_tokens_right" in used and shift is not None:
        marks = list(inspect.signature(shift).parameters)[1:]  # pad_token_id, and most often decoder_start_token_id
        missing = [name for name in marks if getattr(own.config, name, None) is None]
        if missing:
            raise ValueError(
                f"{type(own).__name__} makes decoder_input_ids of labels and its configuration has no {missing[0]}: "
                f"write model.config.{missing[0]} = ..., or add decoder_input_ids to the batch"
            )
        return shift(labels, **{name: getattr(own.config, name) for name in marks})
    return own._shift_right(labels) if "_shift_right" in used else None


def refuse_idle(found: Sequence[Mapping[str, Tensor]], chosen: Sequence[Site], why: str) -> None:
    """Raise ``ValueError`` for sites that no batch reached; ``why`` says so, with ``{}`` for their names.

    Each part of ``found`` has ``reached``, (len(chosen),): whether the batch came by the site.
    """
    reached = torch.stack([part["reached"] for part in found]).any(0).tolist()
    idle = [site.label for site, there in zip(chosen, reached, strict=True) if not there]
    if idle:
        raise ValueError(why.format(", ".join(idle)) + ": leave them out with sites=[...]")
