"""The two circuits of every head, as factored matrices: ``ov`` and ``qk``; ``random_like`` for chance.

Elhage et al. 2021: what a head does is fixed by two products of its weights. W_QK = W_Q W_Kᵀ says which key a query
attends to, W_OV = W_V W_O what is moved from there. The factors alone mean nothing: (W_V M, M⁻¹ W_O) is the same head
for every invertible M, so only products are scored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.geometry._obstacles import output_value_obstacles, query_key_obstacles
from headtools.geometry.factored_matrix import FactoredMatrix
from headtools.heads._checks import check_not_offloaded, heads_label
from headtools.heads._layout import Projection
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site, Sites, sites


@dataclass(frozen=True, eq=False, repr=False)
class Circuits:
    """One circuit of every head: ``values`` {(kind, layer): FactoredMatrix (heads, d_in, d_out)}, ``name`` ov or qk.

    ``circuits["encoder", 2]`` is a site's, ``circuits["encoder", 2, 5]`` one head's. Iterating gives the heads in the
    order of ``stack()``.
    """

    values: Mapping[tuple, FactoredMatrix]
    name: str

    def __getitem__(self, key: tuple) -> FactoredMatrix:
        key = tuple(key) if isinstance(key, (tuple, list)) else (key,)
        if key in self.values:
            return self.values[key]
        site, head = self.values.get(key[:-1]), key[-1]
        if site is None:
            raise KeyError(f"no site or head {key} among these circuits; sites are {list(self.values)}")
        if not 0 <= head < len(site):
            raise KeyError(f"{key[:-1]} has heads 0..{len(site) - 1}, got {head} (heads count from 0)")
        return site[head]

    def __iter__(self) -> Iterator[tuple]:
        return iter([(*key, head) for key, value in self.values.items() for head in range(len(value))])

    def __len__(self) -> int:
        return sum(len(value) for value in self.values.values())

    def __repr__(self) -> str:
        return f"<Circuits {self.name!r}: {len(self)} heads of {len(self.values)} sites>"

    def stack(self) -> FactoredMatrix:
        """Return all heads as one (n, d_in, d_out), in the order of iteration.

        Raises ``ValueError`` where sites differ in width.
        """
        by_site = list(self.values.values())
        widths = {(*value.left.shape[1:], value.right.shape[-1]) for value in by_site}
        if len(widths) > 1:
            raise ValueError(
                f"sites differ in width (d_in, rank, d_out): {sorted(widths)}; take those of one kind, e.g. "
                f'{self.name}(sites(model)["encoder"]), or one site at a time'
            )
        return FactoredMatrix(torch.cat([w.left for w in by_site]), torch.cat([w.right for w in by_site]))

    def score(self, function: Callable[[FactoredMatrix], Tensor], name: str) -> HeadScores:
        """Return what ``function`` gives for each site's circuits, (heads,), as scores."""
        return HeadScores({key: function(value) for key, value in self.values.items()}, name=name)


def ov(where: nn.Module | Sites | Site, *, bias: bool = False) -> Circuits:
    """Return every head's W_OV = W_V W_O, (heads, d_in, d_model): what it moves from a token that it attends to fully.

    ``where``: a model, ``sites(model)["encoder"]`` or a single site. Rows are multiplied from the left: a head's
    output is A Y W_OV, with A its map and Y (S, d_in) what the layer reads. Query heads that share values each have a
    copy, as float32 (float64 stays), without gradient. A value bias adds the constant b_V W_O to every token; with
    ``bias`` it is one more row of ``left``, for a 1 at the end of Y's rows. The output bias stays out.

    Raises ``ValueError`` where W_OV would not be what the head moves: latent or normalised values (DeepSeek), a norm
    or a gate on the heads' outputs; weights that hold NaN or infinity.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ov(BertModel(tiny))["encoder", 1, 3]
    <FactoredMatrix 16 x 16 of rank 4>
    """
    values = {}
    for site in _sites_with_heads(where):
        obstacles = output_value_obstacles(site)
        if obstacles:
            raise ValueError(
                f"{_name(site)}: W_OV is not what its heads move, because {'; '.join(obstacles)}. Look at their "
                f'output: with record(model, want="z") as r: model(**batch); contributions(site, r[{site.key}].z)'
            )
        values[site.key] = _product(site, "W_OV", _projection(site, site.v, bias), _copy(site.w_o))
    return Circuits(values, "ov")


