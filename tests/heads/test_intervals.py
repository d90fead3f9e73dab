"""The bootstrap covers the truth as often as it says, and pairs examples."""

import math

import pytest
import torch
from scipy import stats

from headtools.heads import intervals
from headtools.heads.intervals import bootstrap, bounds, interval_around, percentiles


def covered(ends, truth):
    low, high = ends
    return ((low <= truth) & (truth <= high)).float().mean().item()


@pytest.mark.parametrize(("n", "columns"), [(5, 3000), (8, 2000), (20, 1000), (99, 1000), (100, 1000), (300, 400)])
def test_covers_the_true_mean_about_as_often_as_promised(n, columns):
    """Percentiles hold it in 78 to 90 % of few examples, and in 84 % of a hundred of which 95 are 0."""
    generator = torch.Generator().manual_seed(n)
    normal = torch.randn(n, columns, generator=generator)
    skewed = torch.empty(n, columns).exponential_(generator=generator)
    assert 0.92 <= covered(bootstrap(normal), 0) <= 0.98
    assert 0.91 <= covered(bootstrap(skewed), 1) <= 0.97
    if n >= 99:
        assert 0.93 <= covered(bootstrap(normal.exp()), math.exp(0.5)) <= 0.98
        assert 0.91 <= covered(bootstrap(skewed * (torch.rand(n, columns, generator=generator) < 0.05)), 0.05) <= 0.99


def test_one_more_example_makes_no_other_interval():
    """At 100 examples intervals were halved once, where few examples are not 0."""
    zero_heavy = torch.zeros(101, 40)
    zero_heavy[:5] = torch.empty(5, 40).exponential_(generator=torch.Generator().manual_seed(0))
    widths = [(high - low).mean() for low, high in (bootstrap(zero_heavy[:n]) for n in (99, 100, 101))]
    assert max(widths) / min(widths) < 1.15


def test_bad_input():
    for few in (torch.tensor(1.0), torch.rand(1), torch.rand(4, 2)):
        with pytest.raises(
            ValueError, match=rf"needs 5 examples or more, got values of shape \({str(few.shape)[12:-2]}"
        ):
            bootstrap(few)
    for missing in (torch.nan, torch.inf):
        with pytest.raises(ValueError, match="NaN or infinity"):
            bootstrap(torch.tensor([missing, 0.0, 1.0, 2.0, 3.0]))
    for wrong in ({"level": 95}, {"level": 1.0}, {"level": 0.0}):
        with pytest.raises(ValueError, match=r"level lies between 0 and 1, such as 0.95"):
            bootstrap(torch.rand(5), **wrong)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("shape", [(5,), (107,), (99, 2, 3)])
def test_by_hand(shape, level):
    """Draw rows, divide how far their mean moves by its standard error, and go as far from the mean the other way."""
    values = torch.empty(shape).exponential_(generator=torch.Generator().manual_seed(4)).double()
    low, high = bootstrap(values, level=level)
    n, mean, error = shape[0], values.mean(0), values.std(0) / shape[0] ** 0.5
    ratios = []
    for rows in torch.randint(n, (1000, n), generator=torch.Generator().manual_seed(0)):
        own = values[rows].std(0) / n**0.5
        ratios.append((values[rows].mean(0) - mean) / torch.maximum(own, error / 4))
    ratios, t = torch.stack(ratios), stats.t.ppf((1 + level) / 2, n - 1)
    far, near = (ratios.quantile(fraction, dim=0) for fraction in ((1 + level) / 2, (1 - level) / 2))
    assert torch.allclose(low.double(), mean - far.clamp(min=t) * error, atol=1e-6)
    assert torch.allclose(high.double(), mean - near.clamp(max=-t) * error, atol=1e-6)


def test_draws_do_not_depend_on_how_many_fit_in_memory(monkeypatch):
    values = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    at_once = bootstrap(values)
    monkeypatch.setattr(intervals, "_DRAWS_PER_CHUNK", 1000)
    assert max(len(part) for part in intervals.resample_counts(40, 1000)) == 25
    monkeypatch.setattr(intervals, "_MAX_MEANS", 2000)
    for one, other in zip(at_once, bootstrap(values), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_tables_have_no_bounds_of_few_rows_and_none_beyond_what_can_be():
    assert all(end.isnan().all() and end.shape == (3,) for end in bounds(torch.rand(4, 3)))
    low, high = bounds(torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]), 0.0, 1.0)
    assert (low, high) == (0, 1)


def rank_correlation(means):
    """Spearman's correlation of each pair (draws, 2, heads): (draws,)."""
    ranks = means.argsort(-1).argsort(-1).double()
    away = torch.nn.functional.normalize(ranks - ranks.mean(-1, keepdim=True), dim=-1)
    return (away[:, 0] * away[:, 1]).sum(-1)


def test_a_rank_correlation_lies_in_its_interval_which_covers_what_as_many_examples_give():
    """Percentiles alone leave it out now and then: drawing again adds noise, so that drawn correlations are lower."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.linspace(-2, 2, 24).exp()

    def sample():
        common, own = (torch.empty(n, 24).exponential_(generator=generator) for n in (64, 64))
        return torch.stack([truth * common[:32] * own[:32], truth.flip(0) * 0.3 + truth * common[:32] * own[32:]], 1)

    usual = torch.stack([rank_correlation(sample().mean(0)[None])[0] for _ in range(2000)]).mean()
    hits = []
    for _ in range(100):
        rows = sample()
        low, high = bootstrap(rows, statistic=rank_correlation)
        assert low <= rank_correlation(rows.double().mean(0)[None])[0] <= high
        hits.append(bool(low <= usual <= high))
    assert sum(hits) >= 90


def test_intervals_round_a_score_know_how_many_examples_it_has():
    replicas = torch.randn(3, 2000, generator=torch.Generator().manual_seed(0))
    for end in interval_around(torch.zeros(3), replicas, torch.tensor([4, 10, 10**6]), 0.95):
        assert end[0].isnan()
        assert 2.2 < end[1].abs() < 2.8
        assert end[2].abs() == pytest.approx(1.96, abs=0.15)


def test_percentiles_are_torchs_quantiles():
    some = torch.rand(3, 4, 101, generator=torch.Generator().manual_seed(0))
    some[0, :, :30] = torch.nan
    some[1, 2] = torch.nan
    for level in (0.95, 0.5):
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2])
        for ours, theirs in zip(percentiles(some, level), torch.nanquantile(some, ends, dim=-1), strict=True):
            assert torch.allclose(ours, theirs, atol=1e-6, equal_nan=True)
