"""Replace several heads by one (``merge``), or cut heads and let the others make up for them (``refit``).

``head_similarity`` says which heads of a layer are alike.

Both solve a least-squares problem on a corpus and then prune, so that the model has fewer heads afterwards. Let A_h be
a head's map, Y the layer's input and c_h = A_h Y. The merged head keeps the queries and keys of one head k of its
group, so it can write c_k M for any M of a head's rank; ``merge`` takes the M that comes closest to what the group
wrote together:

    minimise over M of rank <= value_dim:
    Σ over tokens ‖ Σ_{h in group} z_h W_O^h  −  c_k M  −  constant ‖²   +   ridge · v · ‖ M − W_V^k W_O^k ‖²

with v the sum of squares of a feature of c_k, averaged over its features, and a ridge of 0.01. The second term keeps M
at what head k did before wherever the corpus says little; without it, a few thousand tokens are overfitted. The
constant goes into the output projection's bias, where there is one. If the maps of a group are equal, this is the best
low-rank fit to the sum of their W_OV; if they differ, what A_k does not attend to is lost. The fit is reduced-rank
regression (Izenman 1975). Merging heads this way is our own experiment; on heads that share work see Cordonnier, Loukas
and Jaggi 2020 (arXiv:2006.16362).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.geometry.subspaces import cosine
from headtools.heads._checks import check_not_offloaded, check_plain_weights
from headtools.heads._hooks import check_no_open_context
from headtools.heads._layout import is_transposed
from headtools.heads.prune import check_prunable, prune
from headtools.heads.sites import Heads, Site, select
from headtools.heads.sites import sites as find_sites
from headtools.importance._inputs import select_sites
from headtools.sparse._least_squares import Moments, fit, fit_low_rank, moments, residual_moments

FIT_COLUMNS = ("site", "kept", "removed", "relative_error", "dropped")
PAIR_COLUMNS = ("first", "second", "map_distance", "ov", "relative_error", "layer_error")
Group = Sequence[tuple]  # two or more heads of one site


def merge(
    model: nn.Module,
    groups: Iterable[Group],
    batches: Mapping | Iterable[Mapping],
    *,
    refit: bool = False,
) -> pd.DataFrame:
    """Replace each group of heads by one head, in place, by least squares on ``batches`` (see the module's docstring).

    ``groups``: [(("encoder", 2, 0), ("encoder", 2, 5)), ...], two or more heads of one layer each, no head twice. The
    head whose fit has the smallest error remains, with its queries and keys. With ``refit`` the output maps of all the
    layer's heads are fitted as well, to the output of the whole layer: as close, on ``batches``, as :func:`refit`.

    Returns a frame with a row for each group: ``site``, ``kept``, ``removed``; ``relative_error``, the fraction of the
    sum of squares of what the group wrote (centered, where a bias can make up for its mean; with ``refit``, of what the
    whole layer wrote) that is not reproduced; and ``dropped``, that fraction if nothing were fitted.

    Raises ``ValueError`` for groups of one, of several layers or that share a head, where query heads share values, and
    as ``prune``, ``record`` and ``ov`` do; always before anything is changed.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> frame = ht.merge(model, [(("encoder", 1, 0), ("encoder", 1, 3))], {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> ht.sites(model)["encoder", 1].heads, len(frame.removed[0])
    (3, 1)
    """
    model_sites, groups = find_sites(model), list(groups)
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
    _check(model, groups_of, "merge")
    for site in groups_of:
        ov(site)  # raises where what a head moves is not x W_V W_O, as under a norm of the values
    moments_of = moments(model, batches, {site: [h for g in groups for h in g] for site, groups in groups_of.items()})
    return _apply(model, [plan_merge(moments_of[site.key], of, refit) for site, of in groups_of.items()])


def refit(model: nn.Module, heads: Heads, batches: Mapping | Iterable[Mapping]) -> pd.DataFrame:
    """Cut ``heads`` in place and fit the output maps of the remaining heads, by least squares on ``batches``.

    In each layer the new W_O and bias minimise Σ over tokens ‖ what the layer wrote − what it writes ‖² + ridge · v ·
    ‖ new W_O − old W_O ‖², with v of z: a linear regression on the outputs of the remaining heads, whose maps and
    values stay. Returns a frame with a row for each layer; ``kept`` are heads, the other columns as in :func:`merge`.

    Raises as ``prune`` does, and ``ValueError`` for a layer of which no head would remain.
    """
    heads_of = {site: numbers for site, numbers in select(find_sites(model), heads).items() if numbers}
    if not heads_of:
        raise ValueError('got no heads; write refit(model, {("encoder", 2): [0]}, batches)')
    _check(model, heads_of, "refit")
    for site, numbers in heads_of.items():
        if len(numbers) == site.heads:
            raise ValueError(f"all heads of {site.label} would go, and nothing is left to fit: use prune")
    moments_of = moments(model, batches, dict.fromkeys(heads_of, ()))
    return _apply(model, [plan_refit(moments_of[site.key], numbers) for site, numbers in heads_of.items()])


def head_similarity(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    sites: Iterable[str | tuple] | str | None = None,
) -> pd.DataFrame:
    """Return how similar the two heads of each pair in a layer are, and how well one head could replace both.

    ``batches``: dicts of the model's arguments; ``sites``: kinds or keys, as in ``gradient``. Columns:
    ``first`` and ``second``, heads as (kind, layer, head); ``map_distance``, the mean total variation distance of their
    maps, 0 for equal maps and 1 for maps that share no key; ``ov``, the cosine of their W_OV; ``relative_error``, the
    fraction of what the two wrote together that the best merged head does not reproduce (see ``merge``);
    ``layer_error``, the same as a fraction of what the whole layer wrote. For two heads with equal maps and equal W_OV
    both are 0. Sorted by ``layer_error``.

    Raises as ``merge`` does, and ``ValueError`` for a layer of one head.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> frame = head_similarity(BertModel(tiny).eval(), [{"input_ids": torch.tensor([[1, 2, 3, 4]])}])
    >>> len(frame), bool(frame.map_distance.between(0, 1).all()), frame.layer_error.is_monotonic_increasing
    (12, True, True)
    """
    layers = [site for site in select_sites(model, sites, batches) if site.heads > 1]
    if not layers:
        raise ValueError("got layers of one head each; expected at least one with two heads to compare")
    moments_of = moments(model, batches, {site: range(site.heads) for site in layers})
    rows = []
    for site in layers:
        m, cosines = moments_of.pop(site.key), cosine(ov(site)).values  # pop: the moments of a wide layer are large
        layer_total = m.sum_of_squares(m.written(range(site.heads))) or 1.0
        for pair in combinations(range(site.heads), 2):
            # Either head may be the one that stays, with its map; ``merge`` keeps the better, too.
            error = min(fit_merged(m, head, pair)[0] for head in pair)
            pair_total = m.sum_of_squares(m.written(pair)) or 1.0
            first, second = ((*site.key, head) for head in pair)
            distance, similarity = float(m.distances[pair]), float(cosines[pair])
            rows.append((first, second, distance, similarity, error / pair_total, error / layer_total))
    frame = pd.DataFrame(rows, columns=list(PAIR_COLUMNS))
    return frame.sort_values("layer_error", kind="stable", ignore_index=True)


def disjoint_pairs(pairs: pd.DataFrame, n: int) -> list[tuple[tuple, tuple]]:
    """Return the first ``n`` pairs of a frame, from the top, of which no two share a head: groups for ``merge``.

    Raises ``ValueError`` where there are fewer.

    >>> import pandas as pd
    >>> heads = [("encoder", 0, h) for h in range(4)]
    >>> disjoint_pairs(pd.DataFrame({"first": heads[:3], "second": heads[1:]}), 2)
    [(('encoder', 0, 0), ('encoder', 0, 1)), (('encoder', 0, 2), ('encoder', 0, 3))]
    """
    selected, used_heads = [], set()
    for first, second in zip(pairs["first"], pairs["second"], strict=True):
        if len(selected) < n and not {first, second} & used_heads:
            selected.append((first, second))
            used_heads |= {first, second}
    if len(selected) < n:
        raise ValueError(f"got n={n}; expected at most {len(selected)}, the number of these pairs that share no head")
    return selected


def _check(model: nn.Module, targets: Iterable[Site], what: str) -> None:
    """Raise what ``prune`` would raise, before the corpus is run and not after it."""
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
        site = find_sites(model)[plan.site.key]
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
    return pd.DataFrame([(plan.site.key, *fit) for plan in plans for fit in plan.fits], columns=list(FIT_COLUMNS))


def _matrix(module: nn.Module) -> Tensor:
    """Return a projection's weight as (in, out), a view to write to."""
    return module.weight.data if is_transposed(module) else module.weight.data.T


# --- the new weights of one layer -------------------------------------------------------------------------------------


@dataclass(eq=False)
class MergePlan:
    """What becomes of one site: which heads are removed, and the weights of those that remain."""

    site: Site
    removed: tuple[int, ...]
    constant: Tensor  # (d_model,), goes into the output projection's bias, if it has one
    # head: (d_in, value_dim), with one more row where there is a bias
    values: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)  # head: (value_dim, d_model)
    # of each fit: the head that stays, or all that stay; the heads removed; the fraction of the sum of squares that it
    # misses; and the same if the heads were removed and nothing fitted
    fits: list[tuple[int | tuple[int, ...], tuple[int, ...], float, float]] = field(default_factory=list)


def plan_merge(m: Moments, groups: list[list[int]], refit: bool) -> MergePlan:
    """Fit one merged head to each group of a site, and with ``refit`` the output maps of the whole layer."""
    plan = MergePlan(m.site, (), torch.zeros(m.site.w_o.shape[-1], dtype=torch.double))
    for group in groups:
        merged = {head: fit_merged(m, head, group) for head in group}
        best = min(merged, key=lambda head: merged[head][0])  # the head whose map stays
        missed, plan.values[best], plan.outputs[best], residual = merged[best]
        gone, total = tuple(h for h in group if h != best), m.sum_of_squares(m.written(group)) or 1.0
        plan.fits.append((best, gone, missed / total, m.sum_of_squares(m.written(gone)) / total))
        plan.constant += m.sums / m.count @ residual  # what the fit misses on average
        plan.removed = tuple(sorted((*plan.removed, *gone)))
    return _refit_merged(m, plan) if refit else plan


def fit_merged(m: Moments, head: int, group: Sequence[int]) -> tuple[float, Tensor, Tensor, Tensor]:
    """Fit one head to what a group writes.

    Return the sum of squares that it misses, its values, its outputs, and the map (f, d_model) of the residual.
    """
    target, inputs = m.written(group), m.inputs[head]
    values, outputs = fit_low_rank(
        m.second_moments[inputs, inputs],
        m.second_moments[inputs] @ target,
        m.site.value_dim,
        _w_ov(m.site, head),
    )
    values, outputs = _rounded(values, m.site.v.module), _rounded(outputs, m.site.out)
    residual = target.clone()
    residual[inputs] -= values @ outputs
    return m.sum_of_squares(residual), values, outputs, residual


def _refit_merged(m: Moments, merged: MergePlan) -> MergePlan:
    """Fit merged heads one after another, while all other heads of the layer are free to change what they write.

    Block coordinate descent from the heads' old values: what the layer misses falls with every head. At the end all
    output maps are fitted together.
    """
    remaining = [h for h in range(m.site.heads) if h not in merged.removed]
    z_of = {h: m.selection(m.outputs(h)) for h in remaining}
    target, values, outputs = m.written(range(m.site.heads)), {}, {}
    for head, *_ in merged.fits:
        # The empty selection is there for a layer in which no other head remains.
        others = torch.cat([m.selection(slice(0, 0)), *(z_of[h] for h in remaining if h != head)], 1)
        inputs = m.selection(m.inputs[head])
        moments, cross_moments = residual_moments(inputs, others, m.second_moments)
        prior = _w_ov(m.site, head)
        values[head], outputs[head] = fit_low_rank(moments, cross_moments @ target, m.site.value_dim, prior)
        values[head] = _rounded(values[head], m.site.v.module)
        z_of[head] = inputs @ values[head]
    plan = plan_refit(m, merged.removed, values, outputs)
    ((_, _, *errors),) = plan.fits  # of the whole layer, the same for all groups
    plan.fits = [(head, gone, *errors) for head, gone, *_ in merged.fits]
    return plan


def plan_refit(
    m: Moments,
    removed: Sequence[int],
    values: dict[int, Tensor] | None = None,
    prior: dict[int, Tensor] | None = None,
) -> MergePlan:
    """Fit the output maps of all remaining heads of a site to the output of the whole layer.

    ``values``: new ones, of merged heads; ``prior``: what the output maps are kept close to, where not the old ones.
    """
    values, old = values or {}, dict(enumerate(m.site.w_o.detach().cpu().double())) | (prior or {})
    remaining = [h for h in range(m.site.heads) if h not in removed]
    z_of = [m.selection(m.inputs[h]) @ values[h] if h in values else m.selection(m.outputs(h)) for h in remaining]
    regressors = torch.cat(z_of, 1)  # the map (f, n) to z of the remaining heads, side by side
    target, cross_moments = m.written(range(m.site.heads)), regressors.mT @ m.second_moments
    new = fit(cross_moments @ regressors, cross_moments @ target, torch.cat([old[h] for h in remaining]))
    new = _rounded(new, m.site.out)
    residual, total = target - regressors @ new, m.sum_of_squares(target) or 1.0
    errors = m.sum_of_squares(residual) / total, m.sum_of_squares(m.written(removed)) / total
    outputs = dict(zip(remaining, new.split(m.site.value_dim), strict=True))
    fits = [(tuple(remaining), tuple(removed), *errors)]
    return MergePlan(m.site, tuple(removed), m.sums / m.count @ residual, values, outputs, fits)


def _w_ov(site: Site, head: int) -> Tensor:
    """Return W_V W_O of one head, (d_in, d_model), with one more row where values have a bias."""
    bias = getattr(site.v.module, "bias", None) is not None
    return ov(site, bias=bias)[site.key][head].matrix().cpu().double()


def _rounded(fitted: Tensor, module: nn.Module) -> Tensor:
    """Round fitted weights to those that a 16-bit layer can hold, so that the reported error is the model's."""
    dtype = module.weight.dtype
    return fitted.to(dtype).to(fitted) if dtype.itemsize == 2 else fitted
