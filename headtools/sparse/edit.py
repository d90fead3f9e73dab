"""Edit the weights of one head: ``edit`` removes directions from what it writes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_not_offloaded, check_plain_weights
from headtools.heads._devices import to_float64
from headtools.heads._hooks import claimed, context, override
from headtools.heads._layout import is_transposed
from headtools.heads.sites import Site, select, sites


@context
def edit(model: nn.Module, head: tuple, *, remove: Tensor) -> Iterator[None]:
    """Edit the weights of one head while the context lasts; afterwards they are what they were, bit for bit.

    The head ("encoder", 2, 0) no longer writes along ``remove``, directions (d,) or (n, d): W_O ← W_O (I − V Vᵀ), with
    V an orthonormal basis of their span (Bolukbasi et al. 2016, arXiv:1607.06520). The output projection's bias stays.
    Edits nest. To keep one, copy the model inside the context; do not train there.

    Raises ``KeyError`` or ``IndexError`` for a head that does not exist, ``ValueError`` or ``TypeError`` for directions
    of another width, zero or NaN, and for a head without plain weights of its own (shared, latent or tied ones).

    >>> import torch, headtools as ht
    >>> from headtools.geometry import ov
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> before = ov(model)["encoder", 1, 3]
    >>> top = before.svd()[2][:, 0]  # the direction that the head writes most along
    >>> with ht.edit(model, ("encoder", 1, 3), remove=top):
    ...     after = ov(model)["encoder", 1, 3].singular_values()
    >>> torch.allclose(after[:3], before.singular_values()[1:], atol=1e-6), after[3].item() < 1e-6
    (True, True)
    """
    check_not_offloaded(model, "edit")
    ((site, (number,)),) = select(sites(model), [head]).items()
    who, module = f"{type(site.module).__name__} ({site.label}.{number})", site.out
    if site.empty:
        raise ValueError(f"{who}: all heads of this layer are cut, and the silent head that is left writes nothing")
    check_plain_weights(model, [module], "edit")
    weight = module.weight
    names = [name for name, other in model.named_parameters(remove_duplicate=False) if other is weight]
    if len(names) > 1:
        raise ValueError(f"{who} has no weights of its own, they are tied: {' and '.join(names)}; untie them first")
    index = (torch.arange(site.value_dim) + number * site.value_dim).to(weight.device)  # of the head, along ``dim``
    dim = 0 if is_transposed(module) else 1
    basis = _orthonormal_basis(remove, weight.shape[1 - dim], site)
    # Edits of the same slot share one original and are applied in turn, so that they may end in any order.
    slot = f"{'rows' if dim == 0 else 'columns'} from {index[0]}"

    def current() -> Tensor:
        return weight.detach().index_select(dim, index)  # (value_dim, d), or (d, value_dim)

    @torch.no_grad()
    def write(original: Tensor, bases: list[Tensor]) -> None:
        rows = to_float64(original if dim == 0 else original.T)  # (value_dim, d); exact: without edits nothing changes
        for basis in bases:
            basis = basis.to(rows)
            rows = rows - (rows @ basis) @ basis.T  # W (I - V V')
        # the weight may be on another device by now
        weight.index_copy_(dim, index.to(weight.device), (rows if dim == 0 else rows.T).to(weight))
        torch.clear_autocast_cache()  # an autocast region around the caller may hold a copy of the old weight

    with claimed("edit()", [module, weight], copyable=True), override(weight, slot, basis, current, write):
        yield


def _orthonormal_basis(remove: Tensor, width: int, site: Site) -> Tensor:
    """Return an orthonormal basis (d, n) of the span of some directions."""
    if not isinstance(remove, Tensor) or not remove.is_floating_point():
        got = remove.dtype if isinstance(remove, Tensor) else type(remove).__name__
        raise TypeError(f"a direction is a floating-point tensor ({width},) or (n, {width}), got {got}")
    if remove.dim() not in (1, 2) or remove.shape[-1] != width or not remove.numel():
        raise ValueError(
            f"got directions of shape {tuple(remove.shape)}; {site.label} writes vectors of {width} numbers, so "
            f"expected ({width},) or (n, {width})"
        )
    directions = remove.detach().cpu().double().reshape(-1, width)
    if not directions.isfinite().all() or not (directions.norm(dim=1) > 0).all():
        raise ValueError("a direction is zero or holds NaN or infinity, so it has no direction")
    directions = directions / directions.norm(dim=1, keepdim=True)
    _, singular_values, basis = torch.linalg.svd(directions, full_matrices=False)
    return basis[singular_values > 1e-9 * singular_values[0]].T  # of linearly dependent directions fewer remain
