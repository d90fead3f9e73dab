"""What the weights of a layer become when heads are merged or cut: the least-squares problems, one site at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.geometry.circuits import ov
from headtools.heads.sites import Site
from headtools.sparse._least_squares import Moments, fit, fit_low_rank, without


@dataclass(frozen=True, eq=False)
class Plan:
    """What one site will be: which head of each group stays, what its values become, and all output maps."""

    site: Site
    kept: dict[int, tuple[int, ...]]  # head that stays: those that go into it
    gone: tuple[int, ...]
    values: dict[int, Tensor]  # head: (d_in, value_dim), and one more row for the bias
    outputs: dict[int, Tensor]  # head: (value_dim, d_model)
    constant: Tensor | None
    lost: dict[int, float]  # head that stays (or -1 for the layer): share missed
    before: dict[int, float]  # the same if nothing were fitted


def merged(m: Moments, groups: list[list[int]], whole: bool, ridge: float) -> Plan:
    """Fit the merged heads of one site."""
    kept, values, outputs, lost, before = {}, {}, {}, {}, {}
    constant = torch.zeros(m.site.w_o.shape[-1], dtype=torch.double)
    for group in groups:
        size = m.size(m.output(group)) or 1.0
        tries = {head: fit_merged(m, head, group, ridge) for head in group}
        stays = min(tries, key=lambda head: tries[head][0])
        missed, values[stays], outputs[stays], rest = tries[stays]
        kept[stays] = tuple(h for h in group if h != stays)
        lost[stays], before[stays] = missed / size, m.size(m.output(kept[stays])) / size
        constant += m.mean @ rest
    gone = tuple(sorted(h for some in kept.values() for h in some))
    if whole:
        return refitted(m, kept, gone, *_swept(m, kept, gone, ridge), ridge)
    return Plan(m.site, kept, gone, values, outputs, constant if m.free else None, lost, before)


def fit_merged(m: Moments, head: int, group: Sequence[int], ridge: float) -> tuple[float, Tensor, Tensor, Tensor]:
    """Fit one head to what a group wrote; return the squares it misses, its values and outputs, the map of the rest."""
    target, where = m.output(group), m.reads[head]
    values, outputs = fit_low_rank(
        m.spread[where, where], m.spread[where] @ target, m.site.value_dim, _own(m.site, head), ridge
    )
    values, outputs = _rounded(values, m.site.v.module), _rounded(outputs, m.site.out)
    rest = target.clone()
    rest[where] -= values @ outputs
    return m.size(rest), values, outputs, rest


def refitted(
    m: Moments,
    kept: Mapping[int, tuple[int, ...]],
    gone: Sequence[int],
    values: dict[int, Tensor],
    start: dict[int, Tensor],
    ridge: float,
) -> Plan:
    """Fit the output maps of all heads of a site that stay, to the whole layer's output."""
    stay = [h for h in range(m.site.heads) if h not in gone]
    parts = torch.cat([m.pick(m.reads[h]) @ values[h] if h in values else m.pick(m.writes(h)) for h in stay], 1)
    target, left = m.output(range(m.site.heads)), parts.mT @ m.spread
    plain = m.site.w_o.detach().cpu().double()
    near = torch.cat([start.get(h, plain[h]) for h in stay])
    found = _rounded(fit(left @ parts, left @ target, near, ridge), m.site.out)
    rest, size = target - parts @ found, m.size(target) or 1.0
    lost, before = m.size(rest) / size, m.size(m.output(gone)) / size
    outputs = dict(zip(stay, found.split(m.site.value_dim), strict=True))
    names = kept or {-1: ()}
    return Plan(m.site, dict(names), tuple(gone), values, outputs, m.mean @ rest if m.free else None,
                 dict.fromkeys(names, lost), dict.fromkeys(names, before))  # fmt: skip


def _swept(
    m: Moments, kept: Mapping[int, tuple[int, ...]], gone: Sequence[int], ridge: float
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Fit merged heads, each with all other heads of the layer free to change what they write; values and outputs.

    From the values that the heads had, one head after the other: what the layer misses falls with every step.
    """
    stay = [h for h in range(m.site.heads) if h not in gone]
    parts = {h: m.pick(m.writes(h)) for h in stay}
    target, values, outputs = m.output(range(m.site.heads)), {}, {}
    for head in kept:
        beside = torch.cat([m.pick(slice(0, 0)), *(parts[h] for h in stay if h != head)], 1)
        mix = m.pick(m.reads[head])
        own, shared = without(mix, beside, m.spread)
        values[head], outputs[head] = fit_low_rank(
            own, shared @ target, m.site.value_dim, _own(m.site, head), ridge
        )
        values[head] = _rounded(values[head], m.site.v.module)
        parts[head] = mix @ values[head]
    return values, outputs


def _own(site: Site, head: int) -> Tensor:
    """Return W_V W_O of one head, (d_in, d_model), with the value bias as one more row where there is one."""
    bias = getattr(site.v.module, "bias", None) is not None
    return ov(site, bias=bias)[site.key][head].matrix().cpu().double()


def _rounded(fitted: Tensor, module: nn.Module) -> Tensor:
    """Return what is left of fitted weights in a layer that keeps 16 bits, so that what is told is what will be."""
    kind = module.weight.dtype
    return fitted.to(kind).to(fitted) if kind.itemsize == 2 else fitted
