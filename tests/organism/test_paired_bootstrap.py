"""The paired bootstrap against sacreBLEU, and against itself done slowly."""

import random

import pytest
import torch
from sacrebleu.metrics import BLEU
from scipy import stats

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
    exact = BLEU(tokenize="none", force=True)
    found = ht.paired_bootstrap(one, two, right)
    wanted = [exact.corpus_score(some, [right]).score for some in (one, two)]
    assert (found.first, found.second) == pytest.approx(wanted)
    assert found.difference == pytest.approx(wanted[1] - wanted[0])


@pytest.mark.parametrize("number", [30, 100])
def test_draws_are_those_of_whole_sentences_and_p_is_two_sided(number):
    right, one, two = texts(0, number=number), texts(1, 0.2, number), texts(2, 0.25, number)
    metric = BLEU(tokenize="none", force=True)
    draws = torch.randint(number, (1000, number), generator=torch.Generator().manual_seed(0)).tolist()

    def score(system, rows):
        return metric.corpus_score([system[row] for row in rows], [[right[row] for row in rows]]).score

    apart = torch.tensor([score(two, rows) - score(one, rows) for rows in draws], dtype=torch.double)
    found = ht.paired_bootstrap(one, two, right)
    ends = interval_around(torch.tensor(found.difference).double(), apart, number, 0.95)
    assert (found.low, found.high) == pytest.approx([end.item() for end in ends])
    student = 2 * stats.t.sf(abs(found.difference) / apart.std().item(), number - 1)
    sides = [(apart <= 0).double().mean().item(), (apart >= 0).double().mean().item()]
    assert found.p == pytest.approx(max(student, 2 * min(sides)))
    assert ht.paired_bootstrap(two, one, right).p == pytest.approx(found.p)


def test_p_is_small_where_the_difference_is_sure_and_one_where_there_is_none():
    right = texts(0)
    assert ht.paired_bootstrap(right, texts(1, 0.5), right).p < 1e-9
    assert ht.paired_bootstrap(texts(1, 0.5), right, right).difference > 0
    same = ht.paired_bootstrap(texts(1, 0.3), texts(1, 0.3), right)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


@pytest.mark.parametrize(
    ("one", "two", "right", "error", "words"),
    [
        (torch.ones(9), torch.ones(9), ["a"] * 9, TypeError, "bootstrap"),
        ("a b", ["a"], ["a"], TypeError, "with_ must be a list of"),
        (["a"] * 4, ["a"] * 4, ["a"] * 4, ValueError, "5 or more"),
        (["a"] * 9, ["a"] * 8, ["a"] * 9, ValueError, "got 8 without"),
    ],
)
def test_what_is_no_text_or_too_little_is_refused(one, two, right, error, words):
    with pytest.raises(error, match=words):
        ht.paired_bootstrap(one, two, right)
