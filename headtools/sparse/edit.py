"""Change one thing about one head: ``edit``, which takes directions out of what it writes, or out of what it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.geometry.subspaces import SIDES
from headtools.heads._interventions import claimed, wished
from headtools.heads._select import refuse_offloaded, select, wide
from headtools.heads._weights import is_transposed, refuse_quantised, refuse_wrapped
from headtools.heads.sites import Site, sites


@contextmanager
def edit(
    model: nn.Module,
    head: tuple,
    *,
    remove: Tensor | None = None,
    drop_top: int | None = None,
    side: str = "write",
) -> Iterator[None]:
    """Edit the weights of one head while the context lasts; afterwards they are what they were, bit for bit.

    ``head``: ("encoder", 2, 0). With ``remove``, directions (d,) or (n, d), or with ``drop_top``, the k strongest of
    the head's own, it no longer writes along them: W_O ← W_O (I − V Vᵀ), V an orthonormal basis of what they span. The
    k strongest are the first columns of V in W_OV = U Σ Vᵀ, rows multiplied from the left, so ``drop_top=1`` gives
    W_OV − σ₁u₁v₁ᵀ. With ``side="read"`` it no longer reads them: W_V ← (I − U Uᵀ) W_V, which for its own strongest is
    the same W_OV, and for any other direction is not.

    What a value bias adds to the head's output is written, so ``side="write"`` edits it too; it is not read, so
    ``side="read"`` leaves it. The output projection's bias belongs to the layer and stays. Edits may be nested, also
    of one head, and end in any order. To keep an edit, save or copy the model inside the context; do not train there,
    since the old rows come back.

    Raises ``KeyError`` or ``IndexError`` for a head that is not there, ``TypeError`` for weights that are no floating
    point numbers, and ``ValueError`` for directions of another width, zero or NaN, for ``drop_top`` beyond the head's
    width, and where the head has no weights of its own to edit: values that several heads share (grouped queries) or
    that come out of a latent (DeepSeek), weights tied to another module's, under an adapter (PEFT), a norm or a mask of
    ``torch.nn.utils``, a silent head that pruning left.

    For the algebra of W_OV: Elhage et al. 2021. The edit itself is the projection of Bolukbasi et al. 2016
    (arXiv:1607.06520), applied to a head's output matrix.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> before = ov(model)["encoder", 1, 3].singular_values()
    >>> with ht.edit(model, ("encoder", 1, 3), drop_top=1):
    ...     after = ov(model)["encoder", 1, 3].singular_values()
    >>> torch.allclose(after[:3], before[1:], atol=1e-6), after[3].item() < 1e-6
    (True, True)
    """
    refuse_offloaded(model, "edit")
    ((site, (number,)),) = select(sites(model), [head]).items()
    if side not in SIDES:
        raise ValueError(f'side must be "read" or "write", got {side!r}')
    if (remove is None) == (drop_top is None):
        raise ValueError("say what goes: remove=direction, or drop_top=1 for the head's own strongest; one of the two")
    module, weight, index, along = _weight(model, site, number, side)
    if remove is None:
        basis = _strongest(site, number, drop_top, side)
    else:
        basis = _basis(remove, weight.shape[1 - along], site, side)
    slot = f"{'rows' if along == 0 else 'columns'} from {index[0]}"

    def read() -> Tensor:
        return weight.detach().index_select(along, index)  # (value_dim, d), or (d, value_dim)

    def write(original: Tensor, removed: list[Tensor]) -> None:
        _put(weight, along, index, _without(original if along == 0 else original.T, removed), original)

    with claimed("edit()", [module, weight], copyable=True), wished(weight, slot, basis, read, write):
        yield


def _without(original: Tensor, removed: list[Tensor]) -> Tensor | None:
    """Return a head's rows (value_dim, d) without the directions of all edits; None where there are none."""
    if not removed:
        return None
    rows = wide(original)
    for basis in removed:
        basis = basis.to(rows)
        rows = rows - (rows @ basis) @ basis.T
    return rows


@torch.no_grad()
def _put(weight: Tensor, along: int, index: Tensor, rows: Tensor | None, original: Tensor) -> None:
    """Write a head's rows, or what it had before any edit, into a weight that may be in another place by now."""
    rows = original if rows is None else rows if along == 0 else rows.T
    weight.index_copy_(along, index.to(weight.device), rows.to(weight))
    torch.clear_autocast_cache()  # an autocast region around us may keep the weight as it was, in half precision


def _weight(model: nn.Module, site: Site, head: int, side: str) -> tuple[nn.Module, nn.Parameter, Tensor, int]:
    """Return the layer that a head writes (or reads) with, its weight, the head's rows or columns, and which of both.

    Along the other dimension lie the directions of the residual stream.
    """
    who = f"{type(site.module).__name__} ({site.label}.{head})"
    if site.empty:
        raise ValueError(f"{who}: all heads of this layer are cut, and the silent one that is left writes nothing")
    if side == "write":
        module, rows, along = site.out, torch.arange(site.value_dim) + head * site.value_dim, 1
    else:
        if site.v is None:
            raise ValueError(f'{who} has no values of its own, they come out of a latent: use side="write"')
        if site.kv_heads != site.heads:
            raise ValueError(
                f"{who} has no values of its own: {site.heads // site.kv_heads} heads share them, and an edit would "
                'change all; use side="write", where each head has its own weights'
            )
        module, rows, along = site.v.module, site.v.rows[head], 0
    refuse_quantised(module, "edit it")
    refuse_wrapped(model, [module], "edit")
    weight = module.weight
    names = [name for name, other in model.named_parameters(remove_duplicate=False) if other is weight]
    if len(names) > 1:
        raise ValueError(f"{who} has no weights of its own, they are tied: {' and '.join(names)}; untie them first")
    return module, weight, rows.to(weight.device), 1 - along if is_transposed(module) else along


def _strongest(site: Site, head: int, k: int, side: str) -> Tensor:
    """Return the first k singular vectors of W_OV on one side, (d, k)."""
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= site.value_dim:
        raise ValueError(f"drop_top counts a head's directions, 1 to {site.value_dim}, got {k!r}")
    u, _, v = ov(site)[site.key][head].svd()
    return (u if side == "read" else v)[:, :k]


def _basis(remove: Tensor, width: int, site: Site, side: str) -> Tensor:
    """Return an orthonormal basis (d, n) of what the given directions span."""
    if not isinstance(remove, Tensor) or not remove.is_floating_point():
        came = remove.dtype if isinstance(remove, Tensor) else type(remove).__name__
        raise TypeError(f"a direction is a floating-point tensor ({width},) or (n, {width}), got {came}")
    given = remove.detach().cpu().double()
    given = given[None] if given.dim() == 1 else given
    if given.dim() != 2 or given.shape[1] != width or not len(given):
        what = "writes" if side == "write" else "reads"
        raise ValueError(
            f"{site.label} {what} vectors of {width} numbers: needed is ({width},) or (n, {width}), got "
            f"{tuple(remove.shape)}"
        )
    if not given.isfinite().all() or not (given.norm(dim=1) > 0).all():
        raise ValueError("a direction is zero or holds NaN or infinity, so it points nowhere")
    given = given / given.norm(dim=1, keepdim=True)
    _, size, directions = torch.linalg.svd(given, full_matrices=False)
    return directions[size > 1e-9 * size[0]].T
