"""What training gates is made of: which weights learn, which batch comes next, what the loss is."""

from __future__ import annotations

import inspect
import random
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._interventions import claimed
from headtools.heads._weights import check_has_backward
from headtools.importance.loss import Loss, each_loss

Batches = Callable[[int], Mapping] | Mapping | Iterable[Mapping]


def trained_weights(model: nn.Module, weights: str | Collection[str] | None) -> dict[str, nn.Parameter]:
    """Return the parameters that learn: "all", "encoder", None, or those whose names start with one of ``weights``.

    "encoder" are the weights that only the encoder uses, so the decoder and all it reads stay as they are; word vectors
    shared with the decoder are left out. Whatever is asked for, a parameter that is frozen (``requires_grad=False``),
    as the base under PEFT's adapters, stays frozen. Raises ``ValueError`` where nothing fits or all of it is frozen.
    """
    if weights is None:
        return {}
    chosen = _named_weights(model, weights)
    free = {name: p for name, p in chosen.items() if p.requires_grad}
    if not free:
        raise ValueError(
            f"all {len(chosen)} weights that weights={weights!r} means are frozen, {min(chosen)} among them: let some "
            "learn first, model.requires_grad_(True), or train gates alone, weights=None"
        )
    return free


def _named_weights(model: nn.Module, weights: str | Collection[str]) -> dict[str, nn.Parameter]:
    """Return the parameters that ``weights`` means, frozen or not."""
    named = dict(model.named_parameters())
    if weights == "all":
        return named
    if weights == "encoder":
        encoder = model.get_encoder() if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else None
        inside = next((f"{name}." for name, module in model.named_modules() if module is encoder), None)
        if inside is None:
            raise ValueError(f'{type(model).__name__} has no encoder of its own: use weights="all" or weights=None')
        every = list(model.named_parameters(remove_duplicate=False))
        shared = {id(p) for name, p in every if not name.startswith(inside)}
        return {name: p for name, p in named.items() if name.startswith(inside) and id(p) not in shared}
    starts = (weights,) if isinstance(weights, str) else tuple(weights)
    chosen = {name: p for name, p in named.items() if name.startswith(starts)}
    if not chosen:
        raise ValueError(f'no weight starts with {starts}; use "all", "encoder", None, or the likes of {min(named)!r}')
    return chosen


def refuse_without_gradients(model: nn.Module) -> None:
    """Raise ``RuntimeError`` where nothing could learn: gradients are switched off, or the weights can have none.

    ``TypeError`` where layers pass none on, since they are quantised.
    """
    off = "inference_mode" if torch.is_inference_mode_enabled() else None if torch.is_grad_enabled() else "no_grad"
    if off:
        raise RuntimeError(
            f"training needs gradients, and torch.{off}() switches them off here: call this outside of it, or inside "
            + ("torch.inference_mode(False)" if off == "inference_mode" else "torch.enable_grad()")
        )
    check_has_backward(model, "training")
    made = next((name for name, parameter in model.named_parameters() if parameter.is_inference()), None)
    if made is not None:
        raise RuntimeError(
            f"training needs gradients, and {made} was made under torch.inference_mode(), which rules them out: load "
            "the model outside of it"
        )


def refuse_reentrant(model: nn.Module) -> None:
    """Raise ``ValueError`` for the older kind of gradient checkpointing, which gates and some weights learn nothing by.

    It lets gradients through to what a layer is given, and not to the gates, which come from elsewhere.
    """
    for name, module in model.named_modules():
        run = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and getattr(run, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                f"{name or type(module).__name__} checkpoints its gradients by use_reentrant=True, which gives gates "
                "and layers behind frozen ones no gradient: write model.gradient_checkpointing_enable("
                'gradient_checkpointing_kwargs={"use_reentrant": False})'
            )


@contextmanager
def learning(model: nn.Module, trained: Collection[nn.Parameter]) -> Iterator[None]:
    """Let only the parameters ``trained`` learn, with dropout on if there are any; restores flags, modes, gradients."""
    ours = {id(p) for p in trained}
    with claimed("training", model.modules(), copyable=True):
        flags = [(p, p.requires_grad, p.grad) for p in model.parameters()]
        modes = [(module, module.training) for module in model.modules()]
        try:
            for p, _, _ in flags:
                p.requires_grad_(id(p) in ours)
                p.grad = None
            model.train(bool(ours))
            yield
        finally:
            for p, flag, gradient in flags:
                p.grad = None
                p.requires_grad_(flag)
                p.grad = gradient
            for module, mode in modes:
                module.training = mode


