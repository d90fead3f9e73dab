"""How heads act on one another along the residual stream: ``composition``."""

from __future__ import annotations

import torch

from headtools.geometry.circuits import ov, qk
from headtools.geometry.factored_matrix import Levels, divide_or_zero, pairwise_products
from headtools.heads._devices import without_autocast
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
