"""Interactions of two heads: by definition, by finite differences, and one head a layer."""

import itertools
import math

import pytest
import torch

import headtools as ht
from headtools.importance._replay import losses
from headtools.importance.interaction import curvature

from ..heads.reference import untouched
from ..heads.zoo import fresh, zoo_model
from .test_ablation import scored
from .test_gradient import labelled

PAIRS = {
    "bert": [
        ("encoder", 0, 1, "encoder", 2, 3),
        ("encoder", 1, 0, "encoder", 1, 2),
        ("encoder", 2, 0, "encoder", 0, 1),
    ],
    "albert": [("encoder", 0, 1, "encoder", 0, 2)],
    "gpt2": [("decoder", 0, 0, "decoder", 1, 1), ("decoder", 2, 3, "decoder", 2, 0)],
    "llama": [("decoder", 0, 0, "decoder", 1, 5), ("decoder", 2, 3, "decoder", 0, 0)],
    "marian": [("encoder", 1, 0, "cross", 0, 2), ("decoder", 0, 1, "cross", 0, 1), ("cross", 1, 3, "decoder", 0, 1)],
    "t5": [("encoder", 2, 0, "cross", 1, 2), ("decoder", 1, 1, "cross", 1, 1), ("encoder", 0, 0, "decoder", 1, 1)],
}


def pairs_of(name):
    return [(tuple(pair[:3]), tuple(pair[3:])) for pair in PAIRS[name]]


def rise(model, batch, heads, by="zero", reference=None):
    base = losses(model, batch, scored)
    with ht.ablate(model, heads, replacement=by, reference=reference):
        return losses(model, batch, scored) - base


@pytest.mark.parametrize("by", ["zero", "mean", "resample", "uniform"])
@pytest.mark.parametrize("name", PAIRS)
def test_interactions_are_what_they_are_defined_to_be(name, by):
    model, batch = zoo_model(name)
    pairs = pairs_of(name)
    with untouched(model):
        frame = ht.interaction(model, batch, pairs, scored, replacement=by, progress=False)
    assert list(frame.columns) == ["a", "b", "delta_a", "delta_b", "delta_ab", "interaction", "low", "high", "n"]
    for row, (a, b) in zip(frame.itertuples(), pairs, strict=True):
        alone_a, alone_b, both = (rise(model, batch, heads, by, batch) for heads in ([a], [b], [a, b]))
        each = both - alone_a - alone_b
        wanted = [part.mean().item() for part in (alone_a, alone_b, both, each)]
        found = [row.delta_a, row.delta_b, row.delta_ab, row.interaction]
        assert found == pytest.approx(wanted, abs=2e-5), (a, b)
        assert (row.a, row.b, row.n) == (a, b, 3)
        assert math.isnan(row.low)
        assert math.isnan(row.high)


def test_all_pairs_of_some_sites():
    model, batch = zoo_model("bert")
    frame = ht.interaction(model, [batch], loss=scored, sites=[("encoder", 1)], progress=False)
    heads = [("encoder", 1, head) for head in range(4)]
    assert list(zip(frame.a, frame.b, strict=True)) == list(itertools.combinations(heads, 2))
    assert frame.interaction.abs().min() > 1e-4


@pytest.mark.parametrize("sizes", [(3, 3), (3, 1)])
def test_five_examples_have_an_interval_and_fewer_have_none(sizes):
    model, batch = zoo_model("bert")
    (a, b), *_ = pairs_of("bert")
    parts = [{key: value[:size] for key, value in batch.items()} for size in sizes]
    row = ht.interaction(model, parts, [(a, b)], scored, progress=False).iloc[0]
    if sum(sizes) < 5:
        assert math.isnan(row.low)
        assert math.isnan(row.high)
        return
    each = torch.cat([rise(model, part, [a, b]) - rise(model, part, [a]) - rise(model, part, [b]) for part in parts])
    low, high = ht.bootstrap(each)
    assert (row.low, row.high) == pytest.approx((low.item(), high.item()), abs=1e-4)


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


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5"])
def test_curvature_equals_differences_of_slopes(name):
    model, batch = fresh(name)
    model.double()
    pairs = pairs_of(name)
    with untouched(model):
        found = curvature(model, batch, pairs, scored)
    step = 1e-3  # norms and rotations of some models are single precision whatever the weights are
    for column, (a, b) in enumerate(pairs):
        slopes = []
        for sign in (1, -1):
            gate = torch.ones(ht.sites(model)[b[:-1]].heads, dtype=torch.double)
            gate[b[-1]] += sign * step
            with ht.gates(model, {b[:-1]: gate}):
                slopes.append(ht.gate_gradients(model, batch, scored, sites=[a[:-1]])[a[:-1]][:, a[-1]])
        wanted = (slopes[0] - slopes[1]) / (2 * step)
        assert wanted.abs().max() > 1e-3
        assert torch.allclose(found[:, column], wanted, rtol=2e-3, atol=1e-3 * wanted.abs().max()), (a, b)


