"""Check a model and a batch before anything is computed: each function raises on bad input and says what to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from headtools.heads.sites import Site


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
                "happen. Enter the context first and compile inside it, or use the uncompiled model (model._orig_mod)"
            )


def check_not_offloaded(model: nn.Module, what: str) -> None:
    """Raise ``ValueError`` for a model some of whose weights are offloaded (``device_map``) until their layer runs."""
    offloaded = [name for name, weight in model.named_parameters() if weight.is_meta]
    if offloaded:
        raise ValueError(
            f"{what} reads the model's weights, and {len(offloaded)} of them are offloaded, such as {offloaded[0]}; "
            "load the model without offloading, device_map=None, or on devices with enough memory for all of it"
        )


def check_interface(site: Site, consequence: str) -> None:
    """Raise ``ValueError`` for a site whose queries, keys, values and maps cannot be reached."""
    if not site.interface:
        name = type(site.module).__name__
        raise ValueError(f"{name} ({site.label}) does not use transformers' AttentionInterface, so {consequence}")


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
    """Raise ``ValueError`` when, inside the context, the model gets an empty batch or a row that is all padding."""
    handle = model.register_forward_pre_hook(_check_inputs, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _check_inputs(model: nn.Module, args: tuple, kwargs: dict) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.numel() == 0:
            raise ValueError(f"the batch is empty: got a tensor of shape {tuple(value.shape)}; pass an example or more")
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = kwargs.get(name)
        # a 4D mask was made by hand and may mean anything; only a padding mask (B, T) is checked
        if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.bool().any(1).all()):
            rows = (~mask.bool().any(1)).nonzero().flatten().tolist()
            raise ValueError(
                f"{name}: rows {rows} are all padding, and a softmax over no keys is NaN; drop these rows, e.g. "
                f"keep = {name}.any(1)"
            )
