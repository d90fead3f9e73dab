"""The second moments of what heads read and write over a corpus, and the least-squares problems solved from them.

The corpus is run once and never kept: all problems are solved from sums of outer products, so memory does not grow with
it. This is why every target must be a linear map of the recorded features. The features of a token in one layer are
c_h = A_h Y for some heads h, and then z, the outputs of all heads side by side. A_h is the token's row of head h's map
and Y the layer's input, so c_h is the mixture of inputs that h attends to. A head's output is z_h = c_h W_V: whatever
its values and outputs are, all that a head can write is a linear map of c_h.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headtools.heads._devices import to_float64
from headtools.heads._hooks import hook_input
from headtools.heads._tokens import real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site
from headtools.importance._inputs import each_batch, evaluating

TOLERANCE = 1e-9  # eigenvalues below this fraction of the largest count as zero
RIDGE = 0.01  # the best power of ten on held-out sentences of the organism's language


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the real tokens of a corpus of one site's f features: c of some heads, then z of all.

    ``products`` (f, f), the sum of outer products, and ``sums`` (f,), float64; ``count`` of tokens. c_h lies at
    ``inputs[h]`` among the features (d_in of them, and where values have a bias one more, the sum of the map's row),
    z_h at ``outputs(h)``. A map (f, n) takes features to n numbers. ``distances`` (n, n): the mean total variation
    distance between the attention maps of every two of the n heads whose c is there, in their order.
    """

    site: Site
    products: Tensor
    sums: Tensor
    count: int
    inputs: dict[int, slice]
    distances: Tensor

    def outputs(self, head: int) -> slice:
        """Return where z of a head lies among the features."""
        start = len(self.sums) + (head - self.site.heads) * self.site.value_dim
        return slice(start, start + self.site.value_dim)

    @cached_property
    def second_moments(self) -> Tensor:
        """Return the products, (f, f), centered where a bias can make up for the means."""
        if getattr(self.site.out, "bias", None) is None:
            return self.products
        return self.products - torch.outer(self.sums, self.sums) / self.count

    def written(self, heads: Iterable[int]) -> Tensor:
        """Return the map (f, d_model) to what these heads write together."""
        matrix = torch.zeros(len(self.sums), self.site.w_o.shape[-1], dtype=torch.double)
        for head in heads:
            matrix[self.outputs(head)] = self.site.w_o[head].detach().cpu().double()
        return matrix

    def selection(self, columns: slice) -> Tensor:
        """Return the map (f, n) that selects n of the features."""
        return torch.eye(len(self.sums), dtype=torch.double)[:, columns]

    def sum_of_squares(self, matrix: Tensor) -> float:
        """Return the sum of squares over the corpus of what a map (f, n) gives."""
        used = matrix.abs().sum(1).nonzero().flatten()  # most maps use few of the features
        matrix = matrix[used]
        return float((matrix * (self.second_moments[used][:, used] @ matrix)).sum().clamp(min=0))


