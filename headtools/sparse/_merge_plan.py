"""The new weights of one layer whose heads are merged or cut: the least-squares problems, one site at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.heads.sites import Site
from headtools.sparse._least_squares import Moments, fit, fit_low_rank, residual_moments


@dataclass(eq=False)
class MergePlan:
    """What becomes of one site: which heads are removed, and the weights of those that remain."""

    site: Site
    removed: tuple[int, ...]
    constant: Tensor  # (d_model,), goes into the output projection's bias, if it has one
    values: dict[int, Tensor] = field(
        default_factory=dict
    )  # head: (d_in, value_dim), one more row where there is a bias
    outputs: dict[int, Tensor] = field(default_factory=dict)  # head: (value_dim, d_model)
    # of each fit: the head that stays, or all that stay; the heads removed; the fraction of the sum of squares that it
    # misses; and the same if the heads were removed and nothing fitted
    fits: list[tuple[int | tuple[int, ...], tuple[int, ...], float, float]] = field(default_factory=list)


def plan_merge(m: Moments, groups: list[list[int]], refit: bool, ridge: float) -> MergePlan:
    """Fit one merged head to each group of a site, and with ``refit`` the output maps of the whole layer."""
    plan = MergePlan(m.site, (), torch.zeros(m.site.w_o.shape[-1], dtype=torch.double))
    for group in groups:
        merged = {head: fit_merged(m, head, group, ridge) for head in group}
        best = min(merged, key=lambda head: merged[head][0])  # the head whose map stays
        missed, plan.values[best], plan.outputs[best], residual = merged[best]
        gone, total = tuple(h for h in group if h != best), m.sum_of_squares(m.written(group)) or 1.0
        plan.fits.append((best, gone, missed / total, m.sum_of_squares(m.written(gone)) / total))
        plan.constant += m.sums / m.count @ residual  # what the fit misses on average
        plan.removed = tuple(sorted((*plan.removed, *gone)))
    return _refit_merged(m, plan, ridge) if refit else plan


def fit_merged(m: Moments, head: int, group: Sequence[int], ridge: float) -> tuple[float, Tensor, Tensor, Tensor]:
    """Fit one head to what a group writes.

    Returns the sum of squares that it misses, its values, its outputs, and the map (f, d_model) of the residual.
    """
    target, inputs = m.written(group), m.inputs[head]
    values, outputs = fit_low_rank(
        m.second_moments[inputs, inputs],
        m.second_moments[inputs] @ target,
        m.site.value_dim,
        _w_ov(m.site, head),
        ridge,
    )
    values, outputs = _rounded(values, m.site.v.module), _rounded(outputs, m.site.out)
    residual = target.clone()
    residual[inputs] -= values @ outputs
    return m.sum_of_squares(residual), values, outputs, residual


def _refit_merged(m: Moments, merged: MergePlan, ridge: float) -> MergePlan:
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
        values[head], outputs[head] = fit_low_rank(moments, cross_moments @ target, m.site.value_dim, prior, ridge)
        values[head] = _rounded(values[head], m.site.v.module)
        z_of[head] = inputs @ values[head]
    plan = plan_refit(m, merged.removed, ridge, values, outputs)
    ((_, _, *errors),) = plan.fits  # of the whole layer, the same for all groups
    plan.fits = [(head, gone, *errors) for head, gone, *_ in merged.fits]
    return plan


def plan_refit(
    m: Moments,
    removed: Sequence[int],
    ridge: float,
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
    new = fit(cross_moments @ regressors, cross_moments @ target, torch.cat([old[h] for h in remaining]), ridge)
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
