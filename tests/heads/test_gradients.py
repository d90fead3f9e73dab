"""The gradient of a gate is the slope of the loss, whatever the model does to save memory or time."""

import pytest
import torch

import headtools as ht

from .reference import checkpoint
from .zoo import ALL, fresh, logits, valid, zoo_model

# (type, step, relative tolerance) of the central difference. Norms and rotary embeddings that compute in float32
# whatever the model's type, and the kinks of ReLU, limit what a difference can tell; experts and Gemma 2's softcapped
# padding cannot run in float64 at all. Everywhere else the two agree to a millionth.
EXACT = (torch.float64, 1e-5, 1e-6)
UPCASTING = (torch.float64, 1e-3, 1e-3)
SINGLE = (torch.float32, 1e-2, 5e-3)
RELU = (torch.float64, 1e-4, 1e-3)
PRECISION = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3", "modernbert", "bloom", "gptj"), UPCASTING),
    **dict.fromkeys(("gemma2", "gpt_oss", "deepseek_v3"), SINGLE),
    "t5": RELU,
}


@pytest.mark.parametrize("name", ALL)
def test_gate_gradient_equals_a_central_difference(name):
    dtype, step, tolerance = PRECISION.get(name, EXACT)
    model, batch = fresh(name)
    model.to(dtype).requires_grad_(False)
    batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    sites = list(ht.sites(model))
    generator = torch.Generator().manual_seed(5)
    start = [(torch.rand(site.heads, generator=generator, dtype=torch.float64) + 0.5).to(dtype) for site in sites]
    direction = [torch.randn(site.heads, generator=generator, dtype=torch.float64).to(dtype) for site in sites]

    def loss(gates):
        with ht.gates(model, {site.key: gate for site, gate in zip(sites, gates, strict=True)}):
            scores = valid(name, logits(model(**batch)), batch).flatten()
        weights = torch.randn(scores.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
        return (scores.double() * weights).sum()

    leaves = [gate.clone().requires_grad_() for gate in start]
    gradient = torch.autograd.grad(loss(leaves), leaves)
    slope = sum((g.double() * d.double()).sum() for g, d in zip(gradient, direction, strict=True)).item()
    with torch.no_grad():
        up = loss([g + step * d for g, d in zip(start, direction, strict=True)])
        down = loss([g - step * d for g, d in zip(start, direction, strict=True)])
    difference = ((up - down) / (2 * step)).item()
    assert slope == pytest.approx(difference, rel=tolerance)
    assert all(g.abs().min() > 0 for g in gradient), "a head without gradient"


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


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_gates_stay_float32_under_autocast(name):
    model, batch = zoo_model(name)
    sites = list(ht.sites(model))
    leaves = {site.key: torch.ones(site.heads, requires_grad=True) for site in sites}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = logits(model(**batch))
        with ht.gates(model, leaves):
            scores = logits(model(**batch))
    assert torch.equal(scores, plain)
    gradients = torch.autograd.grad(scores.float().sum(), list(leaves.values()))
    assert all(gradient.dtype == torch.float32 and torch.isfinite(gradient).all() for gradient in gradients)
