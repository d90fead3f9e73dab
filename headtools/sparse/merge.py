"""Replace several heads by one (``merge``), or cut heads and let the others make up for them (``refit``).

Both solve a least-squares problem on a corpus and then prune, so that the model has fewer heads afterwards. Let A_h be
a head's map, Y the layer's input and c_h = A_h Y. The merged head keeps the queries and keys of one head k of its
group, so it can write c_k M for any M of a head's rank; ``merge`` takes the M that comes closest to what the group
wrote together:

    minimise over M of rank <= value_dim:
    Σ over tokens ‖ Σ_{h in group} z_h W_O^h  −  c_k M  −  constant ‖²   +   ridge · v · ‖ M − W_V^k W_O^k ‖²

with v the sum of squares of a feature of c_k, averaged over its features. The second term keeps M at what head k did
before wherever the corpus says little; without it, a few thousand tokens are overfitted. The constant goes into the
output projection's bias, where there is one. If the maps of a group are equal, this is the best low-rank fit to the sum
of their W_OV; if they differ, what A_k does not attend to is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.heads._checks import check_not_offloaded, check_plain_weights
from headtools.heads._hooks import check_no_open_context
from headtools.heads._layout import is_transposed
from headtools.heads.prune import check_prunable, prune
from headtools.heads.sites import Heads, Site, select, sites
from headtools.sparse._least_squares import moments
from headtools.sparse._merge_plan import MergePlan, plan_merge, plan_refit

RIDGE = 0.01  # the best power of ten on held-out sentences of the organism's language
COLUMNS = ("site", "kept", "removed", "relative_error", "dropped")
Group = Sequence[tuple]  # two or more heads of one site


def merge(
    model: nn.Module,
    groups: Iterable[Group],
    batches: Mapping | Iterable[Mapping],
    *,
    refit: bool = False,
    ridge: float = RIDGE,
) -> pd.DataFrame:
    """Replace each group of heads by one head, in place, by least squares on ``batches``.

    ``groups``: [(("encoder", 2, 0), ("encoder", 2, 5)), ...], two or more heads of one layer each, no head twice. Of
    each group that head remains, with its queries and keys, whose fit has the smallest error; its value and output maps
    are replaced, and the other heads are cut. The module's docstring has the objective; each layer is fitted to what
    the model did before anything was changed. With ``refit`` the output maps of all the layer's heads are fitted as
    well, to the output of the whole layer: what :func:`refit` finds for the same cut is then one of the solutions
    tried, so on ``batches``, and without a ridge, merging is at least as close to what the layer wrote, with the same
    number of weights.

    Returns a frame with a row for each group: ``site``, ``kept``, ``removed``; ``relative_error``, the fraction of the
    sum of squares of what the group wrote (centered, where a bias can make up for its mean) that the merged head does
    not reproduce; and ``dropped``, that fraction if the others were cut and nothing was fitted. With ``refit`` both are
    fractions of what the whole layer wrote, the same for all its groups.

    Raises ``ValueError`` for groups of one, of several layers or that share a head, where query heads share values, and
    as ``prune``, ``record`` and ``ov`` do for models that cannot be cut, have no maps or have no W_OV; always before
    anything is changed.

    The fit is reduced-rank regression (Izenman 1975). Merging heads this way is our own experiment; on heads that
    share work see Cordonnier, Loukas and Jaggi 2020 (arXiv:2006.16362).

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> frame = ht.merge(model, [(("encoder", 1, 0), ("encoder", 1, 3))], {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> ht.sites(model)["encoder", 1].heads, len(frame.removed[0])
    (3, 1)
    """
    model_sites, groups = sites(model), list(groups)
    if any(isinstance(group[0], str) for group in groups if len(group)):
        raise TypeError(
            f"a group is two or more heads of one layer, got the head {groups[0]!r}: write "
            'merge(model, [(("encoder", 2, 0), ("encoder", 2, 5))], batches)'
        )
    groups = [[tuple(head) for head in group] for group in groups]
    if not groups:
        raise ValueError('got no groups; write merge(model, [(("encoder", 2, 0), ("encoder", 2, 5))], batches)')
    groups_of: dict[Site, list[list[int]]] = {}
    for group in groups:
        selected = select(model_sites, group)
        if len(selected) != 1 or len(group) < 2:
            raise ValueError(f"a group is two or more heads of one layer, got {group}")
        ((site, heads),) = selected.items()
        if site.kv_heads != site.heads:
            raise ValueError(
                f"{site.label}: {site.heads // site.kv_heads} heads share keys and values, so a merged head would have "
                "no values of its own; refit(model, heads, batches) cuts heads here too"
            )
        groups_of.setdefault(site, []).append(heads)
    select(model_sites, [head for group in groups for head in group])  # raises for a head in two groups
    _check(model, groups_of, ridge, "merge")
    for site in groups_of:
        ov(site)  # raises where what a head moves is not x W_V W_O, as under a norm of the values
    moments_of = moments(model, batches, {site: [h for g in groups for h in g] for site, groups in groups_of.items()})
    return _apply(model, [plan_merge(moments_of[site.key], of, refit, ridge) for site, of in groups_of.items()])


def refit(
    model: nn.Module, heads: Heads, batches: Mapping | Iterable[Mapping], *, ridge: float = RIDGE
) -> pd.DataFrame:
    """Cut ``heads`` in place and fit the output maps of the remaining heads, by least squares on ``batches``.

    ``heads`` as in ``prune``. In each layer the new W_O and bias minimise Σ over tokens ‖ what the layer wrote − what
    it writes ‖² + ridge · v · ‖ new W_O − old W_O ‖², v as above but of z: linear regression of the layer's output on
    the outputs of the remaining heads, whose maps and values stay the same. Returns a frame with a row for each layer:
    ``site``, ``kept`` (heads), ``removed``, ``relative_error`` and ``dropped`` as in :func:`merge`.

    Raises as ``prune`` does, and ``ValueError`` for a layer of which no head would remain.
    """
    heads_of = {site: numbers for site, numbers in select(sites(model), heads).items() if numbers}
    if not heads_of:
        raise ValueError('got no heads; write refit(model, {("encoder", 2): [0]}, batches)')
    _check(model, heads_of, ridge, "refit")
    for site, numbers in heads_of.items():
        if len(numbers) == site.heads:
            raise ValueError(f"all heads of {site.label} would go, and nothing is left to fit: use prune")
    moments_of = moments(model, batches, dict.fromkeys(heads_of, ()))
    return _apply(model, [plan_refit(moments_of[site.key], numbers, ridge) for site, numbers in heads_of.items()])


def _check(model: nn.Module, targets: Iterable[Site], ridge: float, what: str) -> None:
    """Raise what ``prune`` would raise, before the corpus is run and not after it, and for a ridge below 0."""
    if not 0 <= ridge < float("inf"):
        raise ValueError(f"the ridge is a number of at least 0, got {ridge!r}")
    check_not_offloaded(model, what)
    check_no_open_context(model, f"{what}()")
    check_plain_weights(model, [module for site in targets for module in (*site.module.modules(), site.out)], what)
    for site in targets:
        check_prunable(site)


@torch.no_grad()
def _apply(model: nn.Module, plans: Sequence[MergePlan]) -> pd.DataFrame:
    """Cut the removed heads, write the fitted weights into the remaining ones, and return the frame of all fits."""
    prune(model, {plan.site.key: plan.removed for plan in plans})  # raises before anything is changed
    for plan in plans:
        site = sites(model)[plan.site.key]
        remaining = [h for h in range(plan.site.heads) if h not in plan.removed]
        out, v = _matrix(site.out), _matrix(site.v.module)  # (in, out) both
        for index, head in enumerate(remaining):  # index: the head's number in the pruned model
            if head in plan.values:
                rows, value = site.v.rows[index], plan.values[head].to(v)
                v[:, rows] = value[: len(v)]
                if len(value) > len(v):
                    site.v.module.bias.data[rows] = value[-1]
            if head in plan.outputs:
                out[index * site.value_dim : (index + 1) * site.value_dim] = plan.outputs[head].to(out)
        bias = getattr(site.out, "bias", None)
        if bias is not None:
            # A new parameter: the old one may be tied to the bias of another layer, which must not change.
            site.out.bias = nn.Parameter(bias.detach() + plan.constant.to(bias), bias.requires_grad)
    torch.clear_autocast_cache()  # an autocast region around the caller may hold copies of the old weights
    return pd.DataFrame([(plan.site.key, *fit) for plan in plans for fit in plan.fits], columns=list(COLUMNS))


def _matrix(module: nn.Module) -> Tensor:
    """Return a projection's weight as (in, out), a view to write to."""
    return module.weight.data if is_transposed(module) else module.weight.data.T
