"""Composition and calibrations: against full matrices, hand-made heads and random ones."""

import pytest
import torch

import headtools as ht
from headtools import geometry

from ..heads.zoo import fresh, zoo_model


@pytest.mark.parametrize("into", ["query", "key", "value"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_composition_against_full_matrices(name, into):
    model, _ = zoo_model(name)
    first, second = ht.sites(model).all[0], ht.sites(model).all[2]
    values, chance = geometry.composition(first, second, into)
    ov, qk = geometry.ov(model), geometry.qk(model)
    assert chance == 32**-0.5
    for i in range(4):
        for j in range(4):
            a = ov[first.key][i].matrix()
            b = (ov if into == "value" else qk)[second.key][j].matrix()
            b = b.T if into == "key" else b
            want = (a @ b).norm() / (a.norm() * b.norm())
            assert values[i, j].item() == pytest.approx(want.item(), rel=1e-4)


def test_a_hand_made_pair_composes_through_keys_alone():
    """Head 1 of layer 0 writes direction 3; the keys of head 2 in layer 1 are read from direction 3, queries from 5."""
    model, _ = fresh("bert")
    first, second = ht.sites(model)["encoder", 0], ht.sites(model)["encoder", 1]
    with torch.no_grad():
        first.out.weight[:, 8:16] = 0
        first.out.weight[3, 8:16] = 1
        for projection, axis in ((second.q, 5), (second.k, 3)):
            rows = projection.rows[2]
            projection.module.weight[rows] = 0
            projection.module.weight[rows, axis] = 1
    through = {into: geometry.composition(first, second, into).values[1, 2].item() for into in ("query", "key")}
    assert through["key"] == pytest.approx(1, abs=1e-4)
    assert through["query"] == pytest.approx(0, abs=1e-6)


def test_random_heads_compose_at_chance():
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 2, "intermediate_size": 8, "vocab_size": 9}
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=128, num_attention_heads=8, **shape))
    sites = ht.sites(model)
    for into in ("query", "key", "value"):
        values, chance = geometry.composition(sites["encoder", 0], sites["encoder", 1], into)
        assert chance == pytest.approx(0.0884, abs=1e-4)
        assert values.mean().item() == pytest.approx(chance, rel=0.03)


@pytest.mark.parametrize(
    ("earlier", "later", "into"),
    [
        (("encoder", 0), ("encoder", 1), "key"),
        (("encoder", 1), ("cross", 0), "key"),
        (("encoder", 0), ("cross", 1), "value"),
        (("decoder", 1), ("cross", 1), "query"),
        (("cross", 0), ("decoder", 1), "key"),
        (("cross", 0), ("cross", 1), "query"),
    ],
)
def test_open_paths(earlier, later, into):
    sites = ht.sites(zoo_model("bart")[0])
    values, _ = geometry.composition(sites[earlier], sites[later], into)
    assert values.shape == (4, 4)
    assert (values > 0).all()


@pytest.mark.parametrize(
    ("earlier", "later", "into", "says"),
    [
        (("encoder", 0), ("encoder", 0), "key", "heads of one layer run side by side"),
        (("encoder", 1), ("encoder", 0), "key", "take a lower layer"),
        (("cross", 0), ("decoder", 0), "key", "side by side"),
        (("encoder", 0), ("decoder", 1), "key", "as the keys and values of cross-attention"),
        (("encoder", 0), ("cross", 1), "query", "as the keys and values of cross-attention"),
        (("decoder", 0), ("cross", 0), "value", 'write into="query"'),
        (("decoder", 0), ("encoder", 1), "key", "cannot feed"),
        (("encoder", 0), ("encoder", 1), "output", "got into='output'; expected"),
    ],
)
def test_closed_paths(earlier, later, into, says):
    sites = ht.sites(zoo_model("bart")[0])
    with pytest.raises(ValueError, match=says):
        geometry.composition(sites[earlier], sites[later], into)


def test_towers_do_not_feed_one_another():
    found = ht.sites(zoo_model("clip")[0])
    text, vision = found["text_model"].all[0], found["vision_model"].all[1]
    with pytest.raises(ValueError, match="cannot feed"):
        geometry.composition(text, vision)


def test_composition_with_rope_is_refused_but_for_values():
    sites = ht.sites(zoo_model("llama")[0])
    with pytest.raises(ValueError, match="RoPE"):
        geometry.composition(sites["decoder", 0], sites["decoder", 1], "key")
    assert geometry.composition(sites["decoder", 0], sites["decoder", 1], "value").values.shape == (6, 6)


def test_random_like_is_seeded_and_keeps_heads():
    circuits = geometry.ov(zoo_model("bart")[0])
    one, again, other = (geometry.random_like(circuits, seed) for seed in (0, 0, 1))
    assert list(one) == list(circuits)
    torch.testing.assert_close(one.stack().left, again.stack().left, rtol=0, atol=0)
    assert not torch.equal(one.stack().left, other.stack().left)
    assert one["encoder", 0].shape == circuits["encoder", 0].shape
