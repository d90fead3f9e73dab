"""What a training run is given: the weights that learn, the batches, the loss; and the checks of all three."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_has_backward
from headtools.importance.loss import Loss, each_loss

Batches = Callable[[int], Mapping] | Mapping | Iterable[Mapping]

# --- weights ------------------------------------------------------------------------------------------------------


def trained_weights(model: nn.Module, weights: str | Collection[str] | None) -> dict[str, nn.Parameter]:
    """Return the parameters that learn: "all", "encoder", None, or those whose names start with one of ``weights``.

    "encoder" are the weights that only the encoder uses, so the decoder and all it reads stay as they are; word vectors
    shared with the decoder are left out. In every case a parameter that is frozen (``requires_grad=False``), such as
    the base under PEFT's adapters, stays frozen. Raises ``ValueError`` where no weight matches or all that match are
    frozen.
    """
    if weights is None:
        return {}
    selected = _named_weights(model, weights)
    trainable = {name: p for name, p in selected.items() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"all {len(selected)} weights that weights={weights!r} means are frozen, {min(selected)} among them: let "
            "some learn first, model.requires_grad_(True), or train gates alone, weights=None"
        )
    return trainable


def _named_weights(model: nn.Module, weights: str | Collection[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that ``weights`` means, frozen or not."""
    named = dict(model.named_parameters())
    if weights == "all":
        return named
    if weights == "encoder":
        encoder = model.get_encoder() if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else None
        prefix = next((f"{name}." for name, module in model.named_modules() if module is encoder), None)
        if prefix is None:
            raise ValueError(f'{type(model).__name__} has no encoder of its own: use weights="all" or weights=None')
        # With duplicates: a tied weight is listed under each of its names, so one outside the encoder shows that it is
        # shared, even where named_parameters() would list it under its encoder name alone.
        all_names = list(model.named_parameters(remove_duplicate=False))
        shared = {id(p) for name, p in all_names if not name.startswith(prefix)}
        return {name: p for name, p in named.items() if name.startswith(prefix) and id(p) not in shared}
    prefixes = (weights,) if isinstance(weights, str) else tuple(weights)
    selected = {name: p for name, p in named.items() if name.startswith(prefixes)}
    if not selected:
        raise ValueError(
            f'no weight starts with {prefixes}; use "all", "encoder", None, or the beginning of a name such as '
            f"{min(named)!r}"
        )
    return selected


def check_gradients(model: nn.Module) -> None:
    """Raise ``RuntimeError`` where nothing could learn: gradients are switched off, or the weights can have none.

    Raises ``TypeError`` where quantised layers pass no gradients on.
    """
    off = "inference_mode" if torch.is_inference_mode_enabled() else None if torch.is_grad_enabled() else "no_grad"
    if off:
        raise RuntimeError(
            f"training needs gradients, and torch.{off}() switches them off here: call this outside of it, or inside "
            + ("torch.inference_mode(False)" if off == "inference_mode" else "torch.enable_grad()")
        )
    check_has_backward(model, "training")
    without = next((name for name, parameter in model.named_parameters() if parameter.is_inference()), None)
    if without is not None:
        raise RuntimeError(
            f"training needs gradients, and {without} was made under torch.inference_mode(), which rules them out: "
            "load the model outside of it"
        )


def check_checkpointing(model: nn.Module) -> None:
    """Raise ``ValueError`` for reentrant gradient checkpointing, under which gates and some weights learn nothing.

    The reentrant kind passes gradients only to a layer's arguments. A gate is no argument of the layer, so it would
    get none; nor would the weights of a layer whose arguments need none, since all weights below it are frozen.
    """
    for name, module in model.named_modules():
        run = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and getattr(run, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                f"{name or type(module).__name__} checkpoints its gradients by use_reentrant=True, which gives gates "
                "and layers behind frozen ones no gradient: write model.gradient_checkpointing_enable("
                'gradient_checkpointing_kwargs={"use_reentrant": False})'
            )


# --- batches ------------------------------------------------------------------------------------------------------


def batches_from(batches: Batches, first_step: int) -> Iterator[Mapping]:
    """Yield the batch of each step from ``first_step`` on: ``batches(step)``, or one or several in endless rotation.

    Raises ``ValueError`` where there are no batches or an iterator ran out, ``TypeError`` for what is no batch.
    """
    if isinstance(batches, Mapping):
        batches = [batches]
    if callable(batches):
        stream = (batches(step) for step in count(first_step))
    else:
        stream = islice(_rotation(batches), first_step, None)
    for step, batch in enumerate(stream, first_step):
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"got a {type(batch).__name__} as batch {step}; expected a dict of the model's arguments, such as "
                '{"input_ids": ..., "labels": ...}'
            )
        yield batch


def _rotation(batches: Iterable[Mapping]) -> Iterator[Mapping]:
    total = 0
    while True:
        total_before = total
        for batch in batches:
            total += 1
            yield batch
        if total == total_before:
            raise ValueError(f"the batches ran out after {total}; pass a list, which can be repeated")


def batch_size(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def repeat_batch(batch: Mapping, times: int) -> dict:
    """Return a batch repeated ``times`` times, one copy after another, (times * B, ...)."""
    return {
        name: value.repeat(times, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) and value.dim() else value
        for name, value in batch.items()
    }


# --- loss ---------------------------------------------------------------------------------------------------------


def task_loss(model: nn.Module, batch: Mapping, loss: Loss | str | None, sets: int) -> Tensor:
    """Return the mean loss under each set of gates, (sets,), for a batch repeated ``sets`` times.

    A loss of one number is taken for the mean over all sets and given to each of them: its gradient is right, and each
    value is the mean over the sets.
    """
    if loss is None:
        value = getattr(model(**batch), "loss", None)
    elif isinstance(loss, str):
        value = each_loss(model, batch, loss)
    else:
        value = _call_loss(loss, model(**batch), batch)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"got {value!r} as the loss; expected a tensor: write batches with labels, so that model(**batch).loss is "
            "there, or loss=function(outputs, batch) -> (B,)"
        )
    if value.dim() == 0:
        return value.expand(sets)
    if value.shape != (batch_size(batch),):
        raise ValueError(
            f"got a loss of shape {tuple(value.shape)}; expected (), or one number per example, ({batch_size(batch)},)"
        )
    return value.view(sets, -1).mean(1)


def _call_loss(loss: Callable, outputs: Any, batch: Mapping) -> Any:
    try:
        return loss(outputs, batch)
    except TypeError as error:
        kind = type(outputs).__name__
        if f"{kind!r} object is not callable" not in str(error):
            raise
        raise TypeError(
            f"a loss is loss(outputs, batch), and outputs are what model(**batch) returned, a {kind}; this one calls "
            "them as if they were the model: take what it needs from outputs and batch"
        ) from error
