"""What is recorded without computing logits is what is recorded with them, bit for bit."""

import pytest
import torch

import headtools as ht
from headtools.heads.record import backbone

from .zoo import TEXT_ONLY, zoo_model


@pytest.mark.parametrize("name", TEXT_ONLY)
def test_maps_are_the_same_without_logits(name):
    model, batch = zoo_model(name)
    smaller = backbone(model, batch)
    want = "z" if name in ("bloom", "gptj", "deberta_v2", "fsmt") else "maps"
    found = []
    for runs in (model, smaller):
        with torch.no_grad(), ht.record(model, want=want) as captured:
            runs(**batch)
        found.append([getattr(captured[site.key], want) for site in ht.sites(model) if not site.empty])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_model_of_one_s_own_runs_whole():
    model, batch = zoo_model("llama")
    assert backbone(model, batch) is model.model

    class Mine(type(model)):
        pass

    mine = Mine(model.config)
    assert backbone(mine, batch) is mine
    assert backbone(model, ["input_ids", "labels"]) is model
