"""Gates and ablation on every architecture of the zoo: exact, local, and gone when the context ends."""

import pytest
import torch

import headtools as ht

from .zoo import error, fresh, logits, run, zoo_model

CLOSE = 1e-5


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "albert", "clip"])
def test_nested_contexts_multiply_and_unwind(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    generator = torch.Generator().manual_seed(4)
    first = {site.key: torch.rand(site.heads, generator=generator) for site in sites}
    second = {site.key: torch.rand(site.heads, generator=generator) for site in sites}
    plain = run(model, batch)
    with ht.gates(model, {key: first[key] * second[key] for key in first}):
        product = run(model, batch)
    with ht.gates(model, first):
        outer = run(model, batch)
        with ht.gates(model, second):
            both = run(model, batch)
        assert torch.equal(run(model, batch), outer)
    assert error(both, product) <= CLOSE
    assert torch.equal(run(model, batch), plain)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_a_gate_of_0_on_a_head_that_is_not_finite(value, shape):
    """0 times infinity is NaN: the head was closed, and its NaN went on."""
    model, batch = fresh("bert")
    site = ht.sites(model)["encoder", 1]
    with torch.no_grad():
        site.v.module.bias[site.v.rows[2][0]] = value
    gate = torch.ones(shape)
    gate[..., 2] = 0
    gate.requires_grad_()
    with ht.ablate(model, {("encoder", 1): [2]}):
        expected = run(model, batch)
    with ht.gates(model, {("encoder", 1): gate}):
        found = logits(model(**batch))
    assert expected.isfinite().all()
    assert torch.allclose(found, expected, atol=1e-6)
