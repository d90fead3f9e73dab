"""The new weights of one layer whose heads are merged or cut: the least-squares problems, one site at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.heads.sites import Site
from headtools.sparse._least_squares import Moments, fit, fit_low_rank, residual_moments


@dataclass(frozen=True, eq=False)
class MergePlan:
    """What becomes of one site: which heads are removed, and the weights of those that remain."""

    site: Site
    removed: tuple[int, ...]
    values: dict[int, Tensor]  # head: (d_in, value_dim), and one more row where values have a bias
    outputs: dict[int, Tensor]  # head: (value_dim, d_model)
    constant: Tensor | None  # (d_model,), what goes into the output projection's bias, if it has one
    # of each fit: the head that stays, or all that stay; the heads removed; the fraction of the sum of squares that it
    # misses; and the same if the heads were removed and nothing fitted
    fits: list[tuple[int | tuple[int, ...], tuple[int, ...], float, float]]


def plan_merge(m: Moments, groups: list[list[int]], refit: bool, ridge: float) -> MergePlan:
    """Fit one merged head to each group of a site, and with ``refit`` the output maps of the whole layer."""
    absorbed, values, outputs, fits = {}, {}, {}, []  # absorbed: remaining head -> heads whose work it takes over
    constant = torch.zeros(m.site.w_o.shape[-1], dtype=torch.double)
    for group in groups:
        total = m.sum_of_squares(m.output_map(group)) or 1.0
        merged = {head: fit_merged(m, head, group, ridge) for head in group}
        best = min(merged, key=lambda head: merged[head][0])
        least, values[best], outputs[best], residual = merged[best]
        absorbed[best] = tuple(h for h in group if h != best)
        unfitted = m.sum_of_squares(m.output_map(absorbed[best]))
        fits.append((best, absorbed[best], least / total, unfitted / total))
        # What the fit misses on average goes into the output projection's bias.
        constant += m.mean @ residual
    removed = tuple(sorted(h for heads in absorbed.values() for h in heads))
    if refit:
        return plan_refit(m, absorbed, removed, *_fit_merged_in_turn(m, absorbed, removed, ridge), ridge)
    return MergePlan(m.site, removed, values, outputs, constant if m.has_bias else None, fits)


def fit_merged(m: Moments, head: int, group: Sequence[int], ridge: float) -> tuple[float, Tensor, Tensor, Tensor]:
    """Fit one head to what a group writes.

    Returns the sum of squares that it misses, its values, its outputs, and the map (f, d_model) of the residual.
    """
    target, inputs = m.output_map(group), m.input_slices[head]
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


def plan_refit(
    m: Moments,
    absorbed: Mapping[int, tuple[int, ...]],
    removed: Sequence[int],
    values: dict[int, Tensor],
    prior: dict[int, Tensor],
    ridge: float,
) -> MergePlan:
    """Fit the output maps of all remaining heads of a site to the output of the whole layer.

    ``values``: new ones, of merged heads; ``prior``: what the output maps are kept close to, by default the old ones.
    """
    remaining = [h for h in range(m.site.heads) if h not in removed]
    regressors = torch.cat(  # the map (f, n) from the features to z of the remaining heads
        [
            m.selection(m.input_slices[h]) @ values[h] if h in values else m.selection(m.output_slice(h))
            for h in remaining
        ],
        1,
    )
    target, cross_moments = m.output_map(range(m.site.heads)), regressors.mT @ m.second_moments
    old_outputs = m.site.w_o.detach().cpu().double()
    full_prior = torch.cat([prior.get(h, old_outputs[h]) for h in remaining])
    new_outputs = _rounded(fit(cross_moments @ regressors, cross_moments @ target, full_prior, ridge), m.site.out)
    residual, total = target - regressors @ new_outputs, m.sum_of_squares(target) or 1.0
    errors = (m.sum_of_squares(residual) / total, m.sum_of_squares(m.output_map(removed)) / total)
    outputs = dict(zip(remaining, new_outputs.split(m.site.value_dim), strict=True))
    fits = [(head, heads, *errors) for head, heads in absorbed.items()] or [(tuple(remaining), tuple(removed), *errors)]
    return MergePlan(m.site, tuple(removed), values, outputs, m.mean @ residual if m.has_bias else None, fits)


def _fit_merged_in_turn(
    m: Moments, absorbed: Mapping[int, tuple[int, ...]], removed: Sequence[int], ridge: float
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Fit merged heads one after another, while all other heads of the layer are free to change what they write.

    Returns values and outputs. Block coordinate descent from the heads' old values: what the layer misses falls with
    every head.
    """
    remaining = [h for h in range(m.site.heads) if h not in removed]
    z_of = {h: m.selection(m.output_slice(h)) for h in remaining}
    target, values, outputs = m.output_map(range(m.site.heads)), {}, {}
    for head in absorbed:
        # The empty selection is there for a layer in which no other head remains.
        others = torch.cat([m.selection(slice(0, 0)), *(z_of[h] for h in remaining if h != head)], 1)
        inputs = m.selection(m.input_slices[head])
        moments, cross_moments = residual_moments(inputs, others, m.second_moments)
        values[head], outputs[head] = fit_low_rank(
            moments, cross_moments @ target, m.site.value_dim, _w_ov(m.site, head), ridge
        )
        values[head] = _rounded(values[head], m.site.v.module)
        z_of[head] = inputs @ values[head]
    return values, outputs


def _w_ov(site: Site, head: int) -> Tensor:
    """Return W_V W_O of one head, (d_in, d_model), with one more row where values have a bias."""
    bias = getattr(site.v.module, "bias", None) is not None
    return ov(site, bias=bias)[site.key][head].matrix().cpu().double()


def _rounded(fitted: Tensor, module: nn.Module) -> Tensor:
    """Round fitted weights to those that a 16-bit layer can hold, so that the reported error is the model's."""
    dtype = module.weight.dtype
    return fitted.to(dtype).to(fitted) if dtype.itemsize == 2 else fitted
