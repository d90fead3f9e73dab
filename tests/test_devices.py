"""A model that is not on the CPU gives the same numbers: nothing is made, indexed or read in the wrong place.

No card is needed: see other_device.py. What only a card's own kernels can show is not tested here.
"""

import copy

import pytest
import torch
from heads.zoo import zoo_model
from other_device import CARD, second_device

import headtools as ht
from headtools.heads import _devices as precision
from headtools.importance.statistics import largest, offset

MODELS = ("bert", "gpt2", "llama", "marian", "t5")
ALL_DTYPES = pytest.param((), marks=pytest.mark.full, id="all dtypes")
BOTH = pytest.mark.parametrize("without", [ALL_DTYPES, pytest.param((torch.float64,), id="no float64")])


def recorded(model, batches):
    with torch.no_grad(), ht.record(model, want=("maps", "q", "k", "v", "z")) as seen:
        model(**batches[0])
    one = seen[ht.sites(model).all[0].key]
    return [one.maps, one.q, one.k, one.v, one.z]


def inside(context):
    def logits(model, batches):
        key = ht.sites(model).all[0].key
        with context(model, key, batches), torch.no_grad():
            return [model(**batches[0]).logits]

    return logits


def patched(model, key, batches):
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(**{name: value.flip(0) for name, value in batches[0].items()})
    return ht.patch(model, [(*key, 0)], seen, positions=[0, 2])


def edited(model, key, _batches):
    width = ht.sites(model)[key].out.weight.shape[0]
    return ht.edit(model, (*key, 1), remove=torch.linspace(-1, 1, width))


def drawn(model, key, batches):
    gates = ht.HardConcrete(ht.sites(model)).to(model.device)
    return ht.gates(model, gates.sample(len(batches[0]["input_ids"]), generator=torch.Generator().manual_seed(0)))


def changed(change):
    def logits(model, batches):
        model = copy.deepcopy(model)
        change(model, ht.sites(model).all[0].key, batches)
        with torch.no_grad():
            return [model(**batches[0]).logits]

    return logits


def trained(model, batches):
    return [ht.fit_gates(model, batches, 0.05, steps=2, weights=None, progress=False).gates.log_alpha.detach()]


def pairs(model, batches):
    heads = [(*site.key, 0) for site in ht.sites(model).all]
    found = ht.interaction(model, batches, [(heads[0], heads[-1])], predict=True, progress=False)
    return [torch.tensor(found.select_dtypes("number").to_numpy(float))]


def flat(measure, **options):
    return lambda model, batches: [measure(model, batches, **options).flat()]


def statistics(model, batches):
    """Of rows that any attention has, and of keys in a text where it attends to itself."""
    own = [site.key for site in ht.sites(model) if site.kind != "cross"]
    found = ht.statistics(model, batches, {"largest": largest})
    found |= ht.statistics(model, batches, {"previous": offset(-1)}, own)
    return [scores.flat() for scores in found.values()]


def ends_ablated(model, batches):
    ends = [ht.sites(model).all[place].key for place in (0, -1)]
    return [ht.ablation(model, batches, sites=ends, replacement="mean", progress=False).flat()]


ACTIONS = {
    "record": recorded,
    "gates": inside(lambda model, key, _: ht.gates(model, {key: torch.linspace(0, 1, ht.sites(model)[key].heads)})),
    "drawn gates": inside(drawn),
    "zero": inside(lambda model, key, _: ht.ablate(model, {key: [0]})),
    "mean": inside(lambda model, key, batches: ht.ablate(model, {key: [0]}, replacement="mean", reference=batches)),
    "resample": inside(lambda model, key, given: ht.ablate(model, {key: [0]}, replacement="resample", reference=given)),
    "uniform": inside(lambda model, key, _: ht.ablate(model, {key: [0]}, replacement="uniform")),
    "patch": inside(patched),
    "edit": inside(edited),
    "gradient": flat(ht.gradient),
    "confidence": flat(ht.confidence, exclude=[3]),
    "statistics": statistics,
    "ablation": ends_ablated,
    "relevance": flat(ht.relevance),
    "interaction": pairs,
    "prune": changed(lambda model, key, _: ht.prune(model, {key: [1]})),
    "merge": changed(lambda model, key, batches: ht.merge(model, [[(*key, 0), (*key, 1)]], batches, refit=True)),
    "fit_gates": trained,
}
# What sums are kept in is the same question for each architecture; these have all kinds of attention.
WITHOUT_FLOAT64 = ("bert", "marian")
# What only some architectures can do, or what goes the same way in each.
ONLY = {
    "relevance": ("bert", "llama"),
    "interaction": ("bert",),
    "merge": ("bert", "marian"),
    "edit": ("bert", "gpt2", "marian"),
}


@pytest.mark.full
@pytest.mark.parametrize("action", ACTIONS)
@BOTH
def test_the_same_numbers_on_another_device(action, without, monkeypatch):
    if without:
        monkeypatch.setattr(precision, "_WITHOUT_FLOAT64", {CARD.type})
    for name in ONLY.get(action, MODELS):
        if name in WITHOUT_FLOAT64 or not without:
            same_numbers(name, action, without)


def same_numbers(name, action, without):
    model, batch = zoo_model(name)
    batches = [batch | {"labels": batch.get("decoder_input_ids", batch["input_ids"])}]
    wanted = ACTIONS[action](model, batches)
    with second_device(*without) as device:
        there = copy.deepcopy(model).to(device)
        there.tie_weights()
        moved = [{key: value.to(device) for key, value in one.items()} for one in batches]
        found = [x.cpu() for x in ACTIONS[action](there, moved)]
    for a, b in zip(wanted, found, strict=True):
        assert torch.allclose(a, b, atol=1e-5, equal_nan=True)


def test_the_second_device_refuses_what_a_card_refuses():
    here = torch.ones(3)
    with second_device() as device:
        there = here.to(device)
        assert (there.device, (there + 1).device) == (device, device)
        assert torch.equal((there * torch.tensor(2.0)).cpu(), here * 2), "a number may come from the CPU"
        assert torch.equal(there[torch.tensor([0, 1])].cpu(), here[:2]), "an index as well"
        with pytest.raises(RuntimeError, match="two devices"):
            there + here
        with pytest.raises(RuntimeError, match="two devices"):
            there.index_select(0, torch.tensor([0]))
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
    with second_device(torch.float64) as device, pytest.raises(TypeError, match=r"no torch\.float64"):
        here.to(device).double()
