"""One convention for sites, batches and losses: what every function takes, and what it refuses."""

import numpy
import pytest
import torch

import headtools as ht
from headtools.sparse.merge import head_similarity

from .heads.reference import untouched
from .heads.zoo import fresh, run, zoo_model

WRONG_LAYERS = [True, 1.0, numpy.float64(1), torch.tensor(True), numpy.bool_(True), None]


@pytest.mark.parametrize("layer", WRONG_LAYERS)
def test_a_layer_is_a_whole_number(layer):
    """True and 1.0 equal 1: as keys of a dictionary they cut layer 1."""
    model, batch = zoo_model("bert")
    key = ("encoder", layer)
    uses = [
        lambda: ht.sites(model)[key],
        lambda: ht.prune(model, {key: [0]}),
        lambda: ht.prune(model, [(*key, 0)]),
        lambda: ht.ablate(model, {key: [0]}).__enter__(),
        lambda: ht.gates(model, {key: torch.ones(4)}).__enter__(),
        lambda: ht.record(model, only=[key]).__enter__(),
        lambda: ht.gradient(model, labelled(batch), sites=[key]),
        lambda: ht.fit_gates(model, labelled(batch), 1.0, sites=[key], steps=1, weights=None, progress=False),
    ]
    with untouched(model):
        for use in uses:
            with pytest.raises(TypeError, match=r"a layer is an integer, got .*write \('encoder', 1\)"):
                use()


def test_a_head_is_no_truth():
    model, _ = zoo_model("bert")
    with untouched(model), pytest.raises(TypeError, match="integer"):
        ht.prune(model, {("encoder", 0): [torch.tensor(True)]})


def test_layers_may_be_whole_numbers_of_other_libraries():
    sites = ht.sites(zoo_model("bert")[0])
    for one in (numpy.int64(1), torch.tensor(1), numpy.uint8(1)):
        assert sites["encoder", one] is sites["encoder", 1]


def labelled(batch):
    return batch | {"labels": batch["input_ids"]}


WAYS = [
    ("encoder", [0, 1, 2]),
    (("encoder", 0), [0]),
    (("encoder", numpy.int64(2)), [2]),
    ([("encoder", 2), ("encoder", 0)], [2, 0]),
    ((("encoder", 2), ("encoder", 0)), [2, 0]),
    (("encoder",), [0, 1, 2]),
    (["encoder", ("encoder", 1)], [0, 1, 2]),
    (None, [0, 1, 2]),
]


@pytest.mark.parametrize(("selection", "layers"), WAYS)
def test_sites_are_named_alike_everywhere(selection, layers):
    model, batch = zoo_model("bert")
    batch, keys = labelled(batch), [("encoder", layer) for layer in layers]
    with untouched(model):
        assert [site.key for site in ht.sites(model).pick(selection)] == keys
        with ht.record(model, want="z", only=selection) as seen:
            run(model, batch)
        assert list(seen) == sorted(keys)
        assert list(ht.gradient(model, batch, sites=selection).values) == keys
        fit = ht.fit_gates(model, batch, 1.0, sites=selection, steps=1, weights=None, progress=False)
        assert list(fit.gates.sizes) == keys


@pytest.mark.parametrize("selection", [("encoder", 0), "encoder"])
def test_every_measure_takes_one_key_and_one_batch(selection):
    model, batch = zoo_model("bert")
    batch, layers = labelled(batch), [0] if selection != "encoder" else [0, 1, 2]
    keys = [("encoder", layer) for layer in layers]
    for scores in (
        ht.ablation(model, batch, sites=selection, progress=False),
        ht.relevance(model, batch, sites=selection, rules="cp"),
        ht.confidence(model, batch, sites=selection, exclude=[]),
    ):
        assert list(scores.values) == keys
    assert {head[:-1] for head in head_similarity(model, batch, selection)["first"]} == set(keys)
    if selection != "encoder":
        frame = ht.interaction(model, batch, sites=selection, progress=False)
        assert {head[:-1] for head in [*frame.a, *frame.b]} == set(keys)


def test_sites_may_be_sites_of_the_model_it_was_copied_from():
    model, batch = fresh("bert")
    found = ht.sites(zoo_model("bert")[0])
    for which in (found["encoder", 1], [found["encoder", 1]], found["encoder"]):
        picked = ht.sites(model).pick(which)
        assert all(any(site.module is module for module in model.modules()) for site in picked)
    with ht.ablate(model, {found["encoder", 1]: [0]}):
        inside = run(model, batch)
    with ht.ablate(model, {("encoder", 1): [0]}):
        assert torch.equal(run(model, batch), inside)


@pytest.mark.parametrize("selection", [3, {("encoder", 0): [1]}, torch.ones(2), [3]])
def test_other_names_of_sites(selection):
    model, batch = zoo_model("bert")
    with pytest.raises((TypeError, KeyError), match="encoder"):
        ht.gradient(model, labelled(batch), sites=selection)


def test_gates_that_come_twice_for_one_site():
    """The second replaced the first in silence."""
    model, _ = zoo_model("clip")
    twice = {("text_model", "decoder", 0): torch.ones(4), ("decoder", 0): torch.zeros(4)}
    with untouched(model), pytest.raises(ValueError, match=r"got gates for .* twice"), ht.gates(model, twice):
        pass


def test_a_fit_of_gates_takes_one_batch():
    model, batch = zoo_model("bert")
    one, several = (
        ht.fit_gates(model, batches, 1.0, steps=3, weights=None, progress=False)
        for batches in (labelled(batch), [labelled(batch)])
    )
    assert torch.equal(one.gates.log_alpha, several.gates.log_alpha)
