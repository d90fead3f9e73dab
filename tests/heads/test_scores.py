"""One value per head: orders, ranks, agreement and tables."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import headtools as ht

RAGGED = {("encoder", 0): torch.tensor([0.3, 0.1, 0.2]), ("cross", 1): torch.tensor([0.9, 0.1])}
law = settings(max_examples=50, deadline=None)


def scores(values, **rest):
    return ht.HeadScores({("encoder", i): torch.tensor(row) for i, row in enumerate(values)}, **rest)


# values of one to three layers of one to five heads
LAYERS = st.lists(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=5), min_size=1, max_size=3)


def test_order_top_and_lookup():
    one = ht.HeadScores(RAGGED)
    assert one.order() == [("encoder", 0, 1), ("cross", 1, 1), ("encoder", 0, 2), ("encoder", 0, 0), ("cross", 1, 0)]
    assert one.top(2) == [("cross", 1, 0), ("encoder", 0, 0)]
    assert one["cross", 1, 0] == pytest.approx(0.9)
    assert len(one) == 5
    assert list(one)[3] == ("cross", 1, 0)
    assert "5 heads" in repr(one)
    assert "cross 1.0 0.9" in repr(one)


def test_the_order_is_what_ablate_and_prune_read():
    from .zoo import fresh, zoo_model

    model, _ = zoo_model("clip")
    one = ht.HeadScores({site.key: torch.rand(site.heads) for site in ht.sites(model)})
    with ht.ablate(model, one.order()[:5]):
        pass
    cut, _ = fresh("clip")
    ht.prune(cut, one.order()[:5])
    assert sorted(ht.pruned(cut)) == sorted(one.order()[:5])


@law
@given(LAYERS)
def test_law_order_ascends_and_names_every_head_once(values):
    one = scores(values)
    ordered = [one[head] for head in one.order()]
    assert ordered == sorted(ordered)
    assert sorted(one.order()) == sorted(one)
    assert [one[head] for head in one.top(len(one))] == ordered[::-1]


def test_equal_scores_keep_the_order_of_the_heads():
    one = scores([[1.0] * 40, [1.0] * 40])
    assert one.order() == one.top(80) == list(one)


@law
@given(LAYERS)
def test_law_ranks_are_mean_ranks(values):
    one = scores(values)
    flat = one.flat().tolist()
    naive = [sum(v < x for v in flat) + (sum(v == x for v in flat) - 1) / 2 for x in flat]
    assert one.rank().flat().tolist() == naive


@law
@given(st.integers(0, 10**6))
def test_law_spearman_is_pearson_of_ranks(seed):
    generator = torch.Generator().manual_seed(seed)
    one = scores(torch.randint(0, 6, (2, 5), generator=generator).float().tolist())
    other = scores(torch.randn(2, 5, generator=generator).tolist())
    both = torch.stack([one.rank().flat(), other.rank().flat()])
    if one.flat().unique().numel() == 1:
        return
    assert one.spearman(other) == pytest.approx(torch.corrcoef(both)[0, 1].item(), abs=1e-9)
    backwards = ht.HeadScores(dict(reversed(other.values.items())))  # sites may come in another order
    assert one.spearman(backwards) == pytest.approx(one.spearman(other))


def test_agreement():
    one, other = scores([[4.0, 3, 2, 1]]), scores([[1.0, 3, 4, 2]])
    assert one.agreement(other, 2) == 0.5
    assert one.agreement(one, 3) == 1


def test_the_frame():
    frame = ht.HeadScores(RAGGED, name="share").to_frame()
    assert list(frame.columns) == ["kind", "layer", "head", "share"]
    assert frame[["kind", "layer", "head"]].values.tolist()[3] == ["cross", 1, 0]
    assert frame["share"].tolist() == pytest.approx([0.3, 0.1, 0.2, 0.9, 0.1])
    bounds = {key: value - 0.1 for key, value in RAGGED.items()}, {key: value + 0.1 for key, value in RAGGED.items()}
    framed = ht.HeadScores(RAGGED, low=bounds[0], high=bounds[1]).to_frame()
    assert list(framed.columns)[-2:] == ["low", "high"]
    assert (framed["low"] < framed["high"]).all()
    stacked = ht.HeadScores({("text_model", "encoder", 0): torch.ones(2)}).to_frame()
    assert stacked.loc[1].tolist() == ["text_model", "encoder", 0, 1, 1.0]


def test_scores_that_few_examples_carry_say_so_and_their_intervals_are_lower_bounds(tmp_path):
    rows = torch.rand(200, 4, generator=torch.Generator().manual_seed(0))
    rows[:, 1:] = torch.tensor([0.0, 1.0, 2.0])  # two that never vary, and one
    rows[:2, 3] = torch.tensor([-300.0, 250.0])  # that two sentences carry
    one = ht.HeadScores.from_rows({("encoder", 0): rows, ("cross", 0): rows[:, 3:]})
    assert one.few() == [("encoder", 0, 3), ("cross", 0, 0)]
    says = "a lower bound for 2 of 5 heads: 20 or fewer of 200 examples carry half of their score"
    assert ht.HeadScores.load(one.save(tmp_path / "one.safetensors")).notes == {"interval": says}
    assert says in repr(one)
    assert one.to_frame().carried_by.tolist()[1:] == [100, 100, 2, 2]
    assert "carried_by" not in ht.HeadScores(one.values).to_frame()
    assert not ht.HeadScores.from_rows({("encoder", 0): rows[2:]}).notes
    with pytest.raises(ValueError, match="needs rows, one number per example"):
        ht.HeadScores(one.values).few()


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (lambda: ht.HeadScores({}), ValueError, r"at least one site"),
        (lambda: ht.HeadScores({("encoder", 0): [1.0]}), TypeError, r"\(heads,\), got list"),
        (lambda: ht.HeadScores({("encoder", 0): torch.ones(2, 2)}), TypeError, r"got \(2, 2\)"),
        (lambda: ht.HeadScores({("encoder", 0): torch.ones(0)}), TypeError, r"got \(0,\)"),
        (lambda: scores([[1.0, float("nan")]]), ValueError, r"NaN"),
        (lambda: scores([[1.0]], low={("encoder", 0): torch.ones(2)}), ValueError, r"bounds"),
        (lambda: scores([[1.0]], low={("encoder", 9): torch.ones(1)}), ValueError, r"bounds"),
        (lambda: scores([[1.0, 2]]).top(3), ValueError, r"1 <= k <= 2.*got 3"),
        (lambda: scores([[1.0, 2]]).top(0), ValueError, r"got 0"),
        (lambda: scores([[1.0, 2]])["encoder", 0, 2], KeyError, r"no head"),
        (lambda: scores([[1.0, 2]])["encoder", 0, -1], KeyError, r"no head"),
        (lambda: scores([[1.0, 2]]).spearman(scores([[1.0]])), ValueError, r"different heads"),
        (lambda: scores([[1.0, 2]]).spearman(scores([[1.0, 1.0]])), ValueError, r"scores that vary"),
    ],
)
def test_bad_scores(build, kind, words):
    with pytest.raises(kind, match=words):
        build()


def test_what_scores_say_of_themselves():
    four, one = scores([[4.0, 3, 2], [1]], notes={"kept": 0.25}), scores([[0.12345]], notes={"a": 1.0, "b": "two"})
    assert repr(four) == "<HeadScores 'score': 4 heads, highest encoder 0.0 4, encoder 0.1 3, encoder 0.2 2; kept 0.25>"
    assert repr(one) == "<HeadScores 'score': 1 heads, highest encoder 0.0 0.123; a 1; b two>"
