"""What heads read and write over a corpus, as one matrix of second moments a layer: all that least squares needs.

For one layer and token, the features are c_h = A_h Y, the mix of inputs that head h looks at (one row of its map times
the layer's input), for some heads h, and z, the outputs of all heads side by side. A head's output is z_h = c_h W_V:
with whatever values and outputs, all that a head can write is a linear map of c_h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headtools.heads._interventions import on_input
from headtools.heads._select import wide
from headtools.heads._tokens import real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site
from headtools.importance._inputs import each_batch, frozen

TOLERANCE = 1e-9  # variances below this share of the greatest count as none


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the real tokens of a corpus, of one site's features: c of some heads, then z of all.

    ``products`` (f, f), the sum of outer products, and ``sums`` (f,), float64; ``count`` tokens. ``reads`` says where
    c_h stands, (d_in features, and one that is the row's sum where values have a bias); z_h stands at ``writes(h)``.
    ``free`` is true where the output projection has a bias, which then takes whatever is constant.
    """

    site: Site
    products: Tensor
    sums: Tensor
    count: int
    reads: dict[int, slice]
    free: bool

    def writes(self, head: int) -> slice:
        """Return where z of a head stands among the features."""
        start = len(self.sums) + (head - self.site.heads) * self.site.value_dim
        return slice(start, start + self.site.value_dim)

    @cached_property
    def spread(self) -> Tensor:
        """Return the products, (f, f), with the means taken out where a bias can make up for them."""
        return self.products - torch.outer(self.sums, self.sums) / self.count if self.free else self.products

    @property
    def mean(self) -> Tensor:
        """Return the mean features, (f,)."""
        return self.sums / self.count

    def output(self, heads: Iterable[int]) -> Tensor:
        """Return the map (f, d_model) from features to what these heads write together."""
        target = torch.zeros(len(self.sums), self.site.w_o.shape[-1], dtype=torch.double)
        for head in heads:
            target[self.writes(head)] = self.site.w_o[head].detach().cpu().double()
        return target

    def pick(self, where: slice) -> Tensor:
        """Return the map (f, n) that picks some features."""
        return torch.eye(len(self.sums), dtype=torch.double)[:, where]

    def size(self, target: Tensor) -> float:
        """Return the summed squares of F ``target``, (f, d)."""
        used = target.abs().sum(1).nonzero().flatten()  # most maps leave most features alone
        target = target[used]
        return float((target * (self.spread[used][:, used] @ target)).sum().clamp(min=0))


@torch.no_grad()
def moments(
    model: nn.Module, batches: Mapping | Iterable[Mapping], reads: Mapping[Site, Iterable[int]]
) -> dict[tuple, Moments]:
    """Run a corpus through the model once and return the moments of each site, {key: Moments}.

    ``reads`` names the heads whose c is wanted; z of all heads is always there. A site's d_in and value width set the
    size: f = heads named x d_in + heads x value_dim. Raises as ``record`` does, and ``ValueError`` for no batches and
    for outputs that hold NaN or infinity.
    """
    wanted = {site.key: list(dict.fromkeys(heads)) for site, heads in reads.items()}
    inputs: dict[tuple, Tensor] = {}
    now: dict[str, Mapping] = {}

    def fold(site: Site, seen: Captured, before: list | None) -> list:
        y = wide(inputs.pop(site.key))
        if getattr(site.v.module, "bias", None) is not None:
            y = torch.cat([y, y.new_ones(*y.shape[:2], 1)], -1)
        maps, z = wide(seen.maps), wide(seen.z)  # (B, H, T, S), (B, T, H, v)
        parts = [maps[:, head] @ y for head in wanted[site.key]]
        features = torch.cat([*parts, z.flatten(-2)], -1)
        real = real_tokens(model, site, now["batch"], features.shape[:2]).to(features.device)
        rows = features[real]
        sums = [rows.mT @ rows, rows.sum(0), len(rows)]
        return sums if before is None else [a + b for a, b in zip(before, sums, strict=True)]

    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        for site in reads:
            hook = on_input(site.v.module, lambda read, key=site.key: inputs.__setitem__(key, read.detach()))
            stack.callback(hook.remove)
        seen = stack.enter_context(record(model, ("maps", "z"), accumulate=fold, only=list(wanted)))
        for batch in each_batch(model, batches):
            now["batch"] = batch
            model(**batch)
        return {site.key: _moments(site, wanted[site.key], *seen[site]) for site in reads}


def _moments(site: Site, heads: list[int], products: Tensor, sums: Tensor, count: int) -> Moments:
    if not products.isfinite().all():
        raise ValueError(f"what {site.label} reads or writes holds NaN or infinity, so nothing can be fitted to it")
    width = (len(sums) - site.heads * site.value_dim) // max(1, len(heads))
    reads = {head: slice(i * width, (i + 1) * width) for i, head in enumerate(heads)}
    return Moments(site, products.cpu(), sums.cpu(), count, reads, getattr(site.out, "bias", None) is not None)


def fit(own: Tensor, shared: Tensor, start: Tensor, ridge: float) -> Tensor:
    """Return the map (m, d) from some features to a target that has the least squared error, kept near ``start``.

    ``own`` (m, m) are the second moments of the features, ``shared`` (m, d) theirs with the target. Minimised is the
    squared error plus ``ridge`` times the features' mean variance times ‖map − start‖²: where the corpus says little,
    the map stays as it was. Without a ridge, directions without variance get 0.

    >>> fit(torch.eye(2).double(), torch.ones(2, 1).double(), torch.zeros(2, 1).double(), ridge=0.0).tolist()
    [[1.0], [1.0]]
    """
    weight = ridge * own.diagonal().mean()
    if weight == 0:
        return _inverse(own) @ shared
    return torch.linalg.solve(own + weight * torch.eye(len(own), dtype=own.dtype), shared + weight * start)


def fit_low_rank(own: Tensor, shared: Tensor, rank: int, start: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Return two factors, (m, rank) and (rank, d), of the map of that rank that :func:`fit` would choose.

    Reduced-rank regression (Izenman 1975): the unrestricted fit, projected on the ``rank`` directions in which its
    guesses vary most. Arguments as in ``fit``.
    """
    whole = fit(own, shared, start, ridge)
    metric = own + ridge * own.diagonal().mean() * torch.eye(len(own), dtype=own.dtype)
    guesses = whole.mT @ metric @ whole  # (d, d): how the guesses vary
    directions = torch.linalg.eigh((guesses + guesses.mT) / 2).eigenvectors[:, -rank:].flip(1)
    return whole @ directions, directions.mT


def without(part: Tensor, beside: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``spread`` (f, f) after all that F ``beside`` (f, n) can explain is taken out, seen from F ``part``.

    Gives the second moments of ``part`` (m, m), and theirs with all features (m, f): Frisch and Waugh 1933.
    """
    left, rest = part.mT @ spread, beside.mT @ spread
    left = left - (left @ beside) @ _inverse(rest @ beside) @ rest
    return left @ part, left


def _inverse(moments: Tensor) -> Tensor:
    return torch.linalg.pinv((moments + moments.mT) / 2, rtol=TOLERANCE, hermitian=True)
