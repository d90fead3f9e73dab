"""NaN and infinity: found where a measure reads tensors, and traced to the weights that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headtools.heads.sites import Site, sites

# what ``record`` keeps: its name in messages, and the dimension of the heads
_RECORDED = {
    "maps": ("attention weights", 1),
    "z": ("outputs z", 2),
    "q": ("queries", 1),
    "k": ("keys", 1),
    "v": ("values", 1),
}


def check_recorded(model: nn.Module, site: Site, name: str, recorded: Tensor) -> None:
    """Raise ``ValueError`` where a recorded tensor of a site ("maps", "z", ...) holds NaN or infinity.

    The message says in which heads, and which weights cause it. A valid tensor costs one sum.
    """
    if recorded.sum(dtype=torch.promote_types(recorded.dtype, torch.float32)).isfinite():
        return
    description, dim = _RECORDED[name]
    broken = ~recorded.isfinite().movedim(dim, 0).flatten(1).all(1)  # (heads,), or (kv_heads,) for k and v
    if broken.any():
        heads = broken.repeat_interleave(site.heads // len(broken)).nonzero().flatten().tolist()
        raise ValueError(
            f"{site.label}, {heads_label(heads, site.heads)}: {description} are NaN or infinite; "
            f"{explain_nonfinite(model)}"
        )


def check_weights(model: nn.Module, known_sites: Iterable[Site] | None = None) -> None:
    """Raise ``ValueError`` for a model in which a weight of an attention layer is NaN or infinite.

    For measures that read the model's output only. Where a query or a key is NaN, torch's fused attention may return
    zeros, so that loss and gradient are finite and wrong. NaN in any other weight reaches the output and is noticed.
    ``known_sites`` saves a search where the caller has the model's sites.
    """
    weights = [
        weight.detach()
        for site in known_sites or _sites(model)
        for weight in _weights(site)
        if weight.is_floating_point() and not weight.is_meta
    ]
    sums = [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    if not all(total.isfinite() for total in sums):  # read after all are asked for, so that a GPU waits once
        reason = nonfinite_weights(model)
        if reason:  # else only a sum overflowed
            raise ValueError(f"{type(model).__name__} cannot be measured: {reason}; load it again")


def explain_nonfinite(model: nn.Module) -> str:
    """Say which weights make a model's numbers NaN, or that none does.

    >>> explain_nonfinite(nn.Linear(2, 2))
    'no weight of the model is NaN or infinite, so check the batch, and the precision: float16 overflows early'
    """
    return nonfinite_weights(model) or (
        "no weight of the model is NaN or infinite, so check the batch, and the precision: float16 overflows early"
    )


def nonfinite_weights(model: nn.Module) -> str:
    """Say which weights hold NaN or infinity, by layer and head where they are a head's; '' where none does.

    Only the first such layer is named, because its output spreads them to all later ones.
    """
    nonfinite = {
        name: tensor
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if _is_nonfinite(tensor, isinstance(tensor, nn.Parameter))
    }
    if not nonfinite:
        return ""
    all_names = list(nonfinite)
    for site in _sites(model):
        own = {id(weight) for weight in _weights(site)}
        names = [name for name in all_names if id(nonfinite[name]) in own]
        if all_names[0] in names:
            heads = nonfinite_heads(site)
            where = f"{site.label}, {heads_label(heads, site.heads)}," if heads else site.label
            kind = _nan_or_infinity(nonfinite[name] for name in names)
            return f"the weights of {where} hold {kind} ({', '.join(names)})"
    more = f" and {len(all_names) - 3} more" if len(all_names) > 3 else ""
    return f"the weights {', '.join(all_names[:3])}{more} hold {_nan_or_infinity(nonfinite.values())}"


def nonfinite_heads(site: Site) -> list[int]:
    """Return the heads whose own rows of the projections hold NaN or infinity.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> model.encoder.layer[1].attention.self.key.bias.data[5] = torch.nan
    >>> [nonfinite_heads(site) for site in sites(model)]
    [[], [1]]
    """
    # with grouped-query attention a broken key head breaks every query head of its group
    broken = torch.zeros(site.heads, dtype=torch.bool)
    for projection in (site.q, site.k, site.v):
        for weight in () if projection is None else (projection.weight(), projection.bias()):
            if weight is not None:
                of_head = ~weight.isfinite().flatten(1).all(1).cpu()  # (heads,) or (kv_heads,)
                broken |= of_head.repeat_interleave(site.heads // len(of_head))
    return (broken | ~site.w_o.isfinite().flatten(1).all(1).cpu()).nonzero().flatten().tolist()


def heads_label(heads: Sequence[int], n_heads: int) -> str:
    """Return heads for people: 'head 2', 'heads [0, 1]', or 'all heads' of ``n_heads``."""
    if len(heads) == n_heads > 1:
        return "all heads"
    return f"head {heads[0]}" if len(heads) == 1 else f"heads {list(heads)}"


def _sites(model: nn.Module) -> list[Site]:
    try:
        return list(sites(model))
    except (TypeError, ValueError):  # a model without attention, or whose heads cannot be found
        return []


def _weights(site: Site) -> list[Tensor]:
    modules = [site.module, site.out, *(p.module for p in (site.q, site.k, site.v) if p is not None)]
    return [weight for module in modules for weight in module.parameters()]


def _is_nonfinite(tensor: Tensor, is_weight: bool) -> bool:
    """Return whether a tensor holds NaN or, if it is a weight, infinity: a mask kept as a buffer may be infinite."""
    if tensor.is_meta or not tensor.is_floating_point():
        return False
    return not tensor.detach().isfinite().all() if is_weight else bool(tensor.isnan().any())


def _nan_or_infinity(tensors: object) -> str:
    return "NaN" if any(tensor.isnan().any() for tensor in tensors) else "infinity"
