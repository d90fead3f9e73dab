"""NaN and infinity where a measure reads numbers: seen, and traced to the weights that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headtools.heads.sites import Site, sites

# what is recorded of heads: how people call it, and the dimension that counts the heads
SEEN = {
    "maps": ("attention weights", 1),
    "z": ("outputs z", 2),
    "q": ("queries", 1),
    "k": ("keys", 1),
    "v": ("values", 1),
}


def refuse_broken(model: nn.Module, site: Site, name: str, seen: Tensor) -> None:
    """Raise ``ValueError`` where what was recorded of a site ("maps", "z", ...) holds NaN or infinity.

    Says in which heads, and which weights are to blame. One sum a tensor where all is well.
    """
    if seen.sum(dtype=torch.promote_types(seen.dtype, torch.float32)).isfinite():
        return
    what, dim = SEEN[name]
    broken = ~seen.isfinite().movedim(dim, 0).flatten(1).all(1)  # of key and value heads, which query heads may share
    if broken.any():
        heads = broken.repeat_interleave(site.heads // len(broken)).nonzero().flatten().tolist()
        raise ValueError(f"{site.label}, {named(heads, site.heads)}: {what} are NaN or infinite; {cause(model)}")


def refuse_unfit(model: nn.Module, found: Iterable[Site] | None = None) -> None:
    """Raise ``ValueError`` for a model in which a weight of an attention layer is NaN or infinite.

    Every measure that looks at outputs alone asks first: where a query or a key is NaN, torch's fused attention may
    give zeros, so that loss and gradient are finite, and wrong. NaN in other weights reaches the output and is seen.
    ``found`` are the model's sites, where they are known already.
    """
    sums = [weight.detach().sum(dtype=torch.promote_types(weight.dtype, torch.float32)).cpu()
            for site in (_sites(model) if found is None else found) for weight in _weights(site)
            if weight.is_floating_point() and not weight.is_meta]  # fmt: skip
    if sums and not torch.stack([part.double() for part in sums]).isfinite().all():
        why = unfit_weights(model)
        if why:  # and not only a sum that overflows
            raise ValueError(f"{type(model).__name__} cannot be measured: {why}; load it again")


def cause(model: nn.Module) -> str:
    """Say which weights make a model's numbers NaN, or that none does.

    >>> cause(nn.Linear(2, 2))
    'no weight of the model is NaN or infinite, so look at the batch, and at the precision: float16 overflows early'
    """
    return unfit_weights(model) or (
        "no weight of the model is NaN or infinite, so look at the batch, and at the precision: float16 overflows early"
    )


def unfit_weights(model: nn.Module) -> str:
    """Say which weights hold NaN or infinity, by layer and head where they are a head's; '' where none does.

    The first layer of them is named: what it gives spreads to all later ones.
    """
    unfit = {name: tensor for name, tensor in [*model.named_parameters(), *model.named_buffers()]
             if _is_unfit(tensor, isinstance(tensor, nn.Parameter))}  # fmt: skip
    if not unfit:
        return ""
    first = next(iter(unfit.values()))
    own = [(site, _weights(site)) for site in _sites(model)]
    for site, weights in own:
        if any(first is weight for weight in weights):
            names = [name for name, tensor in unfit.items() if any(tensor is weight for weight in weights)]
            heads = unfit_heads(site)
            where = f"{site.label}, {named(heads, site.heads)}," if heads else site.label
            return f"the weights of {where} hold {_what(unfit[name] for name in names)} ({', '.join(names)})"
    of_heads = {id(weight) for _, weights in own for weight in weights}
    names = [name for name, tensor in unfit.items() if id(tensor) not in of_heads]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"the weights {', '.join(names[:3])}{more} hold {_what(unfit[name] for name in names)}"


def unfit_heads(site: Site) -> list[int]:
    """Return the heads whose own rows of the projections hold NaN or infinity.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> model.encoder.layer[1].attention.self.key.bias.data[5] = torch.nan
    >>> [unfit_heads(site) for site in sites(model)]
    [[], [1]]
    """
    broken = torch.zeros(site.heads, dtype=torch.bool)
    for projection in (site.q, site.k, site.v):
        for weight in () if projection is None else (projection.weight(), projection.bias()):
            if weight is not None:
                rows = ~weight.isfinite().flatten(1).all(1).cpu()
                broken |= rows.repeat_interleave(site.heads // len(rows))
    return (broken | ~site.w_o.isfinite().flatten(1).all(1).cpu()).nonzero().flatten().tolist()


def named(heads: Sequence[int], number: int) -> str:
    """Return heads for people: 'head 2', 'heads [0, 1]', or 'all heads' of ``number``."""
    if len(heads) == number > 1:
        return "all heads"
    return f"head {heads[0]}" if len(heads) == 1 else f"heads {list(heads)}"


def _sites(model: nn.Module) -> list[Site]:
    try:
        return list(sites(model))
    except (TypeError, ValueError):  # a model without attention, or one whose heads cannot be told
        return []


def _weights(site: Site) -> list[Tensor]:
    modules = [site.module, site.out, *(part.module for part in (site.q, site.k, site.v) if part is not None)]
    return [weight for module in modules for weight in module.parameters()]


def _is_unfit(tensor: Tensor, is_weight: bool) -> bool:
    """Tell a weight that is no number everywhere; masks kept as buffers may be infinite."""
    if tensor.is_meta or not tensor.is_floating_point():
        return False
    return not tensor.detach().isfinite().all() if is_weight else bool(tensor.isnan().any())


def _what(tensors: object) -> str:
    return "NaN" if any(tensor.isnan().any() for tensor in tensors) else "infinity"
