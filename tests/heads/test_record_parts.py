"""Recording, part by part: what is kept of which sites, in which type, and what is said where nothing came."""

import pytest
import torch

import headtools as ht
from headtools.heads.gates import gates
from headtools.heads.record import Captured, Record

from .reference import state, untouched
from .zoo import error, fresh, run, zoo_model

NAMES = {"maps", "z", "q", "k", "v"}


def parts(captured):
    return {name for name in vars(captured) if not name.startswith("_")}


@pytest.mark.parametrize(
    "want", [("maps", "z"), ("z",), ("q",), ("z", "v"), ("k", "maps"), ("maps", "z", "q", "k", "v"), ["v", "q"], {"k"}]
)
def test_what_was_asked_for_and_no_more(want):
    model, batch = zoo_model("bert")
    with untouched(model), ht.record(model, want=want) as r:
        run(model, batch)
    assert len(r) == 3
    for key in r:
        assert parts(r[key]) == set(want)
        for name in NAMES - set(want):
            with pytest.raises(AttributeError, match=f"{name} of {' '.join(map(str, key))} was not recorded"):
                getattr(r[key], name)


def test_what_is_recorded_when_nothing_is_said():
    model, batch = zoo_model("bert")
    with ht.record(model) as r:
        run(model, batch)
    assert parts(r["encoder", 0]) == {"maps", "z"}
    assert set(r) == {site.key for site in ht.sites(model)}


@pytest.mark.parametrize("want", ["z", "maps", ("q", "z")])
def test_each_call_takes_the_place_of_the_last(want):
    model, batch = zoo_model("bert")
    name = want[0]
    with ht.record(model, want=want) as r:
        run(model, {key: value[:1] for key, value in batch.items()})
        first = getattr(r["encoder", 1], name if isinstance(want, tuple) else want)
        run(model, batch)
        last = getattr(r["encoder", 1], name if isinstance(want, tuple) else want)
    assert (len(first), len(last)) == (1, 3)
    run(model, {key: value[:2] for key, value in batch.items()})
    assert len(getattr(r["encoder", 1], name if isinstance(want, tuple) else want)) == 3, (
        "after the end nothing is seen"
    )


def test_types_stay_but_for_maps():
    model, batch = fresh("bert")
    model.to(torch.bfloat16)
    with ht.record(model, want=NAMES, grad=True) as r:
        model(**batch)
    assert {name: getattr(r["encoder", 0], name).dtype for name in NAMES} == {
        **dict.fromkeys(NAMES, torch.bfloat16),
        "maps": torch.float32,
    }
    assert all(getattr(r["encoder", 2], name).requires_grad for name in NAMES)
    with ht.record(model, want=NAMES) as r:
        model(**batch)
    assert not any(getattr(r["encoder", 2], name).requires_grad for name in NAMES)


def test_reduce_without_outputs_sees_each_call_once_with_what_it_returned_before():
    model, batch = zoo_model("albert")
    calls = []

    def count(site, captured, before):
        calls.append((site.key, parts(captured), before))
        return len(calls)

    with ht.record(model, want=("q", "maps"), accumulate=count) as r:
        run(model, batch)
    assert calls == [(("encoder", 0), {"q", "maps"}, before) for before in (None, 1, 2)]
    assert r["encoder", 0] == 3


def test_some_sites_only():
    model, batch = zoo_model("marian")
    site = ht.sites(model)["cross", 1]
    before = state(model)["hooks"]
    with ht.record(model, want="z", only=[("cross", 1)]) as r:
        changed = {name for name, hooks in state(model)["hooks"].items() if hooks != before[name]}
        run(model, batch)
    assert changed == {"", site.name + ".out_proj"}
    assert list(r) == [("cross", 1)]
    assert r[site] is r["cross", 1] is r[["cross", 1]]
    with pytest.raises(KeyError, match="cross 0 has not run inside this record"):
        r["cross", 0]
    with ht.record(model, only=[]) as r:
        run(model, batch)
    assert len(r) == 0


def test_what_older_models_cannot_show_names_what_was_asked():
    model, _ = zoo_model("bloom")
    with pytest.raises(ValueError, match=r"BloomAttention \(decoder 0\) does not use .* so its maps, q cannot"):
        ht.record(model, want=("maps", "z", "q")).__enter__()


def test_records_by_hand():
    sites = ht.sites(zoo_model("bert")[0])
    assert repr(Record(sites, {})) == "<Record of 0 sites>"
    assert repr(Captured("encoder 3", z=torch.zeros(1, 2), note="mine")) == "<encoder 3: z (1, 2)>"
    with pytest.raises(KeyError, match=r"'encoder' names a kind, not a site: write .*\('encoder', 0\)"):
        Record(sites, {})["encoder"]


@pytest.mark.parametrize("name", ["bert", "gpt2", "fsmt"])
def test_contributions_in_the_type_of_the_outputs(name):
    model, batch = zoo_model(name)
    site = ht.sites(model).all[0]
    with ht.record(model, want="z") as r:
        run(model, batch)
    plain = ht.contributions(site, r[site].z)
    assert ht.contributions(site, r[site].z.double()).dtype == torch.float64
    assert error(ht.contributions(site, r[site].z[0]), plain[0]) <= 1e-6
    with pytest.raises(ValueError, match=rf"got \(3, 7, {site.heads * site.value_dim}\): use record"):
        ht.contributions(site, r[site].z.flatten(-2))


def test_gates_that_vary_and_gates_of_another_type():
    model, batch = zoo_model("bert")
    site = ht.sites(model).all[1]
    gate = torch.linspace(0.5, 2, 4)
    with ht.gates(model, {site.key: gate}):
        plain = run(model, batch)
    rows, cells = gate.expand(3, 4), gate.expand(3, 7, 4)
    for same in (gate.double(), rows, cells, cells.double()):
        with ht.gates(model, {site.key: same}):
            found = run(model, batch)
        assert found.dtype == torch.float32
        assert torch.equal(found, plain)
    with (
        untouched(model),
        gates(model, {site: rows[:2]}),
        pytest.raises(ValueError, match="in a forward pass of 3"),
    ):
        run(model, batch)
    with pytest.raises(ValueError, match="the batch is empty"), gates(model, {site: gate}):
        run(model, {key: value[:0] for key, value in batch.items()})