def qk(where: nn.Module | Sites | Site, *, bias: bool = False, anyway: bool = False) -> Circuits:
    """Return every head's W_QK = W_Q W_Kᵀ, (heads, d_query, d_key): its score of a pair is x W_QK yᵀ, up to a scale.

    As ``ov``, and not divided by the root of the head's width. A query bias adds b_Q W_Kᵀ yᵀ, a preference for certain
    keys; with ``bias`` left and right have one more row or column, for a 1 at the end of x and of y, and the scores are
    complete.

    Raises ``ValueError`` for weights that hold NaN or infinity, and where no one matrix gives the scores: rotary
    positions, q/k normalisation, soft caps, latent keys. ``anyway`` gives the product all the same, with a warning;
    under RoPE alone it is right for a token and itself. Warns (``UserWarning``) where positions add a term (ALiBi, T5).

    >>> from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel
    >>> shape = dict(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> qk(BertModel(BertConfig(**shape)))
    <Circuits 'qk': 8 heads of 2 sites>
    >>> qk(LlamaModel(LlamaConfig(**shape)))
    Traceback (most recent call last):
    ...
    ValueError: LlamaAttention (decoder 0): no W_QK gives its scores, because queries and keys are rotated ...
    """
    values, warn_about = {}, {}
    for site in _sites_with_heads(where):
        obstacles, additions = query_key_obstacles(site)
        if obstacles and not (anyway and site.q is not None):
            raise ValueError(
                f"{_name(site)}: no W_QK gives its scores, because {'; '.join(obstacles)}. Look at the queries and "
                f'keys themselves: with record(model, want=("q", "k")) as r: model(**batch). ov() is not affected'
                + ("" if site.q is None else "; qk(..., anyway=True) gives the bare product of the weights")
            )
        for reason in obstacles + additions:  # one warning a reason, with the first layer that has it
            warn_about.setdefault(reason, _name(site))
        left, right = _projection(site, site.q, bias), _projection(site, site.k, bias).mT
        values[site.key] = _product(site, "W_QK", left, right)
    for reason, layer in warn_about.items():
        warnings.warn(f"W_QK is not the whole score in {layer}: {reason}", stacklevel=2)
    return Circuits(values, "qk")


def random_like(of: Circuits | FactoredMatrix, seed: int = 0) -> Circuits | FactoredMatrix:
    """Return heads of the same shapes with independent Gaussian factors: the chance level of every score here.

    >>> random_like(FactoredMatrix(torch.ones(5, 8, 2), torch.ones(5, 2, 8)), seed=1)
    <FactoredMatrix 5 of 8 x 8 of rank 2>
    """
    draw = torch.Generator().manual_seed(seed)

    def gaussian(like: FactoredMatrix) -> FactoredMatrix:
        factors = (torch.randn(f.shape, generator=draw, dtype=f.dtype).to(f.device) for f in (like.left, like.right))
        return FactoredMatrix(*factors)

    if isinstance(of, Circuits):
        return Circuits({key: gaussian(value) for key, value in of.values.items()}, of.name)
    return gaussian(of)


def _sites_with_heads(where: nn.Module | Sites | Site) -> list[Site]:
    every = [where] if isinstance(where, Site) else where if isinstance(where, Sites) else sites(where)
    with_heads = [site for site in every if not site.empty]
    if not with_heads:
        raise ValueError("all heads are cut here: there are no circuits; pass a model that has heads left")
    for site in with_heads:
        for module in (site.module, site.out):
            check_not_offloaded(module, "a circuit")
    return with_heads


def _projection(site: Site, projection: Projection, bias: bool) -> Tensor:
    """Return the weight as (heads, d_in, width), with ``bias`` its bias as one more row."""
    weight = projection.weight().mT  # torch stores (out, in); here rows are multiplied from the left
    if bias:
        offset = projection.bias()
        offset = weight.new_zeros(len(weight), weight.shape[-1]) if offset is None else offset
        weight = torch.cat([weight, offset[:, None]], 1)
    # Grouped-query attention: consecutive query heads share one key and value head.
    return _copy(weight).repeat_interleave(site.heads // len(weight), 0)


def _product(site: Site, name: str, left: Tensor, right: Tensor) -> FactoredMatrix:
    """Return the product of a site's heads; raise ``ValueError`` for one that holds NaN or infinity."""
    finite = left.isfinite().flatten(1).all(1) & right.isfinite().flatten(1).all(1)
    if not finite.all():
        raise ValueError(
            f"{_name(site)}: {name} is not a number in {heads_label((~finite).nonzero()[:, 0].tolist(), site.heads)}, "
            "because its weights hold NaN or infinity: load them again"
        )
    return FactoredMatrix(left, right)


def _copy(weight: Tensor) -> Tensor:
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)


def _name(site: Site) -> str:
    return f"{type(site.module).__name__} ({site.label})"
