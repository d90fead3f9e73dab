"""Three heads on a sentence, layers computed anew and circuits: right on a tiny model, and what ships says so."""

import pytest
import torch
from torch import nn

import headtools as ht
from headtools import geometry
from recipes import _real_weights as weights

from ..roles.tiny_llama import byte_tokenizer, tiny_llama

SIZES = {"induction sequences": 5, "segment": 6, "circuit words": 40}


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_the_maps_of_three_heads(model):
    rows, about = weights.three_heads(model, byte_tokenizer(), SIZES)
    assert weights.SENTENCE in about
    ids = byte_tokenizer()(weights.SENTENCE, return_tensors="pt").input_ids
    with ht.record(model, want="maps") as r, torch.no_grad():
        model(input_ids=ids)
    for row in rows:
        kept = torch.tensor(row["weights"])
        assert kept.shape == (len(row["tokens"]),) * 2
        torch.testing.assert_close(kept, r["decoder", row["layer"]].maps[0, row["head"]], atol=6e-4, rtol=0)
    induction, resting = rows[1:]
    assert induction["layer"] == resting["layer"]
    assert induction["head"] != resting["head"]
    assert induction["head"] // 3 == resting["head"] // 3  # six query heads, two heads of keys


def test_a_layer_computed_anew(model, monkeypatch):
    rows, _ = weights.own_layers(model, byte_tokenizer(), SIZES)
    assert [row["layer"] for row in rows] == [0, 1]
    assert all(row["error"] < 1e-5 for row in rows)

    class Unshared(weights.GroupedAttention):
        """Keys are repeated as a whole, not each in turn."""

        def forward(self, tokens, cos, sin):
            self.k_proj = nn.Sequential(self.k_proj, nn.Unflatten(-1, (2, -1)), Turned(), nn.Flatten(-2))
            return super().forward(tokens, cos, sin)

    class Turned(nn.Module):
        def forward(self, x):
            return x.flip(-2)

    monkeypatch.setattr(weights, "GroupedAttention", Unshared)
    rows, _ = weights.own_layers(model, byte_tokenizer(), SIZES)
    assert all(row["error"] > 1e-2 for row in rows)


def test_a_head_that_copies_is_found(model):
    """A head whose W_OV undoes the embedding raises each word most; with the sign turned, least."""
    copying = tiny_llama()
    site = ht.sites(copying)["decoder", 0]
    words = copying.get_input_embeddings().weight.detach()
    read = words / (words.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    directions = torch.linalg.svd(read - read.mean(0), full_matrices=False).Vh[:8]
    with torch.no_grad():
        site.module.v_proj.weight[:8] = directions
        site.module.o_proj.weight[:, :8] = directions.T
        site.module.o_proj.weight[:, 8:16] = -directions.T
    rows, about = weights.circuits(copying, byte_tokenizer(), SIZES)
    assert "40 words" in about
    by_name = {(row["name"], row["layer"], row["head"]): row for row in rows}
    copies, turned = by_name["head", 0, 0], by_name["head", 0, 1]
    assert copies["own_word"] > 0.85
    assert turned["own_word"] < 0.15
    assert copies["eigenvalues"] > 0.99
    assert turned["eigenvalues"] < -0.99
    assert copies["own_low"] <= copies["own_word"] <= copies["own_high"]
    assert by_name["head", 0, 0]["effective_rank"] == pytest.approx(8, abs=1e-3)  # eight equal singular values
    plain = geometry.effective_rank(geometry.ov(copying))
    assert by_name["head", 1, 4]["effective_rank"] == pytest.approx(plain["decoder", 1, 4], rel=1e-4)


def test_what_ships():
    layers = ht.shipped_real("smollm2", "own_layers")
    assert len(layers) == 30
    assert layers.error.max() < 1e-5
    three = ht.shipped_real("smollm2", "three_heads").set_index("name")
    heads = ht.shipped_real("smollm2").set_index(["layer", "head"])
    for name, column in (("previous token", "previous_token"), ("induction", "induction")):
        row = three.loc[name]
        assert (row.layer, row["head"]) == heads[column].idxmax()
        maps = torch.tensor(row.weights)
        assert (maps.triu(1) == 0).all()
        torch.testing.assert_close(maps.sum(-1), torch.ones(len(row.tokens)), atol=0.01, rtol=0)
    circuits = ht.shipped_real("smollm2", "circuits")
    assert circuits["name"].value_counts().to_dict() == {"head": 270, "random": 30, "crossed": 30}
    assert ((circuits.own_low <= circuits.own_word) & (circuits.own_word <= circuits.own_high)).all()
    assert circuits[circuits["name"] == "random"].own_word.between(0.4, 0.6).all()
