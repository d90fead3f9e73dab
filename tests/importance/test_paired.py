"""The paired bootstrap against sacreBLEU, against itself done slowly, and against what is known."""

import random

import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF

import headtools as ht
from headtools.heads.intervals import interval_around

WORDS = ["der", "die", "das", "Hund", "Katze", "Vogel", "sieht", "kennt", "sucht", "den", "einen", "."]


def texts(seed, worse=0.0, number=30):
    """Right sentences, and the same with a share of words replaced."""
    dice = random.Random(7)
    right = [[dice.choice(WORDS) for _ in range(dice.randint(3, 9))] for _ in range(number)]
    dice = random.Random(seed)
    return [" ".join(dice.choice(WORDS) if dice.random() < worse else word for word in words) for words in right]


def test_scores_are_those_of_sacrebleu():
    right, one, two = texts(0), texts(1, 0.2), texts(2, 0.3)
    for metric in (None, BLEU(), BLEU(max_ngram_order=2, smooth_method="floor"), BLEU(lowercase=True, tokenize="char")):
        exact = BLEU(tokenize="none", force=True) if metric is None else metric
        found = ht.paired_bootstrap(one, two, right, metric=metric, n=2)
        wanted = [exact.corpus_score(some, [right]).score for some in (one, two)]
        assert (found.first, found.second) == pytest.approx(wanted)
        assert found.difference == pytest.approx(wanted[1] - wanted[0])


def test_draws_are_those_of_whole_sentences():
    right, one, two = texts(0), texts(1, 0.2), texts(2, 0.25)
    metric = BLEU(tokenize="none", force=True)
    draws = torch.randint(30, (200, 30), generator=torch.Generator().manual_seed(3)).tolist()

    def score(system, rows):
        return metric.corpus_score([system[row] for row in rows], [[right[row] for row in rows]]).score

    apart = torch.tensor([score(two, rows) - score(one, rows) for rows in draws], dtype=torch.double)
    found = ht.paired_bootstrap(one, two, right, n=200, seed=3)
    low, high = interval_around(
        torch.tensor(found.difference).double(), apart, 30, 0.95
    )  # of few sentences percentiles are narrow
    assert (found.low, found.high) == pytest.approx((low.item(), high.item()))
    middle = apart.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    assert found.low < middle[0]
    assert middle[1] < found.high
    assert found.p == pytest.approx((apart * found.difference <= 0).double().mean().item())
    assert 0 < found.p < 0.5


def test_numbers_are_compared_by_their_mean():
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(50, generator=generator)
    two = one + 0.1 + 0.5 * torch.randn(50, generator=generator)
    found = ht.paired_bootstrap(one, two)
    low, high = ht.bootstrap(two - one)
    assert found.difference == pytest.approx((two - one).mean().item(), abs=1e-6)
    assert (found.low, found.high) == pytest.approx((low.item(), high.item()), abs=1e-6)
    assert found.first == pytest.approx(one.mean().item(), abs=1e-6)


def test_p_is_small_where_the_difference_is_sure_and_one_where_there_is_none():
    right = texts(0)
    assert ht.paired_bootstrap(right, texts(1, 0.5), right).p == 0
    assert ht.paired_bootstrap(texts(1, 0.5), right, right).difference > 0
    same = ht.paired_bootstrap(texts(1, 0.3), texts(1, 0.3), right)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_pairing_matters():
    """The same two systems, the second shuffled against the first: the interval must grow."""
    one = torch.linspace(0, 1, 40)
    two = one + 0.01
    paired = ht.paired_bootstrap(one, two)
    shuffled = ht.paired_bootstrap(one, two[torch.randperm(40, generator=torch.Generator().manual_seed(1))])
    assert paired.high - paired.low < 1e-6
    assert shuffled.high - shuffled.low > 0.1


def test_percentiles_are_taken_of_many_sentences():
    right, one, two = texts(0, number=100), texts(1, 0.2, number=100), texts(2, 0.25, number=100)
    found = ht.paired_bootstrap(one, two, right, n=40)
    draws = torch.randint(100, (40, 100), generator=torch.Generator().manual_seed(0)).tolist()
    metric = BLEU(tokenize="none", force=True)
    drawn = [
        [metric.corpus_score([some[row] for row in rows], [[right[row] for row in rows]]).score for rows in draws]
        for some in (one, two)
    ]
    apart = torch.tensor(drawn[1], dtype=torch.double) - torch.tensor(drawn[0], dtype=torch.double)
    middle = apart.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    assert (found.low, found.high) == pytest.approx(middle)


def test_the_same_seed_gives_the_same_draws():
    right, one, two = texts(0), texts(1, 0.2), texts(2, 0.3)
    assert ht.paired_bootstrap(one, two, right, n=50) == ht.paired_bootstrap(one, two, right, n=50)
    assert ht.paired_bootstrap(one, two, right, n=50).low != ht.paired_bootstrap(one, two, right, n=50, seed=1).low


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((["a", "b"], ["a"]), ValueError, "the same examples, got 2 and 1"),
        ((["a"], ["a"], ["a"]), ValueError, "need 5 examples or more, got 1"),
        ((torch.rand(4), torch.rand(4)), ValueError, "need 5 examples or more, got 4"),
        ((["a", "b"], ["a", "b"]), ValueError, "BLEU needs reference translations"),
        ((["a", "b"], ["a", "b"], ["a"]), ValueError, "references has 1 sentences for 2"),
        ((["a", "b"], ["a", "b"], "ab"), TypeError, "references must be a list"),
        ((["a", "b"], ["a", 3], ["a", "b"]), TypeError, "without must be a list"),
        ((["a", "b"], ["a", "b"], ["a", "b"], CHRF()), TypeError, "metric must be sacrebleu"),
        ((torch.ones(3), torch.ones(3), ["a"] * 3), ValueError, "leave references and metric out"),
        ((torch.ones(3), torch.tensor([1, 2, float("nan")])), ValueError, "or NaN"),
        ((torch.ones(3, 2), torch.ones(3, 2)), ValueError, "one finite number per example"),
    ],
)
def test_bad_input_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ht.paired_bootstrap(*arguments)


def test_no_draws_are_refused():
    with pytest.raises(ValueError, match="1000 is usual"):
        ht.paired_bootstrap(torch.ones(3), torch.ones(3), n=0)
