"""The bootstrap covers the truth as often as it says, and pairs examples."""

import pytest
import torch

from headtools.heads.intervals import bootstrap, percentiles


def test_covers_the_true_mean_about_as_often_as_promised():
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(80, 400, generator=generator)  # 400 experiments of 80 examples, true mean 0
    low, high = bootstrap(samples)
    covered = ((low <= 0) & (high >= 0)).float().mean().item()
    assert 0.90 <= covered <= 0.975


def test_is_narrower_for_paired_differences():
    generator = torch.Generator().manual_seed(1)
    easy = torch.rand(200, generator=generator)
    harder = easy - 0.1 + 0.01 * torch.randn(200, generator=generator)
    low, high = bootstrap(easy - harder)
    assert low < 0.1 < high
    assert high - low < 0.01


def test_shape_and_seed():
    values = torch.rand(10, 3, 2)
    low, high = bootstrap(values, seed=3)
    again, _ = bootstrap(values, seed=3)
    assert low.shape == high.shape == (3, 2)
    assert torch.equal(low, again)
    assert bool((low <= values.mean(0)).all())
    assert bool((values.mean(0) <= high).all())


@pytest.mark.parametrize(
    ("values", "level", "says"),
    [
        (torch.rand(1), 0.95, "two examples"),
        (torch.tensor([0.0, float("nan")]), 0.95, "NaN"),
        (torch.rand(5), 95, "between 0 and 1"),
        (torch.rand(5), 1.0, "between 0 and 1"),
        (torch.rand(5), 0.0, "between 0 and 1"),
        (torch.tensor(1.0), 0.95, "two examples"),
    ],
)
def test_bad_input(values, level, says):
    with pytest.raises(ValueError, match=says):
        bootstrap(values, level=level)


def test_what_is_taken_when_nothing_is_said():
    values = torch.randn(9, generator=torch.Generator().manual_seed(3))
    assert bootstrap(values) == bootstrap(values, times=1000, level=0.95, seed=0)
    assert bootstrap(values) != bootstrap(values, times=1000, level=0.95, seed=1)
    assert len({bootstrap(values, times=times)[0].item() for times in (999, 1000, 1001)}) > 1


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("shape", [(2,), (7,), (7, 2, 3)])
def test_by_hand(shape, level):
    """Draw rows, take means, keep the middle."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(4))
    low, high = bootstrap(values, times=50, level=level, seed=5)
    draws = torch.randint(shape[0], (50, shape[0]), generator=torch.Generator().manual_seed(5))
    means = torch.stack([values[rows].double().mean(0) for rows in draws])
    for found, place in ((low, (1 - level) / 2), (high, 1 - (1 - level) / 2)):
        assert found.dtype == torch.float32
        assert torch.allclose(found.double(), means.quantile(place, dim=0), atol=1e-6)


def test_values_of_any_type_and_place_in_a_graph():
    values = torch.arange(6.0, requires_grad=True)
    low, _ = bootstrap(values)
    assert not low.requires_grad
    assert torch.equal(low, bootstrap(torch.arange(6).double())[0])
    assert bootstrap(values)[0].shape == ()


def test_percentiles_are_torchs_quantiles():
    some = torch.rand(3, 4, 101, generator=torch.Generator().manual_seed(0))
    some[0, :, :30] = torch.nan
    some[1, 2] = torch.nan
    for level in (0.95, 0.5):
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2])
        for ours, theirs in zip(percentiles(some, level), torch.nanquantile(some, ends, dim=-1), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6, equal_nan=True)
    whole = some[2].double().T  # as bootstrap has it: strided, in double precision, no NaN
    expected = torch.quantile(whole, torch.tensor([0.025, 0.975], dtype=torch.double), dim=0)
    assert torch.allclose(torch.stack(percentiles(whole.T, 0.95)), expected, rtol=1e-12, atol=0)
