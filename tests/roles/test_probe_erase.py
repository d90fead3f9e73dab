"""Erasure: after it no linear probe finds the label, and outside its context the model is what it was."""

import pytest
import torch

import headtools as ht
from headtools.roles.erasure import erasure

MODEL, TOKENIZER = ht.load()
BATCH = dict(TOKENIZER([str(s) for s in ht.corpus("organism", limit=4)], padding=True, return_tensors="pt"))


def cloud(labels=3, n=300, d=6):
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(n) % labels
    mix = torch.randn(d, d, generator=draw, dtype=torch.double)
    x = (torch.randn(n, d, generator=draw, dtype=torch.double) + 2 * torch.nn.functional.one_hot(y, d)) @ mix
    return x, [f"label {i}" for i in y.tolist()], y


@pytest.mark.parametrize("labels", [2, 3])
def test_no_linear_reader_is_left(labels):
    x, names, y = cloud(labels)
    take = erasure(x, names)
    gone = take(x)
    assert take.rank == labels - 1
    means = torch.stack([gone[y == i].mean(0) for i in range(labels)])
    torch.testing.assert_close(means, x.mean(0).expand_as(means))  # so that no linear reader beats the majority
    torch.testing.assert_close(take(gone), gone)  # a projection


def test_it_is_the_smallest_change_that_does_it():
    """In the norm of the vectors' own spread, no other map of this kind with equal means moves them less."""
    x, names, y = cloud(2)
    take = erasure(x, names)
    step = x[y == 1].mean(0) - x[y == 0].mean(0)
    centred = x - x.mean(0)
    moved = (take(x) - x).square().sum()
    draw = torch.Generator().manual_seed(1)
    best = torch.linalg.solve(centred.T @ centred, step)
    for direction in (best, step, *torch.randn(20, 6, generator=draw, dtype=torch.double)):
        other = x - (centred @ direction)[:, None] * step / (step @ direction)  # also makes the means equal
        assert (other - x).square().sum() >= moved - 1e-6


def test_random_directions_are_as_many_and_leave_the_label():
    x, names, y = cloud(3)
    take = erasure(x, names, random=True, seed=1)
    assert take.rank == 2 == torch.linalg.matrix_rank(take.matrix)
    gone = take(x)
    assert (gone[y == 0].mean(0) - gone[y == 1].mean(0)).norm() > 0.5
    assert not torch.equal(take.matrix, erasure(x, names, random=True, seed=2).matrix)


def test_features_without_spread_are_no_trouble():
    x, names, _ = cloud(2)
    wide = torch.cat([x, x[:, :1], torch.ones(len(x), 1)], 1)
    gone = erasure(wide, names)(wide)
    assert gone.isfinite().all()
    torch.testing.assert_close(gone[:, -1], wide[:, -1])
