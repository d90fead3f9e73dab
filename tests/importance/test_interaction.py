"""Interactions of two heads: by definition, and by finite differences."""

import itertools
import math

import pytest
import torch

import headtools as ht
from headtools.importance.interaction import curvature
from headtools.importance.loss import each_loss

from ..heads.reference import untouched
from ..heads.zoo import zoo_model
from .test_ablation import scored
from .test_gradient import labelled

PAIRS = {
    "bert": [
        ("encoder", 0, 1, "encoder", 2, 3),
        ("encoder", 1, 0, "encoder", 1, 2),
        ("encoder", 2, 0, "encoder", 0, 1),
    ],
    "albert": [("encoder", 0, 1, "encoder", 0, 2)],
    "marian": [("encoder", 1, 0, "cross", 0, 2), ("decoder", 0, 1, "cross", 0, 1), ("cross", 1, 3, "decoder", 0, 1)],
}


def pairs_of(name):
    return [(tuple(pair[:3]), tuple(pair[3:])) for pair in PAIRS[name]]


def losses(model, batch):
    with torch.no_grad():
        return each_loss(model, batch, scored).double()


@pytest.mark.parametrize("name", PAIRS)
def test_interactions_are_what_they_are_defined_to_be(name):
    model, batch = zoo_model(name)
    pairs, base = pairs_of(name), losses(model, batch)

    def rise(*heads):
        with ht.ablate(model, heads):
            return losses(model, batch) - base

    with untouched(model):
        frame = ht.interaction(model, batch, pairs, scored, progress=False)
        longer = ht.interaction(model, [batch, batch], pairs, scored, progress=False)
    assert list(frame.columns) == ["a", "b", "delta_a", "delta_b", "delta_ab", "interaction", "low", "high", "n"]
    for row, bounded, (a, b) in zip(frame.itertuples(), longer.itertuples(), pairs, strict=True):
        alone_a, alone_b, both = rise(a), rise(b), rise(a, b)
        each = both - alone_a - alone_b
        wanted = [part.mean().item() for part in (alone_a, alone_b, both, each)]
        assert [row.delta_a, row.delta_b, row.delta_ab, row.interaction] == pytest.approx(wanted, abs=2e-5), (a, b)
        assert (row.a, row.b, row.n) == (a, b, 3)
        assert math.isnan(row.low), "three examples have no interval"
        assert math.isnan(row.high)
        low, high = ht.bootstrap(each.repeat(2))
        assert (bounded.low, bounded.high) == pytest.approx((low.item(), high.item()), abs=1e-4)


def test_all_pairs_of_some_sites():
    model, batch = zoo_model("bert")
    frame = ht.interaction(model, [batch], loss=scored, sites=[("encoder", 1)], progress=False)
    heads = [("encoder", 1, head) for head in range(4)]
    assert list(zip(frame.a, frame.b, strict=True)) == list(itertools.combinations(heads, 2))
    assert frame.interaction.abs().min() > 1e-4


def test_heads_that_do_not_meet_do_not_interact():
    """Two heads of a last layer that is linear from there on: the sum is exact."""
    model, batch = zoo_model("gpt2")
    taken = {}
    site = ht.sites(model)["decoder", 2]
    handle = site.out.register_forward_hook(lambda _m, _i, out: taken.__setitem__("out", out))

    def added(_outputs, _batch):
        return taken["out"].flatten(1).sum(1)

    frame = ht.interaction(model, batch, [(("decoder", 2, 0), ("decoder", 2, 3))], added, progress=False)
    handle.remove()
    assert abs(frame.delta_ab[0]) > 0.01
    assert abs(frame.interaction[0]) < 1e-4


def test_a_prediction_stands_beside():
    model, batch = labelled("bert")
    pairs = pairs_of("bert")
    with untouched(model):
        frame = ht.interaction(model, [batch, batch], pairs, predict=True, progress=False)
    second = curvature(model, [batch, batch], pairs)
    assert torch.allclose(torch.tensor(frame.predicted), second.mean(0))
    assert (frame.predicted_low <= frame.predicted).all()
    assert (frame.predicted <= frame.predicted_high).all()
    assert list(frame.columns[-3:]) == ["predicted", "predicted_low", "predicted_high"]


def test_curvature_where_the_loss_does_not_see_a_head():
    model, batch = zoo_model("bert")

    def early(outputs, batch):
        return (outputs.hidden_states[1] ** 2).mean((1, 2))

    unseen, seen = (("encoder", 0, 1), ("encoder", 2, 0)), (("encoder", 0, 1), ("encoder", 0, 3))
    found = curvature(model, batch | {"output_hidden_states": True}, [unseen, seen, unseen[::-1]], early)
    assert found.shape == (3, 3)
    assert not found[:, [0, 2]].any()
    assert found[:, 1].all()
    with pytest.raises(ValueError, match="depends on no head of the pairs"):
        curvature(model, batch | {"output_hidden_states": True}, [(("encoder", 2, 1), ("encoder", 2, 0))], early)


def test_curvature_of_a_straight_line_is_nothing():
    """What a head adds to its own layer is linear in its gate, as long as nothing comes after."""
    model, batch = zoo_model("bert")
    site = ht.sites(model)["encoder", 0]
    kept = []
    handle = site.out.register_forward_hook(lambda module, args, output: kept.append(output))
    try:
        found = curvature(model, batch, [(("encoder", 0, 1), ("encoder", 0, 2))], lambda *_: kept[-1].mean((1, 2)))
    finally:
        handle.remove()
    assert not found.any()
