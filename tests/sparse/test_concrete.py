"""Hard Concrete gates: the published numbers, and the laws that tie draws, lumps and density together.

Random draws against all formulas are in the differential harness, learnt gates against cutting in tests/test_laws.py.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headtools as ht
from headtools.sparse.hard_concrete import HardConcrete

from ..heads.zoo import fresh

ONE, TWO = {("encoder", 0): 1}, {("encoder", 0): 4, ("cross", 1): 3}


def gate(log_alpha=0.0, **options):
    return HardConcrete(ONE, start=log_alpha, **options).double()


def seeded(n=3):
    return torch.Generator().manual_seed(n)


# temperature, log alpha: P(0), P(1). The last three are the masses that Voita et al. 2019 plot in figure 6.
TABLE = [
    (0.33, 0, 0.312, 0.312),
    (0.33, 2, 0.058, 0.770),
    (0.33, 4, 0.008, 0.961),
    (2 / 3, 0, 0.168, 0.168),
    (2 / 3, 2, 0.027, 0.599),
    (0.5, 0, 0.232, 0.232),
    (0.5, 2, 0.039, 0.690),
    (0.5, -3, 0.858, 0.015),
]


@pytest.mark.parametrize(("temperature", "log_alpha", "zero", "one"), TABLE)
def test_masses_and_test_gates(temperature, log_alpha, zero, one):
    gates = gate(log_alpha, temperature=temperature)
    assert round(gates.p_zero().item(), 3) == zero
    assert round(gates.p_one().item(), 3) == one
    assert gates.test_gates().item() == (log_alpha > 0)
    assert gates.saturated(0.9).item() == (max(zero, one) >= 0.9)


def test_voita_rule_compares_the_lumps_of_a_lopsided_stretch():
    grid = torch.linspace(-3, 3, 61, dtype=torch.double)
    gates = gate(temperature=0.8, stretch=(-0.05, 1.4))
    opened = gates.test_gates(grid)
    assert torch.equal(opened.bool(), gates.p_one(grid) > gates.p_zero(grid))
    assert not torch.equal(opened.bool(), grid > 0)


@settings(max_examples=25, deadline=None)
@given(st.floats(-4, 4), st.floats(0.2, 1.5), st.floats(-0.5, -0.02), st.floats(1.02, 1.5))
def test_draws_follow_masses_mean_and_density(log_alpha, temperature, low, high):
    gates, n = gate(log_alpha, temperature=temperature, stretch=(low, high)), 20_000
    u = (torch.arange(n, dtype=torch.double) + 0.5) / n  # every quantile once: a draw without chance
    drawn = gates.draw(u, gates.log_alpha.detach())
    assert (drawn == 0).double().mean().item() == pytest.approx(gates.p_zero().item(), abs=1e-4)
    assert (drawn == 1).double().mean().item() == pytest.approx(gates.p_one().item(), abs=1e-4)
    assert drawn.mean().item() == pytest.approx(gates.mean().item(), abs=1e-4)
    assert gates.p_open().item() == pytest.approx(1 - gates.p_zero().item(), abs=1e-12)
    assert gates.density(torch.tensor([-0.1, 0.0, 1.0, 1.1])).abs().max() == 0
    inside = (drawn[1:-1] > 0) & (drawn[1:-1] < 1) & (drawn[2:] < 1) & (drawn[:-2] > 0)
    slope = (2 / n) / (drawn[2:] - drawn[:-2])[inside]  # between quantiles: probability over distance
    # where the density is steep, the distance of neighbouring quantiles says less
    torch.testing.assert_close(gates.density(drawn[1:-1][inside]).flatten(), slope, rtol=0.05, atol=1e-2)
    between = gates.density(u).mean().item()
    assert between == pytest.approx(1 - gates.p_zero().item() - gates.p_one().item(), abs=1e-4)


def test_the_gradient_of_the_penalty_vanishes_at_both_ends():
    gates = HardConcrete({("encoder", 0): 5}, start={("encoder", 0): torch.tensor([-9.0, -1.0, 0.0, 2.0, 12.0])})
    gates.expected_l0().backward()
    p = gates.p_open().detach()
    torch.testing.assert_close(gates.log_alpha.grad, p * (1 - p))
    assert gates.log_alpha.grad[0] < 1e-3
    assert 0 < gates.log_alpha.grad[4] < 1e-4  # small, but not lost in rounding


def test_the_gradient_of_a_draw_is_its_slope_and_zero_at_the_lumps():
    u, log_alpha = torch.tensor([0.0, 0.02, 0.3, 0.45, 0.999, 1.0], dtype=torch.double), 0.4
    gates = gate()
    start = torch.full((6,), log_alpha, dtype=torch.double, requires_grad=True)
    drawn = gates.draw(u, start)
    drawn.sum().backward()
    up, down = (torch.tensor(log_alpha + shift, dtype=torch.double) for shift in (1e-6, -1e-6))
    slope = (gates.draw(u, up) - gates.draw(u, down)) / 2e-6
    torch.testing.assert_close(start.grad, slope, rtol=1e-4, atol=1e-6)
    assert drawn[[0, 1, 4, 5]].tolist() == [0, 0, 1, 1]
    assert start.grad[[0, 1, 4, 5]].abs().max() == 0
    assert start.grad[2] > 0.1


def test_one_draw_a_batch_or_an_example():
    gates = HardConcrete(TWO, start=0.0)
    once, rows = gates.sample(generator=seeded()), gates.sample(500, per="example", generator=seeded())
    assert {key: tuple(value.shape) for key, value in once.items()} == {("encoder", 0): (4,), ("cross", 1): (3,)}
    assert rows["cross", 1].shape == (500, 3)
    everything = torch.cat(list(rows.values()), 1).detach()
    assert ((everything == 0).float().mean(0) - 0.312).abs().max() < 0.1
    assert everything.unique(dim=0).shape[0] > 400
    assert torch.corrcoef(everything.T).fill_diagonal_(0).abs().max() < 0.2  # heads are drawn independently
    again = gates.sample(generator=seeded())
    assert all(torch.equal(once[key], again[key]) for key in once)
    assert not torch.equal(once["encoder", 0], gates.sample(generator=seeded(4))["encoder", 0])


def test_layers_without_heads_have_no_gates():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 1): range(4), ("encoder", 2): [0]})
    assert HardConcrete(ht.sites(model)).sizes == {("encoder", 0): 4, ("encoder", 2): 3}


def test_scores_and_heads():
    start = {("encoder", 0): torch.tensor([3.0, -1.0, 0.5, 2.0]), ("cross", 1): torch.tensor([-2.0, 1.0, 0.1])}
    gates = HardConcrete(TWO, start=start)
    assert gates.scores().order()[:2] == [("cross", 1, 0), ("encoder", 0, 1)]
    assert gates.open_heads() == [head for head in gates.heads if head not in gates.scores().order()[:2]]
    start["encoder", 0][0] = -9.0
    assert gates.scores()["encoder", 0, 0] == 3.0  # a copy, not a view
