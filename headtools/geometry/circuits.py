"""The two circuits of every head, as factored matrices: ``ov`` and ``qk``.

Elhage et al. 2021: what a head does is fixed by two products of its weights. W_QK = W_Q W_Kᵀ says which key a query
looks at, W_OV = W_V W_O what is moved from there. The factors alone say nothing: (W_V M, M⁻¹ W_O) is the same head for
every invertible M, so only products are scored.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.geometry._bilinear import output_value_obstacles, query_key_obstacles
from headtools.geometry.low_rank import Factored
from headtools.heads._checks import check_not_offloaded
from headtools.heads._finite import heads_label
from headtools.heads._layout import Projection
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site, Sites, sites


@dataclass(frozen=True, eq=False, repr=False)
class Circuits:
    """One circuit of every head, site by site.

    ``values``: {(kind, layer): Factored of shape (heads, d_in, d_out)}; ``name`` is 'ov' or 'qk'.
    ``circuits["encoder", 2]`` is a site's, ``circuits["encoder", 2, 5]`` one head's. Iterating gives the heads in the
    order of ``stack()``.
    """

    values: Mapping[tuple, Factored]
    name: str

    def __getitem__(self, key: tuple) -> Factored:
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

    def stack(self) -> Factored:
        """Return all heads as one (n, d_in, d_out), in the order of iteration.

        Raises ``ValueError`` where sites differ in width.
        """
        widths = {(*value.left.shape[1:], value.right.shape[-1]) for value in self.values.values()}
        if len(widths) > 1:
            raise ValueError(
                f"sites differ in width (d_in, rank, d_out): {sorted(widths)}; take those of one kind, e.g. "
                f'{self.name}(sites(model)["encoder"]), or one site at a time'
            )
        parts = list(self.values.values())
        return Factored(torch.cat([p.left for p in parts]), torch.cat([p.right for p in parts]))

    def score(self, function: Callable[[Factored], Tensor], name: str) -> HeadScores:
        """Return the numbers (heads,) that ``function`` gives for each site's circuits, as scores."""
        return HeadScores({key: function(value) for key, value in self.values.items()}, name=name)


def ov(where: nn.Module | Sites | Site, *, bias: bool = False) -> Circuits:
    """Return every head's W_OV = W_V W_O, (heads, d_in, d_model): what it moves, were it to look at one token.

    ``where``: a model, ``sites(model)["encoder"]`` or a single site. Rows are multiplied from the left: a head's
    output is A Y W_OV, with A its map and Y (S, d_in) what the attention layer reads (after the layer normalisation,
    in models that have one before the attention). Query heads that share values each have a copy.

    Biases: a value bias b_V adds the constant b_V W_O to every token, since a row of A sums to 1. It is left out;
    with ``bias`` it is one more row of ``left`` (d_in + 1), to be met by a 1 at the end of Y's rows. The output
    projection's own bias belongs to the layer and is never in. Weights are copied as float32 (float64 stays) and
    carry no gradient; memory is O(d_model²) a layer, the size of the weights.

    Raises ``ValueError`` where W_OV would not be what the head moves: latent or normalised values (DeepSeek), a norm
    or a gate on the heads' outputs; weights that hold NaN or infinity.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ov(BertModel(tiny))["encoder", 1, 3]
    <Factored 16 x 16 of rank 4>
    """
    values = {}
    for site in _sites(where):
        found = output_value_obstacles(site)
        if found:
            raise ValueError(
                f"{_who(site)}: W_OV is not what its heads move, because {'; '.join(found)}. Look at what they write "
                f'instead: with record(model, want="z") as r: model(**batch); contributions(site, r[{site.key}].z)'
            )
        values[site.key] = _finite(site, Factored(_inputs(site.v, site, bias), _plain(site.w_o)), "W_OV")
    return Circuits(values, "ov")


