"""FactoredMatrix matrices, effective rank, overlaps and cosines: against the matrices multiplied out."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headtools import geometry
from headtools.geometry import subspaces
from headtools.geometry.factored_matrix import FactoredMatrix

law = settings(max_examples=15, deadline=None)
SIZES = st.tuples(st.integers(2, 9), st.integers(1, 4), st.integers(2, 9))


def heads(n, d_in=12, r=3, d_out=12, seed=0, dtype=torch.float64):
    """n random heads in double precision."""
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(n, d_in, r, generator=draw, dtype=dtype)
    return FactoredMatrix(left, torch.randn(n, r, d_out, generator=draw, dtype=dtype))


def near(a, b, tol=1e-9):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), rtol=tol, atol=tol)


# --- factored matrices ----------------------------------------------------------------------------------------------


@law
@given(SIZES, st.integers(0, 99))
def test_svd_is_that_of_the_matrix(size, seed):
    d_in, r, d_out = size  # r may exceed both widths
    one = heads(2, d_in, r, d_out, seed)
    u, s, v = one.svd()
    k = min(size)
    assert u.shape == (2, d_in, k)
    assert v.shape == (2, d_out, k)
    assert one.rank == k
    near(u @ s.diag_embed() @ v.mT, one.matrix())
    near(u.mT @ u, torch.eye(k, dtype=torch.float64).expand(2, k, k))
    near(v.mT @ v, torch.eye(k, dtype=torch.float64).expand(2, k, k))
    near(s, torch.linalg.svdvals(one.matrix())[:, :k])
    near(one.singular_values(), s)
    near(one.norm(), one.matrix().flatten(1).norm(dim=1))


def test_u_reads_and_v_writes():
    """Row convention: x U Uᵀ is all that W sees of x, and what comes out lies in the span of V; never the reverse."""
    one = heads(1)[0]
    u, _, v = one.svd()
    w, x = one.matrix(), torch.randn(5, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    near(x @ u @ u.mT @ w, x @ w)
    near(x @ w @ v @ v.mT, x @ w)
    assert (x @ v @ v.mT @ w - x @ w).norm() > 0.1 * (x @ w).norm()
    assert (x @ w @ u @ u.mT - x @ w).norm() > 0.1 * (x @ w).norm()


@law
@given(SIZES, st.integers(0, 99))
def test_forms_and_transposes(size, seed):
    a = heads(3, *size, seed)
    near(a.T.matrix(), a.matrix().mT)
    x, y = torch.ones(4, size[0], dtype=torch.float64), torch.arange(2.0 * size[2]).view(2, -1).double()
    near(a.between(x, y), x @ a.matrix() @ y.T)


def test_no_matrix_of_full_size_is_built():
    """200,000 dimensions: the matrix would take 160 GB."""
    wide = heads(1, 200_000, 2, 200_000, dtype=torch.float32)
    assert geometry.effective_rank(wide).shape == (1,)
    assert wide.norm().item() == pytest.approx(math.sqrt(2) * 200_000, rel=0.02)
    geometry.overlap(wide)
    geometry.cosine(wide)


@pytest.mark.parametrize(
    ("first_factor", "right", "error", "says"),
    [
        (torch.ones(3, 2), torch.ones(3, 2), ValueError, r"got left \(3, 2\) and right \(3, 2\)"),
        (torch.ones(2, 3, 2), torch.ones(2, 3), ValueError, r"expected \(\.\.\., d_in, r\)"),
        (torch.ones(1, 3, 2), torch.ones(2, 2, 3), ValueError, r"expected \(\.\.\., d_in, r\)"),
        (torch.ones(3, 0), torch.ones(0, 3), ValueError, r"expected \(\.\.\., d_in, r\)"),
        (torch.ones(3, 2).long(), torch.ones(2, 3), TypeError, "left must be a floating-point tensor, got a"),
        (torch.ones(3, 2), [[1.0]], TypeError, "right must be a floating-point tensor, got list"),
    ],
)
def test_factors_that_do_not_fit(first_factor, right, error, says):
    with pytest.raises(error, match=says):
        FactoredMatrix(first_factor, right)


def test_one_matrix_has_no_axis_to_index():
    one = heads(2)[1]
    with pytest.raises(IndexError, match="one matrix, not several"):
        one[0]
    with pytest.raises(TypeError, match="one matrix"):
        len(one)


# --- effective rank ---------------------------------------------------------------------------------------------------


def test_effective_rank_by_hand():
    def by_hand(*sigma):
        total = sum(sigma)
        return math.exp(-sum(s / total * math.log(s / total) for s in sigma if s))

    for sigma in ((1.0, 1.0, 1.0), (5.0,), (3.0, 1.0, 0.0), (2.0, 1.0, 1.0)):
        near(geometry.effective_rank(torch.diag(torch.tensor(sigma))), by_hand(*sigma), 1e-5)
    assert by_hand(2, 1, 1) == pytest.approx(2 * math.sqrt(2))  # entropy 1.5 ln 2


@law
@given(SIZES, st.floats(0.01, 100), st.integers(0, 99))
def test_effective_rank_laws(size, factor, seed):
    """Between 1 and the rank; the same for a multiple, for any gauge, and for the matrix multiplied out."""
    one = heads(3, *size, seed)
    got = geometry.effective_rank(one)
    assert (got >= 1 - 1e-9).all()
    assert (got <= one.rank + 1e-9).all()
    near(geometry.effective_rank(one.matrix()), got, 1e-5)
    gauge = torch.randn(size[1], size[1], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gauge = gauge + 5 * torch.eye(size[1], dtype=torch.float64)
    turned = FactoredMatrix(factor * one.left @ gauge, torch.linalg.inv(gauge) @ one.right)
    near(geometry.effective_rank(turned), got, 1e-6)


def test_nothing_and_nan():
    silent = FactoredMatrix(torch.zeros(2, 4, 2), torch.ones(2, 2, 4))
    assert geometry.effective_rank(silent).tolist() == [0, 0]
    assert geometry.effective_rank(torch.zeros(3, 3)).item() == 0
    assert geometry.overlap(silent).values.abs().max() == 0
    assert geometry.cosine(silent).values.abs().max() == 0
    with pytest.raises(ValueError, match="NaN or infinity"):
        geometry.effective_rank(FactoredMatrix(torch.full((4, 2), math.nan), torch.ones(2, 4)))


def test_chance_of_effective_rank():
    """The level that facts and lesson state: random factors of width 32 and 16 in 128 dimensions."""
    for width, level in ((32, 29.8), (16, 15.5)):
        drawn = geometry.random_like(heads(40, 128, width, 128, dtype=torch.float32))
        assert geometry.effective_rank(drawn).mean().item() == pytest.approx(level, abs=0.1)


# --- pairs of heads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["read", "write"])
def test_overlap_is_the_mean_cosine_squared(side):
    a, b = heads(3, 12, 3, 10, 1), heads(4, 12, 2, 10, 2)
    values, chance = geometry.overlap(a, b, side)
    for i in range(3):
        for j in range(4):
            one, two = (m.matrix() if side == "read" else m.matrix().mT for m in (a[i], b[j]))
            p, q = (m @ torch.linalg.pinv(m) for m in (one, two))  # projections on the column spaces
            near(values[i, j], (p * q).sum() / 2)
    assert chance == 3 / (12 if side == "read" else 10)


@pytest.mark.parametrize("rank", [2, 4])  # by bases, and by projections
def test_the_overlap_of_heads_is_the_same_in_any_blocks(monkeypatch, rank):
    some = heads(5, 8, rank, 8)
    at_once = geometry.overlap(some).values
    near(at_once, at_once.T)
    monkeypatch.setattr(subspaces, "_BLOCK_NUMBERS", 2 * 8 * 8)
    near(geometry.overlap(some, FactoredMatrix(some.left.clone(), some.right.clone())).values, at_once)
    near(geometry.overlap(some).values, at_once)


def test_overlap_by_hand():
    eye = torch.eye(6)

    def on(*axes):
        return FactoredMatrix(eye[:, list(axes)], eye[list(axes)])

    assert geometry.overlap(on(0, 1), on(0, 1)).values.item() == pytest.approx(1)
    assert geometry.overlap(on(0, 1), on(2, 3)).values.item() == 0
    assert geometry.overlap(on(0, 1, 2), on(2, 3)).values.item() == pytest.approx(0.5)
    tilted = FactoredMatrix(eye[:, :1], torch.tensor([[0.5, 0.0, 3**0.5 / 2, 0.0, 0.0, 0.0]]))
    assert geometry.overlap(on(0), tilted).values.item() == pytest.approx(0.25)  # cos² of 60 degrees
    # reads alike, writes apart: overlap tells the two sides apart
    assert geometry.overlap(on(0, 1), FactoredMatrix(eye[:, :2], eye[4:]), "read").values.item() == pytest.approx(1)
    assert geometry.overlap(on(0, 1), FactoredMatrix(eye[:, :2], eye[4:]), "write").values.item() == 0


def test_overlap_ignores_gauge_and_counts_only_directions_in_use():
    a = heads(2)
    gauge = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    turned = FactoredMatrix(a.left @ gauge, torch.linalg.inv(gauge) @ a.right)
    near(geometry.overlap(a, turned).values.diagonal(), [1.0, 1.0])
    near(geometry.cosine(a, turned).values.diagonal(), [1.0, 1.0])
    idle = FactoredMatrix(
        torch.cat([a.left, torch.zeros(2, 12, 2, dtype=torch.float64)], -1),
        torch.cat([a.right, torch.randn(2, 2, 12, dtype=torch.float64)], 1),
    )
    near(geometry.overlap(a, idle).values, geometry.overlap(a).values)


def test_cosine_against_the_matrices():
    a, b = heads(3, 8, 2, 5, 1), heads(2, 8, 4, 5, 2)
    flat_a, flat_b = a.matrix().flatten(1), b.matrix().flatten(1)
    want = flat_a @ flat_b.T / (flat_a.norm(dim=1)[:, None] * flat_b.norm(dim=1))
    values, chance = geometry.cosine(a, b)
    near(values, want)
    assert chance == pytest.approx(40**-0.5)


def test_chance_levels_are_what_random_heads_give():
    one = heads(40, 128, 16, 128, dtype=torch.float32)
    away = ~torch.eye(40, dtype=torch.bool)
    for side in geometry.subspaces.SIDES:
        values, chance = geometry.overlap(one, side=side)
        assert chance == 1 / 8
        assert values[away].mean().item() == pytest.approx(chance, abs=0.001)
    values, chance = geometry.cosine(one)
    assert values[away].std().item() == pytest.approx(chance, rel=0.1)


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match=r"side must be \"read\" or \"write\", got 'up'"):
        geometry.overlap(heads(1), side="up")
    with pytest.raises(ValueError, match="widths 12 and 9; expected one space"):
        geometry.overlap(heads(1), heads(1, 12, 3, 9))
    with pytest.raises(ValueError, match="expected equal shapes"):
        geometry.cosine(heads(1), heads(1, 12, 3, 9))