@torch.no_grad()
def moments(
    model: nn.Module, batches: Mapping | Iterable[Mapping], inputs_of: Mapping[Site, Iterable[int]]
) -> dict[tuple, Moments]:
    """Run a corpus through the model once and return the moments of each site, {key: Moments}.

    ``inputs_of`` names the heads whose c is needed; z of all heads is always included. Raises as ``record`` does, and
    ``ValueError`` for no batches and for outputs that hold NaN or infinity.
    """
    heads_of = {site.key: list(dict.fromkeys(heads)) for site, heads in inputs_of.items()}
    layer_inputs: dict[tuple, Tensor] = {}
    batch: Mapping = {}

    def accumulate(site: Site, captured: Captured, total: list | None) -> list:
        y = to_float64(layer_inputs.pop(site.key))  # (B, S, d_in)
        if getattr(site.v.module, "bias", None) is not None:
            y = torch.cat([y, y.new_ones(*y.shape[:2], 1)], -1)
        maps, z = to_float64(captured.maps), to_float64(captured.z)  # (B, head, T, S), (B, T, head, value_dim)
        features = torch.cat([*(maps[:, head] @ y for head in heads_of[site.key]), z.flatten(-2)], -1)  # (B, T, f)
        real = real_tokens(model, site, batch, features.shape[:2]).to(features.device)
        tokens = features[real]  # (n, f)
        rows = captured.maps[:, heads_of[site.key]].transpose(1, 2)[real]  # (n, head, key)
        apart = rows.new_zeros(rows.shape[1], rows.shape[1])  # (head, head)
        for i in range(len(apart)):  # one against all: (n, head, head, key) at once would need much more memory
            apart[i] = (rows - rows[:, [i]]).abs().sum((0, 2)) / 2
        # float64: products of nearly collinear features lose about half of the digits when they are inverted
        sums = [tokens.mT @ tokens, tokens.sum(0), len(tokens), to_float64(apart)]
        return sums if total is None else [a + b for a, b in zip(total, sums, strict=True)]

    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        for site in inputs_of:
            hook = hook_input(site.v.module, lambda y, key=site.key: layer_inputs.__setitem__(key, y.detach()))
            stack.callback(hook.remove)
        totals = stack.enter_context(record(model, ("maps", "z"), accumulate=accumulate, only=list(heads_of)))
        for batch in each_batch(model, batches):  # accumulate reads it, too
            model(**batch)
    by_site = {}
    for site in inputs_of:
        products, sums, count, distances = totals[site]
        if not products.isfinite().all():
            raise ValueError(f"what {site.label} reads or writes holds NaN or infinity, so nothing can be fitted to it")
        heads = heads_of[site.key]
        width = (len(sums) - site.heads * site.value_dim) // max(1, len(heads))
        inputs = {head: slice(i * width, (i + 1) * width) for i, head in enumerate(heads)}
        by_site[site.key] = Moments(site, products.cpu(), sums.cpu(), count, inputs, distances.cpu() / count)
    return by_site


def fit(moments: Tensor, cross_moments: Tensor, prior: Tensor) -> Tensor:
    """Return the map (m, d) from m features to a target with the least squared error, kept close to ``prior``.

    ``moments`` (m, m): the features' second moments; ``cross_moments`` (m, d): those of features and target. Minimised
    is the squared error plus ``RIDGE`` times the features' mean variance times ‖map − prior‖²: where the corpus says
    little, the map stays as it was.

    >>> [round(x, 4) for x in fit(torch.eye(2), torch.ones(2, 1), torch.zeros(2, 1)).flatten().tolist()]
    [0.9901, 0.9901]
    """
    weight = RIDGE * moments.diagonal().mean()
    if weight == 0:
        return _inverse(moments) @ cross_moments
    # The normal equations: (F'F + w I) M = F'T + w prior
    identity = torch.eye(len(moments), dtype=moments.dtype)
    return torch.linalg.solve(moments + weight * identity, cross_moments + weight * prior)


def fit_low_rank(moments: Tensor, cross_moments: Tensor, rank: int, prior: Tensor) -> tuple[Tensor, Tensor]:
    """Return two factors, (m, rank) and (rank, d), of the map of this rank that minimises what :func:`fit` does.

    Reduced-rank regression (Izenman 1975): the unrestricted fit, projected on the ``rank`` directions in which its
    predictions vary most. Arguments as in ``fit``.
    """
    full_rank = fit(moments, cross_moments, prior)
    metric = moments + RIDGE * moments.diagonal().mean() * torch.eye(len(moments), dtype=moments.dtype)
    prediction_moments = full_rank.mT @ metric @ full_rank  # (d, d)
    symmetric = (prediction_moments + prediction_moments.mT) / 2  # rounding has made it slightly asymmetric
    directions = torch.linalg.eigh(symmetric).eigenvectors[:, -rank:].flip(1)
    return full_rank @ directions, directions.mT


def residual_moments(features: Tensor, regressors: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return the second moments of some features after what ``regressors`` explain linearly is taken out.

    ``features`` (f, m) and ``regressors`` (f, n) are maps of all features, whose second moments are ``moments`` (f, f).
    Returns those of the residuals (m, m), and those of the residuals with all features (m, f). Regressing on the
    residuals gives the same coefficients as regressing on both together (Frisch and Waugh 1933).
    """
    with_all, regressors_with_all = features.mT @ moments, regressors.mT @ moments
    residual = with_all - (with_all @ regressors) @ _inverse(regressors_with_all @ regressors) @ regressors_with_all
    return residual @ features, residual


def _inverse(moments: Tensor) -> Tensor:
    return torch.linalg.pinv((moments + moments.mT) / 2, rtol=TOLERANCE, hermitian=True)
