"""How heads work on one another and on words: ``composition`` along the residual stream, ``copying`` of tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from headtools.geometry._pairs import Levels, products, ratio
from headtools.geometry.circuits import Circuits, ov, qk
from headtools.geometry.low_rank import Factored
from headtools.heads._precision import to_float64, without_autocast
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site


@without_autocast
def composition(earlier: Site, later: Site, into: str = "key") -> Levels:
    """Return how far the heads of a later site read what those of an earlier one write: (heads earlier, heads later).

    ``into``: "query" ‖W_OV W_QK‖, "key" ‖W_OV W_QKᵀ‖ or "value" ‖W_OV W_OV'‖, each divided by the product of the two
    factors' Frobenius norms (Elhage et al. 2021, section on two-layer models; written for rows here). ``chance`` is
    1/√d, the level of random heads, with d the width between them; the untrained model shows the spread around it.
    Layer normalisations and feed-forward layers between the two sites are left out, so this is the direct path only.

    All pairs cost one product of (heads r) x d x (heads r) and O(r³) a pair; nothing of size d x d is built.

    Raises ``ValueError`` when the earlier site cannot feed that input of the later one (heads of one layer run side
    by side; a cross-attention takes keys and values from the encoder), and as ``ov`` and ``qk`` do.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> sites = ht.sites(BertModel(tiny))
    >>> values, chance = composition(sites["encoder", 0], sites["encoder", 1], into="key")
    >>> tuple(values.shape), chance
    ((4, 4), 0.25)
    """
    if into not in ("query", "key", "value"):
        raise ValueError(f'into must be "query", "key" or "value", got {into!r}')
    _must_feed(earlier, later, into)
    first = ov(earlier)[earlier.key]
    second = (ov if into == "value" else qk)(later)[later.key]
    second = second.T if into == "key" else second
    if first.shape[-1] != second.shape[-2]:
        raise ValueError(f"{earlier.label} writes width {first.shape[-1]}, {later.label} reads {second.shape[-2]}")
    # ‖L₁ R₁ L₂ R₂‖ = ‖S₁ (R₁ L₂) S₂ᵀ‖ with L₁ = Q₁ S₁ and R₂ᵀ = Q₂ S₂
    s1 = torch.linalg.qr(first.left, mode="r")[1]
    s2 = torch.linalg.qr(second.right.mT, mode="r")[1]
    middle = products(first.right, second.left)  # (H, H', r, r')
    size = (s1[:, None] @ middle @ s2.mT[None]).flatten(-2).norm(dim=-1)
    return Levels(ratio(size, first.norm()[:, None] * second.norm()[None]), first.shape[-1] ** -0.5)


def copying(circuits: Circuits, embedding: Tensor, unembedding: Tensor | None = None) -> HeadScores:
    """Return how far a head raises the very token it looks at: Σλ / Σ|λ| over the eigenvalues of E W_OV U, in [-1, 1].

    ``circuits``: ``ov(...)`` without biases; ``embedding`` E (V, d); ``unembedding`` U as (V, d), as an output
    layer's weight is; left out, E. 1 means that all tokens of a basis are raised in proportion, 0 is chance, -1
    means pushed down. Elhage et al. 2021. The eigenvalues of the V x V matrix that are not 0 are those of
    W_O Uᵀ E W_V, which is d_head x d_head: UᵀE costs O(V d²) once, a head O(d² d_head).

    Meant for heads whose output reaches the vocabulary directly (decoders). Raises ``ValueError`` for widths that do
    not fit; a head that is 0 gets 0.

    >>> one = Circuits({("decoder", 0): Factored(torch.eye(3)[None], torch.eye(3)[None])}, "ov")
    >>> copying(one, torch.eye(3))["decoder", 0, 0]
    1.0
    """
    unembedding = embedding if unembedding is None else unembedding
    if embedding.dim() != 2 or embedding.shape[0] != unembedding.shape[0]:
        raise ValueError(f"needed are two tables (V, d), got {tuple(embedding.shape)} and {tuple(unembedding.shape)}")
    if not (embedding.isfinite().all() and unembedding.isfinite().all()):
        raise ValueError("the tables hold NaN or infinity, so they have no eigenvalues: load their weights again")
    through = to_float64(unembedding.detach()).mT @ to_float64(embedding.detach())  # (d, d)

    def of_site(circuit: Factored) -> Tensor:
        if circuit.shape[-2:] != (embedding.shape[1], unembedding.shape[1]):
            raise ValueError(
                f"W_OV is {tuple(circuit.shape[-2:])} but the tables are {embedding.shape[1]} and "
                f"{unembedding.shape[1]} wide; pass the model's own, and ov(...) without bias"
            )
        right, left = to_float64(circuit.right), to_float64(circuit.left)
        values = torch.linalg.eigvals(right @ through.to(right.device) @ left)
        return ratio(values.sum(-1).real, values.abs().sum(-1)).float()

    return circuits.score(of_site, "copying")


def _must_feed(earlier: Site, later: Site, into: str) -> None:
    """Raise unless what ``earlier`` writes can reach that input of ``later`` along the residual stream."""
    pair = f"{earlier.label} cannot feed the {into} of {later.label}: "
    if earlier.stack != later.stack:
        raise ValueError(pair + "they belong to different stacks")
    if (earlier.kind == "encoder") != (later.kind == "encoder"):
        if earlier.kind == "encoder" and later.kind == "cross" and into != "query":
            return
        raise ValueError(pair + "what an encoder writes reaches a decoder as the keys and values of cross-attention")
    if later.kind == "cross" and into != "query":
        raise ValueError(pair + 'its keys and values come from the encoder; into="query" is open')
    same_layer = earlier.kind == "decoder" and later.kind == "cross"  # a decoder layer looks back, then across
    if earlier.layer > later.layer or (earlier.layer == later.layer and not same_layer):
        raise ValueError(pair + "heads of one layer run side by side, and later layers come after; take a lower layer")
