"""Gates and ablation on every architecture of the zoo: exact, local, and gone when the context ends."""

import pytest
import torch

import headtools as ht

from .reference import (
    assert_same_state,
    open_gates,
    some_heads,
    state,
)
from .zoo import ALL, MECHANISMS, error, fresh, logits, run, zoo_model

SIDES = ("right", "left")
CLOSE = 1e-5


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("vit", "clip", "whisper")])
def test_gates_of_one_example_leave_the_others_alone(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    values = {site.key: torch.ones(3, site.heads) for site in sites}
    for value in values.values():
        value[1] = 0
    plain = run(model, batch)
    with ht.gates(model, values):
        gated = run(model, batch)
    others = error(gated[[0, 2]], plain[[0, 2]])
    assert others <= (CLOSE if name in ("gpt_oss", "deepseek_v3") else 0)  # experts batch tokens of all examples
    assert error(gated[1], plain[1]) > 1e-3


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_context_gives_the_model_back_after_an_exception(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    plain, before = run(model, batch), state(model)
    for context in (ht.gates(model, open_gates(sites, some_heads(sites))), ht.ablate(model, some_heads(sites))):
        with pytest.raises(KeyError, match="mine"), context:  # noqa: PT012
            run(model, batch)
            raise KeyError("mine")
        assert_same_state(before, state(model))

    def stumble(*_):
        raise RuntimeError("midway")

    handle = list(sites)[-1].out.register_forward_hook(stumble)
    with pytest.raises(RuntimeError, match="midway"), ht.ablate(model, some_heads(sites)):
        run(model, batch)
    handle.remove()
    assert_same_state(before, state(model))
    assert torch.equal(run(model, batch), plain)


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
