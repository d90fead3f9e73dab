"""Check what the user asked for against the heads that are there, and the batch against what a model can answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtools.heads._compiled import hooks_are_seen
from headtools.heads._interventions import claimed
from headtools.heads.sites import Site, Sites, whole_number

WITHOUT_FLOAT64 = frozenset({"mps"})  # devices: Apple's

Heads = Mapping[tuple, Iterable[int]] | Iterable[tuple]


def select(sites: Sites, heads: Heads, original: bool = False) -> dict[Site, list[int]]:
    """Return the chosen heads as {site: [head, ...]}, sorted.

    ``heads``: ``{("encoder", 2): [0, 5]}`` or ``[("encoder", 2, 0), ...]``, numbered as the sites have them now, or,
    with ``original``, as they had them before any pruning.

    Raises ``TypeError`` for any other form, ``KeyError`` for an unknown site, ``IndexError`` for a head out of range
    and ``ValueError`` for one named twice.
    """
    if isinstance(heads, Mapping):
        groups = [(key, _listed(key, some)) for key, some in heads.items()]
    elif isinstance(heads, Iterable) and not isinstance(heads, (str, Tensor)):
        groups = [(h[:-1], [h[-1]]) for h in map(_triple, heads)]
    else:
        raise TypeError(f'heads must look like {{("encoder", 2): [0, 5]}} or [("encoder", 2, 0)], got {heads!r}')
    chosen: dict[Site, list[int]] = {}
    for key, some in groups:
        site = sites[key]
        if isinstance(site, Sites):
            raise KeyError(f"{key!r} names a kind, not a site: write {site.all[0].key}")
        for head in (_number(head, site) for head in some):
            if original:
                head = _present(head, site)
            if not 0 <= head < site.heads:
                raise IndexError(f"{site.label} has heads 0..{site.heads - 1}, got {head} (heads count from 0)")
            if head in chosen.setdefault(site, []):
                raise ValueError(f"head {site.label}.{head} is named twice: name each head once")
            chosen[site].append(head)
    return {site: sorted(some) for site, some in chosen.items()}


def _listed(key: object, some: object) -> list:
    if isinstance(some, Iterable) and not isinstance(some, (str, bytes)):
        return list(some)
    raise TypeError(f"the heads of {key} must be a list, got {some!r}; write {{{key}: [{some}]}}")


def _number(head: object, site: Site) -> int:
    """Return a head's number as an int, whichever library's whole number it is (a pandas frame gives numpy's)."""
    try:
        return whole_number(head)
    except TypeError:
        raise TypeError(f"a head is a whole number, got {head!r} for {site.label}") from None


def _present(head: int, site: Site) -> int:
    """Return the present number of the head that had this one before any pruning."""
    if head not in site.original:
        raise ValueError(f"head {site.label}.{head} is not there; left are {list(site.original)}")
    return site.original.index(head)


def _triple(item: object) -> tuple:
    if isinstance(item, (tuple, list)) and len(item) in (3, 4):
        return tuple(item)
    raise TypeError(f'a head is named (kind, layer, head), e.g. ("encoder", 2, 0), got {item!r}')


def refuse_compiled(model: nn.Module) -> None:
    """Raise for a model that hooks do not follow: compiled before, or spread by DataParallel.

    ``RuntimeError`` for one that is compiled: hooks entered after ``torch.compile`` are ignored silently. ``TypeError``
    for a wrapper around the model, which hides its configuration (so labels would be taken for others) and may split
    batches over threads.
    """
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        name = type(model).__name__
        raise TypeError(f"{name} is no model, it spreads one over devices: pass the model inside, model.module")
    for name, module in model.named_modules():
        if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
            raise RuntimeError(
                f"{name or 'the model'} was compiled before: torch.compile ignores hooks added later, so nothing would "
                "happen. Enter the context first and compile inside it, or use the model as it was (model._orig_mod)"
            )


def refuse_offloaded(model: nn.Module, what: str) -> None:
    """Raise ``ValueError`` for a model of which some weights are elsewhere (``device_map``) until a layer runs."""
    away = [name for name, weight in model.named_parameters() if weight.is_meta]
    if away:
        raise ValueError(
            f"{what} reads weights that are not there: {len(away)} are offloaded, {away[0]} among them; load the model "
            "without offloading, device_map=None, or on devices that hold it whole"
        )


def device_of(model: nn.Module) -> torch.device:
    """Return the device on which a model takes its batches: its first weight's, or where an offloaded weight is used.

    >>> device_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    weight = next(model.parameters(), None)
    if weight is not None and not weight.is_meta:
        return weight.device
    for module in model.modules():
        hook = getattr(module, "_hf_hook", None)  # accelerate's
        for one in getattr(hook, "hooks", [hook]):
            if getattr(one, "execution_device", None) is not None:
                return torch.device(one.execution_device)
    return torch.device("cpu")


def check_batch(batch: Mapping) -> None:
    """Raise ``ValueError`` for a batch that is empty, or that brings a cache, which every run would make longer.

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
            "the batch has past_key_values: a cache grows with every run, and its tokens were computed with all heads; "
            "pass the whole text as input_ids, and batch.pop('past_key_values')"
        )


@contextmanager
def holding(model: nn.Module, context: str, sites: Iterable[Site]) -> Iterator[None]:
    """Hold a model and some of its sites for one context: see ``interventions.py``; and watch its inputs.

    ``context`` is its name, "ablate()". Raises ``RuntimeError`` where another thread holds them.
    """
    parts = (part for site in sites for part in (site.module, site.out))
    with claimed(context, [model, *parts]), hooks_are_seen():
        handle = watch_inputs(model)
        try:
            yield
        finally:
            handle.remove()


def watch_inputs(model: nn.Module) -> torch.utils.hooks.RemovableHandle:
    """Refuse empty batches and rows that are all padding, where attention has nothing to look at."""
    return model.register_forward_pre_hook(_check_inputs, with_kwargs=True)


def _check_inputs(model: nn.Module, args: tuple, kwargs: dict) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.numel() == 0:
            raise ValueError(f"the batch is empty: got a tensor of shape {tuple(value.shape)}; pass an example or more")
    for name in ("attention_mask", "decoder_attention_mask"):
        mask = kwargs.get(name)
        if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.bool().any(1).all()):
            rows = (~mask.bool().any(1)).nonzero().flatten().tolist()
            raise ValueError(
                f"{name}: rows {rows} are all padding, and attention over nothing is no number; drop them, e.g. "
                f"keep = {name}.any(1)"
            )


def wide(x: Tensor) -> Tensor:
    """Return a tensor in float64: on its own device, or on the CPU where the device has no float64.

    >>> wide(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in WITHOUT_FLOAT64 else x).double()
