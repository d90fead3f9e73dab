"""Check a model, a batch and what was measured: each function raises on what would give wrong numbers, and says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtools.heads._layout import is_packed, is_projection, obstacle
from headtools.heads.sites import Site, sites

# --- models -----------------------------------------------------------------------------------------------------------


def check_not_compiled(model: nn.Module) -> None:
    """Raise for a model whose hooks would not run: compiled before, or wrapped for several devices.

    ``RuntimeError`` for a compiled model: ``torch.compile`` silently ignores hooks that are registered later.
    ``TypeError`` for ``DataParallel`` and ``DistributedDataParallel``: they hide the model's configuration, from which
    the default loss is chosen, and may split batches over threads.
    """
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(
            f"got a {type(model).__name__}, which spreads a model over devices; expected the model inside: model.module"
        )
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise RuntimeError(
                f"{name or 'the model'} was compiled before: torch.compile ignores hooks added later, so nothing would "
                "happen: use the uncompiled model (model._orig_mod), or load it again"
            )


def check_not_offloaded(model: nn.Module, what: str) -> None:
    """Raise ``ValueError`` for a model some of whose weights are offloaded (``device_map``) until their layer runs."""
    for name, weight in model.named_parameters():
        if weight.is_meta:
            raise ValueError(
                f"{what} reads the model's weights, and {name} is offloaded; load the model without offloading, "
                "device_map=None, or on devices with enough memory for all of it"
            )


def check_plain_weights(model: nn.Module, modules: Iterable[nn.Module], what: str) -> None:
    """Raise ``ValueError`` where projections among ``modules`` apply more than their own floating-point weight.

    >>> layer = torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    >>> check_plain_weights(nn.Sequential(layer), [layer], "prune")
    Traceback (most recent call last):
    ...
    ValueError: prune needs plain weights, and that is not so at 0: the weight of a ParametrizedLinear is computed ...
    """
    if hasattr(model, "peft_config"):
        raise ValueError(
            f"{what} needs plain weights, and {type(model).__name__} has adapters of PEFT; merge them first: "
            "model = model.merge_and_unload(), of peft.PeftModel.from_pretrained(plain_model, adapter_folder)"
        )
    for module in modules:
        if is_projection(module) and (reason := obstacle(module)):
            name = next((name for name, other in model.named_modules() if other is module), type(module).__name__)
            raise ValueError(f"{what} needs plain weights, and that is not so at {name}: {reason}")


def check_has_backward(model: nn.Module, what: str) -> None:
    """Raise ``TypeError`` for a model with quantised layers (torch.ao, torchao) through which no gradient flows."""
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        blocked = type(module).__module__.startswith("torch.ao.") and callable(weight)
        if isinstance(weight, Tensor) and weight.dim() == 2 and is_packed(weight):
            # Some of torchao's kinds have a backward pass: tried on a row of zeros.
            row = torch.zeros(1, weight.shape[1], device=weight.device, dtype=weight.dtype, requires_grad=True)
            with torch.inference_mode(False), torch.enable_grad():
                blocked = not nn.functional.linear(row, weight).requires_grad
        if blocked:
            raise TypeError(
                f"{what} needs gradients, and none flows through {name} ({type(module).__name__}, "
                f"{type(module).__module__}); load the model in floating point. ablation(model, batches) needs forward "
                "passes only"
            )


def check_interface(site: Site, consequence: str) -> None:
    """Raise ``ValueError`` for a site whose queries, keys, values and maps cannot be reached."""
    if not site.interface:
        name = type(site.module).__name__
        raise ValueError(f"{name} ({site.label}) does not use transformers' AttentionInterface, so {consequence}")


# --- batches ----------------------------------------------------------------------------------------------------------


def check_batch(batch: Mapping) -> None:
    """Raise ``ValueError`` for a batch that is empty, or that has a cache, which every forward pass would extend.

    >>> check_batch({})
    Traceback (most recent call last):
    ValueError: the batch is empty: got a dict without entries; pass {"input_ids": ..., "attention_mask": ...}
    """
    if not batch:
        raise ValueError(
            'the batch is empty: got a dict without entries; pass {"input_ids": ..., "attention_mask": ...}'
        )
    if batch.get("past_key_values") is not None:
        raise ValueError(
            "the batch has past_key_values: a cache grows with every forward pass, and its entries were computed with "
            "all heads; pass the full text as input_ids, and batch.pop('past_key_values')"
        )


@contextmanager
def checked_inputs(model: nn.Module) -> Iterator[None]:
    """Raise when, inside the context, the model gets an empty batch or a row that is all padding, or is compiled."""
    handle = model.register_forward_pre_hook(_check_inputs, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _check_inputs(model: nn.Module, args: tuple, kwargs: dict) -> None:
    if model._compiled_call_impl is not None:
        check_not_compiled(model)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.numel() == 0:
            raise ValueError(f"the batch is empty: got a tensor of shape {tuple(value.shape)}; pass an example or more")
    ids = kwargs.get("input_ids", args[0] if args else None)
    # the id that stands for pictures may be beyond the vocabulary (PaliGemma): the model replaces it
    beside = any(name.startswith(("pixel", "image", "input_features", "input_values")) for name in kwargs)
    if isinstance(ids, Tensor) and ids.dim() == 2 and not ids.is_floating_point() and not beside:
        _check_ids(model, ids)
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = kwargs.get(name)
        # a 4D mask was made by hand and may mean anything; only a padding mask (B, T) is checked
        if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.bool().any(1).all()):
            rows = (~mask.bool().any(1)).nonzero().flatten().tolist()
            raise ValueError(
                f"{name}: rows {rows} are all padding, and a softmax over no keys is NaN; drop these rows, e.g. "
                f"keep = {name}.any(1)"
            )


def _check_ids(model: nn.Module, ids: Tensor) -> None:
    """Raise ``ValueError`` for ids that the model has no embedding for, and for more tokens than it has positions."""
    try:
        known = getattr(model.get_input_embeddings(), "num_embeddings", None)
    except (AttributeError, NotImplementedError):
        return  # no model of transformers, or one that reads no text
    if known is not None and not ids.is_meta and (ids.max() >= known or ids.min() < 0):
        raise ValueError(
            f"input_ids run from {ids.min().item()} to {ids.max().item()}, and the model knows 0 to {known - 1}: use "
            "the tokenizer that belongs to it"
        )
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if positions is None or ids.shape[1] <= positions:
        return
    for name, module in model.named_modules():  # rotary positions go on for ever, a table of them ends
        if "position" in name.rpartition(".")[2] and isinstance(module, nn.Embedding) and "relative" not in name:
            raise ValueError(
                f"the texts have {ids.shape[1]} tokens, and {type(model).__name__} has {positions} positions: "
                "tokenizer(texts, truncation=True, ...), or leave long texts out"
            )


# --- NaN and infinity -------------------------------------------------------------------------------------------------

_RECORDED = {
    "maps": "attention weights",
    "rows": "attention weights",
    "z": "outputs z",
    "q": "queries",
    "k": "keys",
    "v": "values",
}


def check_recorded(model: nn.Module, site: Site, name: str, recorded: Tensor) -> None:
    """Raise ``ValueError`` where a recorded tensor of a site ("maps", "z", ...) holds NaN or infinity.

    The message says in which heads, and which weights cause it. A valid tensor costs one sum.
    """
    if recorded.sum(dtype=torch.promote_types(recorded.dtype, torch.float32)).isfinite():
        return
    # (heads,), or (kv_heads,) for k and v
    broken = ~recorded.isfinite().movedim(2 if name == "z" else 1, 0).flatten(1).all(1)
    if broken.any():  # else only the sum overflowed
        heads = broken.repeat_interleave(site.heads // len(broken)).nonzero().flatten().tolist()
        raise ValueError(
            f"{site.label}, {heads_label(heads, site.heads)}: {_RECORDED[name]} are NaN or infinite; "
            f"{explain_nonfinite(model)}"
        )


def check_weights(model: nn.Module, known_sites: Iterable[Site] | None = None) -> None:
    """Raise ``ValueError`` for a model in which a weight of an attention layer is NaN or infinite.

    For measures that read the model's output only. Where a query or a key is NaN, torch's fused attention may return
    zeros, so that loss and gradient are finite and wrong. NaN in any other weight reaches the output and is noticed.
    ``known_sites``, left out, are all of the model.
    """
    weights = [
        weight.detach()
        for site in (sites(model) if known_sites is None else known_sites)
        for module in (site.module, site.out, *(p.module for p in (site.q, site.k, site.v) if p is not None))
        for weight in module.parameters()
        if weight.is_floating_point() and not weight.is_meta and not is_packed(weight)
    ]
    sums = [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    # read after all are asked for, so that a GPU waits once
    if not all(total.isfinite() for total in sums) and (reason := nonfinite_weights(model)):
        raise ValueError(f"{type(model).__name__} cannot be measured: {reason}; load it again")


def nonfinite_weights(model: nn.Module) -> str:
    """Say which weights hold NaN or infinity, by name; '' where none does.

    >>> layer = nn.Linear(2, 2)
    >>> layer.bias.data[0] = torch.nan
    >>> nonfinite_weights(nn.Sequential(layer))
    'the weights 0.bias hold NaN'
    """
    tensors = [(name, weight, weight.isfinite) for name, weight in model.named_parameters()]
    # a mask kept as a buffer may be infinite
    tensors += [(name, buffer, lambda buffer=buffer: ~buffer.isnan()) for name, buffer in model.named_buffers()]
    broken = {
        name: tensor.detach()
        for name, tensor, is_valid in tensors
        if tensor.is_floating_point() and not tensor.is_meta and not is_packed(tensor) and not is_valid().all()
    }
    if not broken:
        return ""
    more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
    kind = "NaN" if any(tensor.isnan().any() for tensor in broken.values()) else "infinity"
    return f"the weights {', '.join(list(broken)[:3])}{more} hold {kind}"


def explain_nonfinite(model: nn.Module) -> str:
    """Say which weights make a model's numbers NaN, or that none does.

    >>> explain_nonfinite(nn.Linear(2, 2))
    'no weight of the model is NaN or infinite, so check the batch, and the precision: float16 overflows early'
    """
    return nonfinite_weights(model) or (
        "no weight of the model is NaN or infinite, so check the batch, and the precision: float16 overflows early"
    )


def heads_label(heads: Sequence[int], n_heads: int) -> str:
    """Return heads for people: 'head 2', 'heads [0, 1]', or 'all heads' of ``n_heads``."""
    if len(heads) == n_heads > 1:
        return "all heads"
    return f"head {heads[0]}" if len(heads) == 1 else f"heads {list(heads)}"
