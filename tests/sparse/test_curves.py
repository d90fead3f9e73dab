"""Pruning curves: the right heads go, as if they were cut, and the scores come with their bounds."""

import math

import numpy as np
import pytest
import torch

import headtools as ht
from headtools.importance.gradient import gradient
from headtools.sparse.pruning_curve import all_heads, curve, curves, greedy_order, random_order

from ..heads.zoo import fresh, logits, run, zoo_model


def scores_of(batch):
    """An evaluation: one number per sentence, (3,)."""
    return lambda model: logits(model(**batch)).float().flatten(1).logsumexp(1)


@pytest.mark.parametrize("name", ["bert", "llama", "marian", "t5"])
def test_each_point_is_that_of_the_model_cut_for_good(name):
    model, batch = zoo_model(name)
    order = random_order(ht.sites(model), seed=3)
    counts = [len(order), len(order) - 1, len(order) // 2, 1, 0]
    frame = curve(model, order, scores_of(batch), keep=counts)
    assert frame.kept.tolist() == counts
    for kept, metric in zip(frame.kept, frame.metric, strict=True):
        cut, _ = fresh(name)
        if kept < len(order):
            ht.prune(cut, order[: len(order) - kept])
        with torch.no_grad():
            assert metric == pytest.approx(scores_of(batch)(cut).mean().item(), rel=1e-5)
    assert frame.metric[:3].nunique() == 3  # the last head of an encoder is worth nothing to a decoder that cannot look


def test_the_lowest_scores_go_first():
    model, batch = zoo_model("bert")
    values = {site.key: torch.arange(4.0) + 10 * site.layer for site in ht.sites(model)}
    values["encoder", 2] = torch.tensor([-5.0, 50, 60, 70])
    frame = curve(model, ht.HeadScores(values), scores_of(batch), keep=[10])
    with torch.no_grad(), ht.ablate(model, [("encoder", 2, 0), ("encoder", 0, 0)]):
        assert frame.metric[0] == pytest.approx(scores_of(batch)(model).mean().item())


def test_only_heads_of_the_order_go():
    model, batch = zoo_model("marian")
    order = all_heads(ht.sites(model)["encoder"])
    frame = curve(model, order, scores_of(batch), keep=[0])
    with torch.no_grad(), ht.ablate(model, {("encoder", 0): range(4), ("encoder", 1): range(4)}):
        assert frame.metric[0] == pytest.approx(scores_of(batch)(model).mean().item())


def test_counts_and_shares():
    model, batch = zoo_model("bert")
    order = all_heads(ht.sites(model))
    frame = curve(model, order, scores_of(batch), keep=[1.0, 1, 0.5, 0, 0.0, np.int64(3), np.float32(0.25), 0.29])
    assert frame.kept.tolist() == [12, 1, 6, 0, 0, 3, 3, 3]
    assert curve(model, order, lambda _model: 0.5).kept.tolist() == [12, 11, 10, 8, 7, 6, 5, 4, 2, 1, 0]


def test_scores_per_sentence_have_their_bootstrap_interval():
    model, _ = zoo_model("bert")
    each = torch.rand(50, generator=torch.Generator().manual_seed(0))
    frame = curve(model, all_heads(ht.sites(model)), lambda _model: each, keep=[4])
    low, high = ht.bootstrap(each)
    assert list(frame.columns) == ["kept", "metric", "low", "high"]
    assert frame.iloc[0].tolist() == pytest.approx([4, each.mean().item(), low.item(), high.item()])


def test_ready_made_scores():
    model, _ = zoo_model("bert")
    order = all_heads(ht.sites(model))
    assert curve(model, order, lambda _m: (30.1, 29.0, 31), keep=[4]).iloc[0].tolist() == [4, 30.1, 29.0, 31]
    for one in (0.25, np.float32(0.25), torch.tensor(0.25), torch.tensor([0.25])):
        row = curve(model, order, lambda _m, one=one: one, keep=[4]).iloc[0]
        assert row.metric == 0.25
        assert math.isnan(row.low)
        assert math.isnan(row.high)


def test_several_orders_share_what_they_can():
    model, batch = zoo_model("bert")
    calls = []

    def evaluate(one):
        calls.append(one)
        return scores_of(batch)(one)

    orders = {f"random {seed}": random_order(ht.sites(model), seed) for seed in range(3)}
    frame = curves(model, orders, evaluate, keep=[12, 6, 0])
    assert len(calls) == 5  # all heads and none are the same in every order
    assert frame.order.tolist() == [name for name in orders for _ in range(3)]
    for name, order in orders.items():
        alone = curve(model, order, scores_of(batch), keep=[12, 6, 0])
        assert frame[frame.order == name].metric.tolist() == alone.metric.tolist()


def test_random_orders():
    model, _ = zoo_model("llama")
    sites = ht.sites(model)
    first = random_order(sites, seed=0)
    assert sorted(first) == sorted(all_heads(sites))
    assert len(first) == 18
    assert first == random_order(sites, seed=0)
    assert first != random_order(sites, seed=1)
    assert {head[1] for head in random_order(sites["decoder"], seed=0)} == {0, 1, 2}
    scores = ht.HeadScores({site.key: torch.rand(site.heads) for site in sites})
    assert sorted(random_order(scores, seed=0)) == sorted(first)
    # each head comes first equally often: 900 draws of 18, mean 50, standard deviation 7
    counts = torch.zeros(18)
    for seed in range(900):
        counts[all_heads(sites).index(random_order(sites, seed)[0])] += 1
    assert 20 < counts.min() <= counts.max() < 85


@pytest.mark.parametrize("step", [1, 5, 20])
def test_greedy_orders_score_what_is_left(step):
    model, batch = zoo_model("bert")
    calls = []

    def score(one):
        calls.append(one)
        return gradient(one, batch, lambda outputs, _batch: outputs.logits.logsumexp(-1).mean(1))

    order = greedy_order(model, score, step)
    assert len(calls) == -(-12 // step)
    gone = []
    while len(gone) < 12:
        gates = {("encoder", layer): torch.ones(4) for layer in range(3)}
        for kind, layer, head in gone:
            gates[kind, layer][head] = 0
        with ht.gates(model, gates):
            scores = score(model)
        gone += sorted((head for head in scores if head not in gone), key=lambda head: scores[head])[:step]
    assert order == gone
    assert (order == score(model).order()) == (step == 20)
    with pytest.raises(ValueError, match="step is the number"):
        greedy_order(model, score, 0)


def test_a_pruned_model_has_an_order_of_what_is_left():
    model, batch = fresh("bert")
    ht.prune(model, {("encoder", 0): [0, 1, 2, 3], ("encoder", 1): [2]})
    order = all_heads(ht.sites(model))
    assert len(order) == 7
    assert len(curve(model, order, scores_of(batch), keep=[7, 0])) == 2


def test_the_model_is_left_as_it_was():
    model, batch = fresh("bert")
    before = run(model, batch)
    model.train()
    seen = []

    def evaluate(one):
        seen.append((one.training, torch.is_grad_enabled()))
        return scores_of(batch)(one)

    curve(model, all_heads(ht.sites(model)), evaluate, keep=[6, 0])
    with pytest.raises(ZeroDivisionError):
        curve(model, all_heads(ht.sites(model)), lambda _model: 1 / 0, keep=[6])
    assert seen == [(False, False)] * 2
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(run(model.eval(), batch), before)


REFUSED = [
    ({"keep": [13]}, ValueError, "the order has 12 heads, so it cannot keep 13"),
    ({"keep": [-1]}, ValueError, "cannot keep -1"),
    ({"keep": [1.5]}, ValueError, "a fraction lies between"),
    ({"keep": []}, ValueError, "nothing to measure"),
    ({"evaluate": lambda _m: "good"}, TypeError, "got str"),
    ({"evaluate": lambda _m: torch.zeros(2, 2)}, TypeError, r"got Tensor of shape \(2, 2\)"),
    ({"evaluate": lambda _m: float("nan")}, ValueError, "returned NaN"),
    ({"evaluate": lambda _m: torch.zeros(0)}, ValueError, "no scores"),
    ({"evaluate": lambda _m: torch.tensor([0.5, float("nan")])}, ValueError, "NaN"),
    ({"order": [("encoder", 0, 9)]}, IndexError, "heads 0..3"),
    ({"order": [("encoder", 0, 1), ("encoder", 0, 1)]}, ValueError, "named twice"),
    ({"order": {("encoder", 0): [1]}}, TypeError, "an order is scores or a list"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED)
def test_bad_input_is_refused(changes, error, message):
    model, batch = zoo_model("bert")
    given = {"order": all_heads(ht.sites(model)), "evaluate": scores_of(batch), "keep": [1]} | changes
    with pytest.raises(error, match=message):
        curve(model, **given)