def qk(where: nn.Module | Sites | Site, *, bias: bool = False, anyway: bool = False) -> Circuits:
    """Return every head's W_QK = W_Q W_Kᵀ, (heads, d_query, d_key): its score of a pair is x W_QK yᵀ, up to a scale.

    ``where``, shapes and types as in ``ov``. Not divided by the root of the head's width (T5 does not, Gemma divides by
    something else): nothing in this module depends on the scale. Query heads that share keys each have a copy.

    Biases: a key bias adds the same to all scores of a row, which the softmax ignores. A query bias does not cancel:
    it adds b_Q W_Kᵀ yᵀ, a liking for certain keys whatever the query. Both are left out; with ``bias`` left and right
    have one more row or column for a 1 at the end of x and of y, and the scores are complete.

    Raises ``ValueError`` for weights that hold NaN or infinity, and where no one matrix gives the scores: RoPE rotates
    queries and keys by their positions, q/k normalisation divides by lengths, a soft cap bends the result, latent keys
    are normalised (DeepSeek). ``anyway`` gives the product all the same, with a warning; under RoPE alone it is right
    for a token and itself, where the two rotations cancel. Warns (``UserWarning``) where positions add a term of their
    own (ALiBi, T5, DeBERTa): there W_QK is what content contributes. The reasons are read from the attention module's
    code; ``ov`` is not concerned.

    >>> from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel
    >>> shape = dict(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> qk(BertModel(BertConfig(**shape)))
    <Circuits 'qk': 8 heads of 2 sites>
    >>> qk(LlamaModel(LlamaConfig(**shape)))
    Traceback (most recent call last):
    ...
    ValueError: LlamaAttention (decoder 0): no W_QK gives its scores, because queries and keys are rotated ...
    """
    values, added = {}, {}
    for site in _sites(where):
        spoil, add = query_key_obstacles(site)
        if spoil and not (anyway and site.q is not None):
            raise ValueError(
                f"{_who(site)}: no W_QK gives its scores, because {'; '.join(spoil)}. Look at the queries and keys "
                f'themselves: with record(model, want=("q", "k")) as r: model(**batch). ov() is not concerned'
                + ("" if site.q is None else "; qk(..., anyway=True) gives the bare product of the weights")
            )
        for reason in spoil + add:
            added.setdefault(reason, _who(site))
        key = _inputs(site.k, site, bias)
        values[site.key] = _finite(site, Factored(_inputs(site.q, site, bias), key.mT), "W_QK")
    for reason, who in added.items():
        warnings.warn(f"W_QK is not the whole score in {who}: {reason}", stacklevel=2)
    return Circuits(values, "qk")


def _sites(where: nn.Module | Sites | Site) -> list[Site]:
    """Return the sites meant that have heads left."""
    if isinstance(where, Site):
        where = Sites((where,))
    found = [s for s in (where if isinstance(where, Sites) else sites(where)) if not s.empty]
    if not found:
        raise ValueError("all heads are cut here: there are no circuits; pass a model that has heads left")
    for site in found:
        check_not_offloaded(site.module, "a circuit")
        check_not_offloaded(site.out, "a circuit")
    return found


def _inputs(projection: Projection, site: Site, bias: bool) -> Tensor:
    """Return the projection as (heads, d_in, width), with the bias as one more row where asked."""
    weight = projection.weight().mT
    if bias:
        offset = projection.bias()
        offset = weight.new_zeros(len(weight), weight.shape[-1]) if offset is None else offset
        weight = torch.cat([weight, offset[:, None]], 1)
    # query heads in a row share one key and value head
    return _plain(weight).repeat_interleave(site.heads // len(weight), 0)


def _finite(site: Site, circuit: Factored, name: str) -> Factored:
    """Return the circuit; raise ``ValueError`` for one that holds NaN or infinity, and name the heads."""
    parts = (circuit.left, circuit.right)
    if not all(part.isfinite().all() for part in parts):
        broken = [head for head in range(site.heads) if not all(part[head].isfinite().all() for part in parts)]
        raise ValueError(
            f"{_who(site)}: {name} is not a number in {heads_label(broken, site.heads)}, because its weights hold NaN "
            "or infinity: load them again"
        )
    return circuit


def _plain(weight: Tensor) -> Tensor:
    """Return a copy free of gradients, in float32 or float64."""
    return weight.detach().to(torch.promote_types(weight.dtype, torch.float32), copy=True)


def _who(site: Site) -> str:
    return f"{type(site.module).__name__} ({site.label})"