def test_curvature_is_the_interaction_of_small_steps():
    model, batch = fresh("marian")
    model.double()
    (a, b) = pairs_of("marian")[0]
    second = curvature(model, batch, [(a, b)], scored)[:, 0]
    step = 1e-3

    def at(close_a, close_b):
        values = {}
        for head, amount in ((a, close_a), (b, close_b)):
            values.setdefault(head[:-1], torch.ones(4, dtype=torch.double))[head[-1]] -= amount
        with ht.gates(model, values):
            return losses(model, batch, scored)

    apart = (at(step, step) - at(step, -step) - at(-step, step) + at(-step, -step)) / (4 * step**2)
    assert torch.allclose(second, apart, rtol=1e-3, atol=1e-6)


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


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pairs": []}, ValueError, "got no pairs"),
        ({"pairs": [(("encoder", 0, 1), ("encoder", 0, 1))]}, ValueError, "twice: name another"),
        ({"pairs": [(("encoder", 0, 1),)]}, TypeError, "a pair is two heads"),
        ({"pairs": [(("encoder", 0, 1), ("encoder", 9, 1))]}, KeyError, "no site"),
        ({"pairs": [(("encoder", 0, 1), ("encoder", 1, 9))]}, IndexError, "heads 0..3"),
        ({"pairs": [*pairs_of("bert"), pairs_of("bert")[0][::-1]]}, ValueError, "given twice"),
        ({"predict": True, "replacement": "mean"}, ValueError, "predict=True differentiates by gates"),
        ({"batches": []}, ValueError, "got no batches"),
        ({"predict": True, "loss": lambda o, b: scored(o, b).detach()}, ValueError, "depends on no head of the pairs"),
    ],
)
def test_bad_pairs_are_refused(change, error, message):
    model, batch = zoo_model("bert")
    given = {"batches": batch, "pairs": pairs_of("bert"), "loss": scored, "progress": False}
    with untouched(model), pytest.raises(error, match=message):
        ht.interaction(model, **(given | change))


@pytest.mark.parametrize("by", ["zero", "mean", "uniform"])
@pytest.mark.parametrize("name", ["bert", "albert", "llama", "marian"])
def test_one_head_a_layer(name, by):
    model, batch = zoo_model(name)
    with untouched(model):
        found = ht.all_but_one(model, [batch, batch], scored, replacement=by, progress=False)
    for site in ht.sites(model):
        for head in range(site.heads):
            others = {site.key: [other for other in range(site.heads) if other != head]}
            wanted = rise(model, batch, others, by, batch).mean().item()
            assert found[(*site.key, head)] == pytest.approx(wanted, abs=2e-5), (site.label, head)
    assert found.low is not None


def test_one_head_a_layer_by_another_measure():
    model, batch = zoo_model("bert")
    chosen = model(**batch).logits.argmax(-1)

    def share(model):
        return (model(**batch).logits.argmax(-1) == chosen).double().mean(1).repeat(2)

    with untouched(model):
        found = ht.all_but_one(model, evaluate=share, sites=[("encoder", 1)], progress=False)
    for head in range(4):
        with torch.no_grad(), ht.ablate(model, {("encoder", 1): [other for other in range(4) if other != head]}):
            each = share(model)
        assert found["encoder", 1, head] == pytest.approx((each - 1).mean().item())
        assert found.low["encoder", 1][head] == ht.bootstrap(each - 1)[0]
    number = ht.all_but_one(model, evaluate=lambda m: share(m).mean().item(), sites=[("encoder", 1)], progress=False)
    bounded = lambda m: (share(m).mean().item(), 0, 1)  # noqa: E731
    triple = ht.all_but_one(model, evaluate=bounded, sites=[("encoder", 1)], progress=False)
    for other in (number, triple):
        assert torch.allclose(other.values["encoder", 1], found.values["encoder", 1])
        assert other.low is None


def test_a_layer_of_one_head_loses_nothing():
    model, batch = fresh("bert")
    ht.prune(model, {("encoder", 1): [0, 1, 3]})
    found = ht.all_but_one(model, batch, scored, progress=False)
    assert found.values["encoder", 1].tolist() == [0.0]
    assert found.values["encoder", 0].abs().min() > 0
    with pytest.raises(ValueError, match="every layer has one head only"):
        ht.all_but_one(model, batch, scored, sites=[("encoder", 1)], progress=False)


def test_bad_calls_of_all_but_one():
    model, batch = zoo_model("bert")
    with pytest.raises(ValueError, match="pass either batches"):
        ht.all_but_one(model)
    with pytest.raises(ValueError, match="pass either batches"):
        ht.all_but_one(model, batch, evaluate=lambda m: 1.0)
    with pytest.raises(ValueError, match="all finite"):
        ht.all_but_one(model, evaluate=lambda m: float("nan"), progress=False)
    with pytest.raises(ValueError, match="needs data"):
        ht.all_but_one(model, evaluate=lambda m: 1.0, replacement="mean", progress=False)
    with pytest.raises(ValueError, match="leave checkpoint out"):
        ht.all_but_one(model, evaluate=lambda m: 1.0, checkpoint="folder", progress=False)


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


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_what_keeping_one_head_is_called(by):
    model, batch = zoo_model("bert")
    more = {"sites": [("encoder", 1)], "progress": False, "replacement": by}
    found = ht.all_but_one(model, batch | {"labels": batch["input_ids"]}, **more)
    measured = ht.all_but_one(model, evaluate=lambda model: torch.ones(3), reference=batch, **more)
    assert found.name == measured.name == ("keep one" if by == "zero" else "keep one, others by mean")
    assert not measured.flat().any()
