"""What a training run is given, and what is refused: the weights that learn, the batches, the loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count, islice

from torch import Tensor, nn

from headtools.importance._inputs import each_batch
from headtools.importance.loss import Loss, each_loss

Batches = Callable[[int], Mapping] | Mapping | Iterable[Mapping]


def trained_weights(model: nn.Module, weights: str | Collection[str] | None) -> dict[str, nn.Parameter]:
    """Return the parameters that learn: "all", "encoder", None, or those whose names start with one of ``weights``.

    "encoder" are the weights that only the encoder uses: word vectors shared with the decoder are left out. Frozen
    parameters (``requires_grad=False``) stay frozen. Raises ``ValueError`` where none is left.
    """
    if weights is None:
        return {}
    selected = dict(model.named_parameters())
    if weights == "encoder":
        encoder = model.get_encoder() if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else None
        prefix = next((f"{name}." for name, module in model.named_modules() if module is encoder), None)
        if prefix is None:
            raise ValueError(f'{type(model).__name__} has no encoder of its own: use weights="all" or weights=None')
        # With duplicates: a tied weight is listed under each of its names, so one outside the encoder shows that it is
        # shared, even where named_parameters() would list it under its encoder name alone.
        all_names = model.named_parameters(remove_duplicate=False)
        shared = {id(p) for name, p in all_names if not name.startswith(prefix)}
        selected = {name: p for name, p in selected.items() if name.startswith(prefix) and id(p) not in shared}
    elif weights != "all":
        prefixes = (weights,) if isinstance(weights, str) else tuple(weights)
        selected = {name: p for name, p in selected.items() if name.startswith(prefixes)}
    if not selected:
        raise ValueError(
            f"no weight of {type(model).__name__} matches weights={weights!r}: write the beginnings of names such as "
            f"{next(iter(dict(model.named_parameters())), 'those of named_parameters()')!r}"
        )
    trainable = {name: p for name, p in selected.items() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"all {len(selected)} weights that weights={weights!r} means are frozen, {min(selected)} among them: let "
            "some learn first, model.requires_grad_(True), or train gates alone, weights=None"
        )
    return trainable


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


def batches_from(model: nn.Module, batches: Batches, first_step: int) -> Iterator[Mapping]:
    """Yield the batch of each step from ``first_step`` on: ``batches(step)``, or one or several in endless rotation.

    Raises ``ValueError`` where there are no batches or an iterator ran out, and as ``each_batch`` does.
    """
    if callable(batches):
        return each_batch(model, map(batches, count(first_step)))
    rotation = _rotation([batches] if isinstance(batches, Mapping) else batches)
    return each_batch(model, islice(rotation, first_step, None))


def _rotation(batches: Iterable[Mapping]) -> Iterator[Mapping]:
    while True:  # not itertools.cycle: a loader may shuffle its batches anew in every round
        n = 0
        for n, batch in enumerate(batches, 1):  # noqa: B007
            yield batch
        if not n:
            raise ValueError(
                "got no batches, or a generator that is used up: pass a list of dicts, which can be gone through again"
            )


def batch_size(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def task_loss(model: nn.Module, batch: Mapping, loss: Loss | None) -> Tensor:
    """Return the mean loss of a batch; ``loss`` returns one number per example, (B,), or their mean."""
    if loss is None:
        value = getattr(model(**batch), "loss", None)
    else:
        value = each_loss(model, batch, loss) if isinstance(loss, str) else loss(model(**batch), batch)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"got {value!r} as the loss; expected a tensor: write batches with labels, so that model(**batch).loss is "
            "there, or loss=function(outputs, batch) -> (B,)"
        )
    if value.shape not in ((), (batch_size(batch),)):
        raise ValueError(
            f"got a loss of shape {tuple(value.shape)}; expected (), or one number per example, ({batch_size(batch)},)"
        )
    return value.mean()
