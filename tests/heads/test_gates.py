"""Gates and ablation on every architecture of the zoo: exact, local, and gone when the context ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headtools as ht
from headtools.heads.gates import gates

from .reference import (
    assert_same_state,
    naive_gates,
    open_gates,
    some_heads,
    state,
    watch,
    zero_columns,
)
from .zoo import ALL, MECHANISMS, PADDED, error, fresh, logits, run, valid, zoo_model

SIDES = ("right", "left")
CLOSE = 1e-5


def lengths(sites, model, batch):
    """How many tokens each output projection reads: {site.key: T}."""
    with watch(sites) as recorded:
        run(model, batch)
    return {key: calls[0][0].shape[1] for key, calls in recorded.items()}


@pytest.mark.parametrize(("name", "side"), PADDED)
def test_gates_of_one_change_no_bit(name, side):
    model, batch = zoo_model(name, side)
    sites = ht.sites(model)
    plain = run(model, batch)
    with ht.gates(model, open_gates(sites)):
        gated = run(model, batch)
    assert torch.equal(gated, plain)


@pytest.mark.parametrize(("name", "side"), PADDED)
def test_gates_of_zero_equal_zeroed_columns(name, side):
    model, batch = fresh(name, side)
    sites = ht.sites(model)
    heads = some_heads(sites)
    plain = run(model, batch)
    with ht.gates(model, open_gates(sites, heads)):
        gated = run(model, batch)
    with ht.ablate(model, heads):
        ablated = run(model, batch)
    for site in sites:
        zero_columns(site, heads[site.key])
    cleared = run(model, batch)
    assert error(valid(name, gated, batch), valid(name, cleared, batch)) <= 1e-6 * cleared.abs().max()
    assert torch.equal(gated, ablated)
    assert error(valid(name, plain, batch), valid(name, gated, batch)) > 1e-3, "the test cannot see a gate here"


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_site_is_gated_on_its_own(name):
    """One head of one site at a time: the right columns, and no other site's."""
    model, batch = zoo_model(name)
    for site in ht.sites(model):
        head = site.heads - 1
        mask = torch.ones(site.heads)
        mask[head] = 0
        with ht.ablate(model, {site.key: [head]}):
            gated = run(model, batch)
        with naive_gates([(site, lambda z, mask=mask: z * mask[:, None])]):
            naive = run(model, batch)
        assert torch.equal(gated, naive)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_gate_per_example_and_per_token(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    tokens = lengths(sites, model, batch)
    generator = torch.Generator().manual_seed(3)
    rows = {site.key: torch.rand(3, site.heads, generator=generator) for site in sites}
    cells = {site.key: torch.rand(3, tokens[site.key], site.heads, generator=generator) for site in sites}
    for values in (rows, cells):
        with ht.gates(model, values):
            gated = run(model, batch)
        changes = [
            (site, lambda z, g=values[site.key]: z * (g[:, None] if g.dim() == 2 else g)[..., None]) for site in sites
        ]
        with naive_gates(changes):
            naive = run(model, batch)
        assert error(valid(name, gated, batch), valid(name, naive, batch)) <= 1e-6


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
def test_the_context_gives_the_model_back(name):
    model, batch = zoo_model(name)
    sites = ht.sites(model)
    plain, before = run(model, batch), state(model)
    with ht.ablate(model, some_heads(sites)):
        inside = run(model, batch)
    assert_same_state(before, state(model))
    assert torch.equal(run(model, batch), plain)
    assert not torch.equal(inside, plain)


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


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_same_context_twice_and_out_of_order(name):
    model, _ = zoo_model(name)
    before = state(model)
    heads = some_heads(ht.sites(model))
    first, second = ht.ablate(model, heads), ht.ablate(model, heads)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert_same_state(before, state(model))


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_bfloat16_model_stays_bfloat16(name):
    model, batch = fresh(name)
    model.to(torch.bfloat16)
    plain = run(model, batch)
    with ht.gates(model, open_gates(ht.sites(model))):
        gated = run(model, batch)
    assert gated.dtype == torch.bfloat16
    assert torch.equal(gated, plain)


def test_a_shared_module_is_one_site_gated_at_every_call():
    model, batch = zoo_model("albert")
    sites = ht.sites(model)
    assert len(sites) == 1
    with watch(sites) as recorded:
        run(model, batch)
    assert len(recorded["encoder", 0]) == 3


law = settings(max_examples=15, deadline=None)


@law
@given(data=st.data())
@pytest.mark.parametrize("name", ["marian", "gpt2", "llama"])
def test_law_any_heads_off_equal_zeroed_columns(name, data):
    model, batch = fresh(name)
    sites = list(ht.sites(model))
    heads = {}
    for site in sites:
        selected = data.draw(st.sets(st.integers(0, site.heads - 1)), label=str(site.key))
        if selected:
            heads[site.key] = sorted(selected)
    with ht.ablate(model, heads):
        gated = run(model, batch)
    for site in sites:
        zero_columns(site, heads.get(site.key, []))
    cleared = run(model, batch)
    assert error(valid(name, gated, batch), valid(name, cleared, batch)) <= 1e-5


@law
@given(data=st.data())
@pytest.mark.parametrize("name", ["marian", "gpt2", "llama"])
def test_law_any_gate_values_equal_the_plain_product(name, data):
    model, batch = zoo_model(name)
    sites = list(ht.sites(model))
    number = st.floats(-2, 2, width=32)
    values = {
        site.key: torch.tensor(data.draw(st.lists(number, min_size=site.heads, max_size=site.heads))) for site in sites
    }
    with ht.gates(model, values):
        gated = run(model, batch)
    with naive_gates([(site, lambda z, g=values[site.key]: z * g[:, None]) for site in sites]):
        naive = run(model, batch)
    assert torch.equal(gated, naive)


@pytest.mark.parametrize("name", ["bert", "marian", "albert"])
def test_ready_made_gates_do_what_gates_do(name):
    model, batch = zoo_model(name)
    sites = list(ht.sites(model))
    values = {site: torch.rand(site.heads, generator=torch.Generator().manual_seed(3)) for site in sites}
    plain = run(model, batch)
    with ht.gates(model, {site.key: gate for site, gate in values.items()}):
        expected = run(model, batch)
    with gates(model, values):
        assert torch.equal(run(model, batch), expected)
    assert not torch.equal(expected, plain)
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


def test_the_gradient_of_a_gate_at_0():
    model, batch = fresh("bert")
    for start in (0.0, 1e-4):
        gate = torch.full((4,), start, requires_grad=True)
        with ht.gates(model, {("encoder", 1): gate}):
            (slope,) = torch.autograd.grad(logits(model(**batch)).square().sum(), gate)
        if start == 0.0:
            at_0 = slope
    assert at_0.abs().min() > 0
    assert torch.allclose(at_0, slope, rtol=0.02)
