"""Pruning curves and what a cut costs: the right heads go, as if they were cut, and the scores come with bounds.

That a point is the model without the first heads of an order, and what orders hold, are laws: ``test_laws.py``.
"""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.importance.loss import label_loss
from headtools.sparse.cut_cost import cut_cost, repeated_tokens
from headtools.sparse.pruning_curve import curve, curves, greedy_order, random_order

from ..heads.reference import untouched
from ..heads.zoo import fresh, logits, zoo_model
from ..roles.tiny_llama import byte_tokenizer, tiny_llama

HEADS = [("encoder", layer, head) for layer in range(3) for head in range(4)]  # of the zoo's BERT


def scores_of(batch):
    """An evaluation: one number per sentence, (3,)."""
    return lambda model: logits(model(**batch)).float().flatten(1).logsumexp(1)


def test_the_lowest_scores_go_first_and_only_heads_of_the_order():
    model, batch = zoo_model("bert")
    values = {("encoder", 0): torch.arange(4.0), ("encoder", 2): torch.tensor([-5.0, 50, 60, 70])}
    frame = curve(model, ht.HeadScores(values), scores_of(batch), keep=[6, 0])
    for metric, off in zip(frame.metric, ({0: [0], 2: [0]}, {0: range(4), 2: range(4)}), strict=True):
        with torch.no_grad(), ht.ablate(model, {("encoder", layer): heads for layer, heads in off.items()}):
            assert metric == pytest.approx(scores_of(batch)(model).mean().item())


def test_counts_and_fractions():
    model, batch = zoo_model("bert")
    frame = curve(model, HEADS, scores_of(batch), keep=[1.0, 1, 0.5, 0, 0.0, np.int64(3), np.float32(0.25), 0.29])
    assert frame.kept.tolist() == [12, 1, 6, 0, 0, 3, 3, 3]
    assert curve(model, HEADS, lambda _model: 0.5).kept.tolist() == [12, 11, 10, 8, 7, 6, 5, 4, 2, 1, 0]


def test_scores_per_sentence_have_their_bootstrap_interval_and_ready_made_ones_their_own():
    model, _ = zoo_model("bert")
    each = torch.rand(50, generator=torch.Generator().manual_seed(0))
    frame, (low, high) = curve(model, HEADS, lambda _model: each, keep=[4]), ht.bootstrap(each)
    assert list(frame.columns) == ["kept", "metric", "low", "high"]
    assert frame.iloc[0].tolist() == pytest.approx([4, each.mean().item(), low.item(), high.item()])
    assert curve(model, HEADS, lambda _m: (30.1, 29.0, 31), keep=[4]).iloc[0].tolist() == [4, 30.1, 29.0, 31]
    for one in (0.25, np.float32(0.25), torch.tensor(0.25), torch.tensor([0.25])):
        row = curve(model, HEADS, lambda _m, one=one: one, keep=[4]).iloc[0]
        assert (row.metric, math.isnan(row.low), math.isnan(row.high)) == (0.25, True, True)


def test_several_orders_share_what_they_can():
    (model, batch), calls = zoo_model("bert"), []

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


def test_the_spread_over_ranking_draws_is_that_of_orders_by_drawn_rows():
    (model, batch), generator = zoo_model("bert"), torch.Generator().manual_seed(0)
    rows = {("encoder", layer): torch.rand(9, 4, generator=generator) for layer in range(3)}
    scores, again = ht.HeadScores.from_rows(rows), torch.randint(9, (5, 9), generator=torch.Generator().manual_seed(0))
    frame = curve(model, scores, scores_of(batch), [12, 6, 3], draws=5)
    assert list(frame.columns) == ["kept", "metric", "low", "high", "draws_low", "draws_high"]
    drawn = [ht.HeadScores({key: some[i].mean(0) for key, some in rows.items()}) for i in again]
    points = [curve(model, order, scores_of(batch), [12, 6, 3]).metric for order in drawn]
    assert frame.draws_low.tolist() == pytest.approx(np.min(points, 0).tolist())
    assert frame.draws_high.tolist() == pytest.approx(np.max(points, 0).tolist())
    assert frame.draws_low[1] < frame.draws_high[1]
    assert frame.draws_low[0] == frame.draws_high[0] == frame.metric[0]
    both = curves(model, {"scores": scores, "list": HEADS}, scores_of(batch), [6], draws=5)
    assert both.draws_low.isna().tolist() == [False, True]
    with pytest.raises(ValueError, match="draws need scores with rows"):
        curve(model, HEADS, scores_of(batch), draws=5)


@pytest.mark.parametrize("step", [1, 5, 20])
def test_greedy_orders_score_what_is_left(step):
    model, batch = zoo_model("bert")

    def score(one):
        return ht.gradient(one, batch, lambda outputs, _batch: outputs.logits.logsumexp(-1).mean(1))

    order, gone = greedy_order(model, score, step), []
    while len(gone) < 12:
        gates = {("encoder", layer): torch.ones(4) for layer in range(3)}
        for kind, layer, head in gone:
            gates[kind, layer][head] = 0
        with ht.gates(model, gates):
            scores = score(model)
        gone += sorted((head for head in scores if head not in gone), key=lambda head: scores[head])[:step]
    assert order == gone
    assert (order == score(model).order()) == (step == 20)


def test_the_model_is_measured_without_dropout_and_left_as_it_was():
    (model, batch), seen = fresh("bert"), []
    model.train()

    def evaluate(one):
        seen.append((one.training, torch.is_grad_enabled()))
        return scores_of(batch)(one)

    with untouched(model):
        curve(model, HEADS, evaluate, keep=[6, 0])
        with pytest.raises(ZeroDivisionError):
            curve(model, HEADS, lambda _model: 1 / 0, keep=[6])
    assert seen == [(False, False)] * 2


# --- what a cut costs -------------------------------------------------------------------------------------------------


def test_each_row_is_two_plain_runs():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    heads = [("decoder", 0, 1), ("decoder", 1, 3)]
    corpora = {
        "english": ht.text_batches(tokenizer, ht.natural_text("english", "test", 6), batch_size=2),
        "repeated": repeated_tokens(model, n=3, length=5),
    }
    frame = cut_cost(model, heads, corpora).set_index("corpus")
    for name, given in corpora.items():
        losses = {}
        for state, off in (("loss", []), ("without", heads)):
            with torch.no_grad(), ht.ablate(model, off):
                batches = [given] if isinstance(given, dict) else given
                each = [
                    label_loss(model, model(batch["input_ids"], batch["attention_mask"]), batch) for batch in batches
                ]
            losses[state] = torch.cat(each)
            assert frame[state][name] == pytest.approx(losses[state].mean().item(), abs=1e-5)
        rise = losses["without"] - losses["loss"]
        assert frame["rise"][name] == pytest.approx(rise.mean().item(), abs=1e-5)
        if len(rise) >= 5:
            ends = [end.item() for end in ht.bootstrap(rise)]
            assert [frame.low[name], frame.high[name]] == pytest.approx(ends, abs=1e-5)
        else:
            assert pd.isna(frame.low[name])


def test_only_what_can_be_predicted_has_labels():
    batch = repeated_tokens(tiny_llama(), n=4, length=6, seed=2)
    assert torch.equal(batch["input_ids"][:, :6], batch["input_ids"][:, 6:])
    assert (batch["labels"][:, :7] == -100).all()
    assert torch.equal(batch["labels"][:, 7:], batch["input_ids"][:, 1:6])
    assert {0, 1}.isdisjoint(batch["input_ids"].flatten().tolist()), "special tokens are not drawn"
