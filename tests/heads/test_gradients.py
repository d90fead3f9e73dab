"""Gradients of gates under gradient checkpointing."""

import pytest
import torch

import headtools as ht

from .reference import checkpoint
from .zoo import fresh, logits


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian"])
def test_gradient_checkpointing_gives_the_same_gate_gradients(name):
    model, batch = fresh(name)
    sites = list(ht.sites(model))

    def gradient():
        leaves = {site.key: torch.full((site.heads,), 0.7, requires_grad=True) for site in sites}
        with ht.gates(model, leaves):
            logits(model(**batch, use_cache=False)).logsumexp(-1).sum().backward()
        return [leaves[site.key].grad.clone() for site in sites]

    # Checkpointing works in training mode alone; the models have no dropout, so nothing else changes.
    model.train()
    plain = gradient()
    checkpoint(model)
    repeated = gradient()
    assert all(torch.equal(one, other) for one, other in zip(plain, repeated, strict=True))


def test_backward_after_the_context_is_loud_under_checkpointing():
    """The layers run again without their gates: torch notices, and no wrong gradient comes out."""
    model, batch = fresh("bert")
    model.train()
    checkpoint(model)
    leaf = torch.full((4,), 0.7, requires_grad=True)
    with ht.gates(model, {("encoder", 1): leaf}):
        loss = logits(model(**batch)).sum()
    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        loss.backward()
