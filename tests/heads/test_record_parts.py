"""Recording, part by part: what is kept of which sites, in which type, and what is said where nothing came."""

import pytest
import torch

import headtools as ht

from .reference import state
from .zoo import fresh, run, zoo_model

NAMES = {"maps", "z", "q", "k", "v"}


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
