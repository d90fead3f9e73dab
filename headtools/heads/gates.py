"""Multiply the output of each attention head by a gate: ``gates``.

Gate 1 leaves the model bit for bit as it was; gate 0 equals pruning the head (the projection's bias stays).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_not_compiled
from headtools.heads._hooks import Edit, context, edit_outputs
from headtools.heads.sites import Site, sites


@context
def gates(model: nn.Module, values: Mapping[tuple, Tensor]) -> Iterator[None]:
    """Multiply the output of each head by its gate while the context lasts.

    ``values``: {("encoder", 2): tensor} with gates of shape (H,), per example (B, H), or per example and token (B, T,
    H). They are differentiable: the mean absolute gradient at gate 1 is the importance of Michel et al. 2019, eq. 2.
    Nested contexts multiply. Keep ``backward`` inside the context when the model uses gradient checkpointing.

    Raises ``KeyError`` for an unknown site, ``TypeError`` or ``ValueError`` for gates of another form, NaN included,
    and ``RuntimeError`` for a compiled model. B and T are checked when the model runs: beams need gates of shape (H,).

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> gate = torch.ones(4, requires_grad=True)
    >>> with ht.gates(model, {("encoder", 1): gate}):
    ...     model(torch.tensor([[1, 2, 3]])).pooler_output.sum().backward()
    >>> gate.grad.shape
    torch.Size([4])
    """
    check_not_compiled(model)
    all_sites = sites(model)
    if not isinstance(values, Mapping):
        raise TypeError(f'gates must look like {{("encoder", 2): torch.ones(8)}}, got {type(values).__name__}')
    edits: dict[Site, Edit] = {}
    for key, gate in values.items():
        site = all_sites.one(key)
        _check_gate(site, gate)
        if site in edits:
            raise ValueError(f"got gates for {site.label} twice, once as {key!r}: name each site once")
        edits[site] = _multiply(site, gate)
    with edit_outputs(model, "gates()", edits):
        yield


def _multiply(site: Site, gate: Tensor) -> Edit:
    """Return the edit z -> gate * z, for z (B, T, head, value_dim)."""

    def edit(z: Tensor) -> Tensor:
        rows, tokens = z.shape[0], z.shape[1] if z.dim() == 4 else None
        if gate.dim() > 1 and (gate.shape[0] != rows or (gate.dim() == 3 and gate.shape[1] != tokens)):
            raise ValueError(
                f"got gates of shape {tuple(gate.shape)} for {site.label}, in a forward pass of {rows} rows and "
                f"{tokens} tokens. Beam search and several return sequences multiply rows, and a cache feeds one "
                f"token at a time: there write gates of shape ({site.heads},)"
            )
        factor = gate if gate.dim() != 2 else gate.view(rows, *[1] * (z.dim() - 3), site.heads)  # (B, 1, head)
        factor = factor.to(z.device, z.dtype).unsqueeze(-1)  # (..., head, 1)
        # 0 times infinity is NaN, but a head whose gate is 0 must write nothing, whatever it computed: as if ablated
        return torch.where(factor == 0, z.nan_to_num(0.0, 0.0, 0.0), z) * factor

    return edit


def _check_gate(site: Site, gate: object) -> None:
    if not isinstance(gate, Tensor):
        raise TypeError(f"the gates of {site.label} must be a tensor, got {type(gate).__name__}: torch.tensor(...)")
    if gate.dim() not in (1, 2, 3) or gate.shape[-1] != site.heads:
        raise ValueError(
            f"{site.label} has {site.heads} heads, so its gates have shape ({site.heads},), (B, {site.heads}) or "
            f"(B, T, {site.heads}); got {tuple(gate.shape)}"
        )
    if not gate.is_floating_point():
        raise TypeError(f"the gates of {site.label} must be floating point, got {gate.dtype}: use gate.float()")
    if not gate.detach().isfinite().all():
        raise ValueError(f"the gates of {site.label} hold NaN or infinity: write finite numbers, such as 0.0 and 1.0")
