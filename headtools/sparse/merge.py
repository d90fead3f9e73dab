"""Make one head of several (``merge``), or cut heads and let the others make up for them (``refit``).

Both solve a least-squares problem on a corpus and then cut for good, so that the model has fewer heads afterwards.
Let A_h be a head's map, Y the layer's input and c_h = A_h Y. The merged head keeps the queries and keys of one head k
of its group, so it can write c_k M for any M of a head's rank; ``merge`` takes the M that comes nearest to what the
group wrote together:

    minimise over M of rank <= value_dim:
    Σ over tokens ‖ Σ_{h in group} z_h W_O^h  −  c_k M  −  constant ‖²   +   ridge · v · ‖ M − W_V^k W_O^k ‖²

with v the summed squares of a feature of c_k, in the mean over features. The second part keeps M at what head k did
before wherever the corpus says little; without it a few thousand tokens are fitted far better than the next thousand.
The constant goes into the output projection's bias, where there is one. If the maps of a group are the same, this is
the best low-rank fit to the sum of their W_OV; if they differ, what A_k does not look at is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.heads._interventions import refuse_inside
from headtools.heads._select import Heads, refuse_offloaded, select
from headtools.heads._weights import is_transposed, refuse_wrapped
from headtools.heads.prune import prune, refuse_uncuttable
from headtools.heads.sites import Site, sites
from headtools.sparse._least_squares import moments
from headtools.sparse._merge_plan import Plan, merged, refitted

if TYPE_CHECKING:
    import pandas as pd

RIDGE = 0.01  # best, of the powers of ten, on sentences of the organism's language that the fit had not seen
Group = Sequence[tuple]  # two or more heads of one site


def merge(
    model: nn.Module,
    groups: Iterable[Group],
    batches: Mapping | Iterable[Mapping],
    *,
    refit: bool = False,
    ridge: float = RIDGE,
) -> pd.DataFrame:
    """Make one head of each group of heads, in place, by least squares on ``batches``.

    ``groups``: [(("encoder", 2, 0), ("encoder", 2, 5)), ...], two or more heads of one layer each, no head twice. Of
    each group the head stays, with its queries and keys, that loses least; its value and output maps are replaced, the
    others are cut. What is solved stands at the top of this module; every layer is fitted on what the model did before
    anything was changed. With ``refit`` the output maps of all the layer's heads are fitted as well, to the whole
    layer's output: what :func:`refit` finds for the same cut is then one of the solutions tried, so on ``batches``, and
    without a ridge, merging comes at least as near to what the layer wrote, with as many weights.

    Returns a frame, one row a group: ``site``, ``kept``, ``gone``; ``missed``, the share of the summed squares of what
    the group wrote (its mean taken out, where a bias can make up for it) that the merged head does not reproduce; and
    ``dropped``, that share if the others were cut and nothing was fitted. With ``refit`` both are shares of what the
    whole layer wrote, the same for all its groups.

    Raises ``ValueError`` for groups of one, of several layers or that share a head, where query heads share values, and
    as ``prune``, ``record`` and ``ov`` do for models that cannot be cut, have no maps or bend values; always before
    anything is changed.

    The fit is reduced-rank regression (Izenman 1975). Merging heads this way is our own experiment; on heads that
    share work see Cordonnier, Loukas and Jaggi 2020 (arXiv:2006.16362).

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> frame = ht.merge(model, [(("encoder", 1, 0), ("encoder", 1, 3))], {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> ht.sites(model)["encoder", 1].heads, len(frame.gone[0])
    (3, 1)
    """
    _check(ridge)
    refuse_offloaded(model, "merge")
    refuse_inside(model, "merge()")
    chosen = _grouped(model, groups)
    seen = moments(model, batches, {site: [h for group in some for h in group] for site, some in chosen.items()})
    plans = [merged(seen[site.key], some, refit, ridge) for site, some in chosen.items()]
    _apply(model, plans)
    return _told(plans)


def refit(
    model: nn.Module, heads: Heads, batches: Mapping | Iterable[Mapping], *, ridge: float = RIDGE
) -> pd.DataFrame:
    """Cut ``heads`` in place and fit the output maps of the heads that stay, by least squares on ``batches``.

    ``heads`` as in ``prune``. In each layer the new W_O and bias minimise Σ over tokens ‖ what the layer wrote − what
    it writes ‖² + ridge · v · ‖ new W_O − old W_O ‖², v as above but of z: linear regression of the whole on the parts
    that stay, which read and look as before. Returns a frame, one row a layer: ``site``, ``kept`` (heads), ``gone``,
    ``missed`` and ``dropped`` as in :func:`merge`.

    Raises as ``prune`` does, and ``ValueError`` for a layer of which no head would stay.
    """
    _check(ridge)
    chosen = {site: some for site, some in select(sites(model), heads).items() if some}
    if not chosen:
        raise ValueError('no heads came: refit(model, {("encoder", 2): [0]}, batches)')
    refuse_offloaded(model, "refit")
    refuse_inside(model, "refit()")
    _refuse(model, chosen, "refit")
    for site, some in chosen.items():
        if len(some) == site.heads:
            raise ValueError(f"all heads of {site.label} would go, and nothing is left to fit: use prune")
    seen = moments(model, batches, dict.fromkeys(chosen, ()))
    plans = [refitted(seen[site.key], {}, some, {}, {}, ridge) for site, some in chosen.items()]
    _apply(model, plans)
    return _told(plans)


def _check(ridge: float) -> None:
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"the ridge is a number from 0 on, got {ridge!r}")


def _grouped(model: nn.Module, groups: Iterable[Group]) -> dict[Site, list[list[int]]]:
    """Return the groups by site, {site: [[head, ...], ...]}; raise for what cannot be merged."""
    found = sites(model)
    listed = [[tuple(head) for head in group] for group in groups]
    if not listed:
        raise ValueError('no groups came: merge(model, [(("encoder", 2, 0), ("encoder", 2, 5))], batches)')
    chosen: dict[Site, list[list[int]]] = {}
    for group in listed:
        parts = select(found, group)
        if len(parts) != 1 or len(group) < 2:
            raise ValueError(f"a group is two or more heads of one layer, got {group}")
        ((site, some),) = parts.items()
        if site.kv_heads != site.heads:
            raise ValueError(
                f"{site.label}: {site.heads // site.kv_heads} heads share keys and values, so a merged head would have "
                "no values of its own; refit(model, heads, batches) cuts heads here too"
            )
        chosen.setdefault(site, []).append(some)
    select(found, [head for group in listed for head in group])  # raises for a head in two groups
    _refuse(model, chosen, "merge")
    for site in chosen:
        ov(site)  # raises where W_OV is not what a head moves
    return chosen


def _refuse(model: nn.Module, chosen: Iterable[Site], what: str) -> None:
    """Raise before the corpus is run, not after it, where ``prune`` would."""
    refuse_wrapped(model, [module for site in chosen for module in (*site.module.modules(), site.out)], what)
    for site in chosen:
        refuse_uncuttable(site)


def _apply(model: nn.Module, plans: Sequence[Plan]) -> None:
    """Cut the heads that go, then write the fitted weights into those that stay."""
    prune(model, {plan.site.key: plan.gone for plan in plans})  # raises before anything is changed
    found = sites(model)
    for plan in plans:
        site = found[plan.site.key]
        stay = [h for h in range(plan.site.heads) if h not in plan.gone]
        for place, head in enumerate(stay):
            if head in plan.values:
                _put_value(site, place, plan.values[head])
            if head in plan.outputs:
                rows = slice(place * site.value_dim, (place + 1) * site.value_dim)
                _matrix(site.out)[rows] = plan.outputs[head].to(site.out.weight)
        if plan.constant is not None:
            # a parameter of its own, as those that were cut: the old one may be tied to another layer's
            bias = site.out.bias
            site.out.bias = nn.Parameter(bias.detach() + plan.constant.to(bias), bias.requires_grad)
    torch.clear_autocast_cache()  # an autocast region around us may keep a bias as it was


def _put_value(site: Site, head: int, value: Tensor) -> None:
    rows, matrix, bias = site.v.rows[head], _matrix(site.v.module), getattr(site.v.module, "bias", None)
    matrix[:, rows] = value[: len(matrix)].to(matrix)
    if bias is not None:
        bias.data[rows] = value[-1].to(bias)


def _matrix(module: nn.Module) -> Tensor:
    """Return a projection's weight as (in, out), to be written into."""
    return module.weight.data if is_transposed(module) else module.weight.data.T


def _told(plans: Sequence[Plan]) -> pd.DataFrame:
    import pandas as pd

    rows = []
    for plan in plans:
        for head, some in plan.kept.items():
            stay = tuple(h for h in range(plan.site.heads) if h not in plan.gone) if head < 0 else head
            rows.append((plan.site.key, stay, some or plan.gone, plan.lost[head], plan.before[head]))
    return pd.DataFrame(rows, columns=["site", "kept", "gone", "missed", "dropped"])
