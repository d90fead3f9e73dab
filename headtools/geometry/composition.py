"""How heads act on one another and on tokens: ``composition`` along the residual stream, ``copying``.

Both are from "A Mathematical Framework for Transformer Circuits" (Elhage et al. 2021), written here for row vectors.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headtools.geometry.circuits import Circuits, ov, qk
from headtools.geometry.factored_matrix import FactoredMatrix, Levels, divide_or_zero, pairwise_products
from headtools.heads._devices import to_float64, without_autocast
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site


@without_autocast
def composition(earlier: Site, later: Site, into: str = "key") -> Levels:
    """Return how far the heads of a later site read what those of an earlier one write: (heads earlier, heads later).

    ``into``: "query" ‖W_OV W_QK‖, "key" ‖W_OV W_QKᵀ‖ or "value" ‖W_OV W_OV'‖, each divided by the product of the two
    factors' Frobenius norms (Elhage et al. 2021, section on two-layer models; written for rows here). ``chance`` is
    1/√d, the level of random heads, with d the width between them. Layer normalisations and feed-forward layers between
    the two sites are ignored, so this is the direct path only. Nothing of size d x d is built.

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
        raise ValueError(f'got into={into!r}; expected "query", "key" or "value"')
    _check_path(earlier, later, into)
    first = ov(earlier)[earlier.key]
    second = (ov if into == "value" else qk)(later)[later.key]
    second = second.T if into == "key" else second
    if first.shape[-1] != second.shape[-2]:
        raise ValueError(f"{earlier.label} writes width {first.shape[-1]}, {later.label} reads {second.shape[-2]}")
    # The norm of the product W₁ W₂ = L₁ R₁ L₂ R₂ without forming it: with L₁ = Q₁ S₁ and R₂ᵀ = Q₂ S₂,
    # ‖L₁ R₁ L₂ R₂‖ = ‖S₁ (R₁ L₂) S₂ᵀ‖, since the columns of Q₁ and Q₂ are orthonormal.
    s1 = torch.linalg.qr(first.left, mode="r")[1]
    s2 = torch.linalg.qr(second.right.mT, mode="r")[1]
    middle = pairwise_products(first.right, second.left)  # (H, H', r, r')
    norms = (s1[:, None] @ middle @ s2.mT[None]).flatten(-2).norm(dim=-1)
    return Levels(divide_or_zero(norms, first.norm()[:, None] * second.norm()[None]), first.shape[-1] ** -0.5)


def copying(circuits: Circuits, embedding: Tensor, unembedding: Tensor | None = None) -> HeadScores:
    """Return how far a head raises the token that it attends to: Σλ / Σ|λ| of the eigenvalues of E W_OV U, in [-1, 1].

    ``circuits``: ``ov(...)`` without biases; ``embedding`` E (V, d); ``unembedding`` U as (V, d), as an output
    layer's weight is; left out, E. 1 means that all tokens of a basis are raised in proportion, 0 is chance, -1
    means that they are lowered. Elhage et al. 2021. The eigenvalues of the V x V matrix that are not 0 are those of
    W_O Uᵀ E W_V, which is d_head x d_head: UᵀE costs O(V d²) once, a head O(d² d_head).

    For heads whose output reaches the vocabulary directly (decoders); a head that is 0 gets 0. Raises ``ValueError``
    for widths that do not fit.

    >>> one = Circuits({("decoder", 0): FactoredMatrix(torch.eye(3)[None], torch.eye(3)[None])}, "ov")
    >>> copying(one, torch.eye(3))["decoder", 0, 0]
    1.0
    """
    unembedding = embedding if unembedding is None else unembedding
    if embedding.dim() != 2 or embedding.shape[0] != unembedding.shape[0]:
        raise ValueError(
            f"got an embedding {tuple(embedding.shape)} and an unembedding {tuple(unembedding.shape)}; expected two "
            "tables (V, d)"
        )
    if not (embedding.isfinite().all() and unembedding.isfinite().all()):
        raise ValueError("the tables hold NaN or infinity, so they have no eigenvalues: load their weights again")
    # XY and YX have the same eigenvalues but for zeros: those of E (W_V W_O) Uᵀ, V x V, are those of W_O (UᵀE) W_V.
    through = to_float64(unembedding.detach()).mT @ to_float64(embedding.detach())  # UᵀE, (d, d)

    def of_site(circuit: FactoredMatrix) -> Tensor:
        if circuit.shape[-2:] != (embedding.shape[1], unembedding.shape[1]):
            raise ValueError(
                f"W_OV is {tuple(circuit.shape[-2:])} but the tables are {embedding.shape[1]} and "
                f"{unembedding.shape[1]} wide; pass the model's own, and ov(...) without bias"
            )
        right, left = to_float64(circuit.right), to_float64(circuit.left)
        values = torch.linalg.eigvals(right @ through.to(right.device) @ left)
        return divide_or_zero(values.sum(-1).real, values.abs().sum(-1)).float()

    return circuits.score(of_site, "copying")


def _check_path(earlier: Site, later: Site, into: str) -> None:
    """Raise ``ValueError`` unless what ``earlier`` writes can reach that input of ``later`` by the residual stream."""
    pair = f"{earlier.label} cannot feed the {into} of {later.label}: "
    if earlier.stack != later.stack:
        raise ValueError(pair + "they belong to different stacks")
    if (earlier.kind == "encoder") != (later.kind == "encoder"):
        if earlier.kind == "encoder" and later.kind == "cross" and into != "query":
            return
        raise ValueError(pair + "what an encoder writes reaches a decoder as the keys and values of cross-attention")
    if later.kind == "cross" and into != "query":
        raise ValueError(pair + 'its keys and values come from the encoder; write into="query"')
    # In a decoder layer self-attention comes first, and cross-attention reads what it wrote.
    same_layer = earlier.kind == "decoder" and later.kind == "cross"
    if earlier.layer > later.layer or (earlier.layer == later.layer and not same_layer):
        raise ValueError(pair + "heads of one layer run side by side, and later layers come after; take a lower layer")