@contextmanager
def dice(seed: int, step: int, device: torch.device) -> Iterator[torch.Generator]:
    """Make all that is random in a step follow from seed and step alone, so that a run can go on from any step."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(random.Random(f"dropout {seed} {step}").getrandbits(62))
        yield torch.Generator().manual_seed(random.Random(f"gates {seed} {step}").getrandbits(62))


def schedule(done: float, ramp: float, decay: float) -> tuple[float, float]:
    """Return the factors of penalty and learning rates when the share ``done`` of the steps is done.

    The penalty rises in a line from 0 for the share ``ramp`` of the steps; the rates fall in a line for the share
    ``decay`` at the end.

    >>> schedule(0.25, ramp=0.5, decay=0.5), schedule(0.75, ramp=0.5, decay=0.5), schedule(0.0, 0.0, 0.0)
    ((0.5, 1.0), (1.0, 0.5), (1.0, 1.0))
    """
    return min(1.0, done / ramp) if ramp else 1.0, min(1.0, (1 - done) / decay) if decay else 1.0


def in_turn(batches: Batches, first: int) -> Iterator[Mapping]:
    """Yield the batches of step ``first`` and on: ``batches(step)``, or one or several gone through again and again.

    Raises ``ValueError`` for no batches or an iterator that ran out, ``TypeError`` for something that is no batch.
    """
    if isinstance(batches, Mapping):
        batches = [batches]
    given = _called(batches, first) if callable(batches) else islice(_endless(batches), first, None)
    for step, batch in enumerate(given):
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"batch {first + step} is a {type(batch).__name__}; needed: a dict of the model's arguments, such as "
                '{"input_ids": ..., "labels": ...}'
            )
        yield batch


def _called(batches: Callable[[int], Mapping], step: int) -> Iterator[Mapping]:
    while True:
        yield batches(step)
        step += 1


def _endless(batches: Iterable[Mapping]) -> Iterator[Mapping]:
    seen = 0
    while True:
        before = seen
        for batch in batches:
            seen += 1
            yield batch
        if seen == before:
            raise ValueError(f"the batches ran out after {seen}; pass a list, which is gone through again")


MODELS = ("model", "student", "network", "net", "m")  # what the first parameter of a loss of the old form is called


def takes_model(loss: Loss | str | None) -> bool:
    """Tell a loss of the old form, loss(model, batch), by the name of its first parameter.

    >>> takes_model(lambda model, batch: 0), takes_model(lambda outputs, batch: 0)
    (True, False)
    """
    try:
        return callable(loss) and next(iter(inspect.signature(loss).parameters), None) in MODELS
    except ValueError:  # a function that is not written in Python
        return False


def warn_of_old_loss(loss: Loss | str | None) -> None:
    """Warn where a loss is of the old form, which one more release takes."""
    if takes_model(loss):
        warnings.warn(
            "loss(model, batch) is the old form, which the next release no longer takes: write loss(outputs, batch), "
            "as everywhere else; outputs are what model(**batch) returns",
            DeprecationWarning,
            stacklevel=4,  # past this function, fit_gates or recover, and the wrapper that knows old names
        )


def size(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def repeated(batch: Mapping, times: int) -> dict:
    """Return a batch with its examples ``times`` times over, one whole batch after another."""
    return {
        name: value.repeat(times, *[1] * (value.dim() - 1)) if isinstance(value, Tensor) and value.dim() else value
        for name, value in batch.items()
    }


def _asked(loss: Callable, given: nn.Module | Any, batch: Mapping) -> Any:
    try:
        return loss(given, batch)
    except TypeError as error:
        if f"{type(given).__name__!r} object is not callable" not in str(error):
            raise
        raise TypeError(
            f"a loss is loss(outputs, batch), and outputs are what model(**batch) returned, a {type(given).__name__}; "
            "this one calls them as if they were the model: take what it needs from outputs and batch"
        ) from error


def task_loss(model: nn.Module, batch: Mapping, loss: Loss | str | None, sets: int) -> Tensor:
    """Return the mean loss of each set of gates, (sets,), where the batch holds its examples ``sets`` times over.

    A loss of one number is taken for the mean over all sets, and given to each: its gradient is right, and its value
    is their mean.
    """
    if loss is None:
        value = getattr(model(**batch), "loss", None)
    elif isinstance(loss, str):
        value = each_loss(model, batch, loss)
    else:
        value = _asked(loss, model if takes_model(loss) else model(**batch), batch)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"the loss is {value!r}; needed: batches with labels, so that model(**batch).loss is there, or "
            "loss=function(outputs, batch) -> (B,)"
        )
    if value.dim() == 0:
        return value.expand(sets)
    if value.shape != (size(batch),):
        raise ValueError(f"the loss has shape {tuple(value.shape)}; needed: (), or one an example ({size(batch)},)")
    return value.view(sets, -1).mean(1)
