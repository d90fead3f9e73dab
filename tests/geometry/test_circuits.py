"""W_OV and W_QK of real architectures: against what the models compute, and refused where they would lie."""

import copy
import warnings

import pytest
import torch
from torch import nn

import headtools as ht
from headtools import geometry
from headtools.geometry._obstacles import output_value_obstacles, query_key_obstacles
from headtools.heads.sites import sites

from ..heads.zoo import ALL, INTERFACE, fresh, zoo_model

# what one reads in the papers and the code of these models
ROTATED = {"modernbert", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3"}
ROTATED |= {"gptj"}
ADDED = {"t5", "bloom", "deberta_v2"}
LATENT = {"deepseek_v3"}


def quiet_qk(where, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return geometry.qk(where, **more)


def inputs(model, site, batch):
    """What a site's query and value projections are given, in one run that also records maps, q, k and z."""
    seen = {}
    hooks = [
        projection.module.register_forward_pre_hook(lambda m, args, name=name: seen.update({name: args[0].detach()}))
        for name, projection in (("x", site.q), ("y", site.v))
    ]
    try:
        with torch.no_grad(), ht.record(model, want=("maps", "z", "q", "k"), only=[site.key]) as r:
            model(**batch)
    finally:
        for hook in hooks:
            hook.remove()
    return seen["x"], seen["y"], r[site.key]


def one(rows):
    """Rows with a 1 at the end, for the biases."""
    return torch.cat([rows, torch.ones_like(rows[..., :1])], -1)


def worst_score(model, site, batch, circuits):
    """How far log attention is from the bilinear form, differences between keys that a query sees, scale fitted."""
    x, y, seen = inputs(model, site, batch)
    scores = circuits[site.key].between(one(x)[:, None], one(y)[:, None])
    maps, worst = seen.maps, 0.0
    allowed = maps > 1e-6
    log = maps.clamp_min(1e-30).log()
    weight = allowed.float()
    count = weight.sum(-1, keepdim=True).clamp(min=1)

    def centred(t):
        return (t - (t * weight).sum(-1, keepdim=True) / count) * weight

    a, b = centred(scores), centred(log)
    scale = (a * b).sum() / (a * a).sum().clamp_min(1e-30)
    worst = (scale * a - b).abs().max() / b.abs().max()
    return worst.item()


# --- against the models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(INTERFACE) - LATENT))
def test_refusal_is_right_in_both_directions(name):
    """Where qk gives a matrix without a word, it gives the model's scores; where it objects, it would not have."""
    model, batch = zoo_model(name)
    for site in sites(model):
        circuits = quiet_qk(site, bias=True, anyway=True)
        error = worst_score(model, site, batch, circuits)
        objected = any(query_key_obstacles(site))
        assert (error > 1e-3) == objected, (site.label, error)


@pytest.mark.parametrize("name", sorted(set(INTERFACE) - LATENT))
def test_ov_is_what_heads_move(name):
    """A Y W_OV, biases included, is each head's part of the layer's output: also under RoPE, GQA, Conv1D, in cross."""
    model, batch = zoo_model(name)
    for site in sites(model):
        _, y, seen = inputs(model, site, batch)
        moved = one(y)[:, None] @ geometry.ov(site, bias=True)[site.key].matrix()  # (B, H, S, d)
        got, want = (seen.maps @ moved).transpose(1, 2), ht.contributions(site, seen.z)
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4 * want.abs().max().item())


@pytest.mark.parametrize("name", ALL)
def test_who_is_refused(name):
    model, _ = zoo_model(name)
    if name in ROTATED:
        with pytest.raises(ValueError, match=r"RoPE.*want=\(\"q\", \"k\"\).*anyway=True"):
            geometry.qk(model)
        with pytest.warns(UserWarning, match="not the whole score"):
            geometry.qk(model, anyway=True)
    elif name in LATENT:
        with pytest.raises(ValueError, match="latent"):
            geometry.qk(model, anyway=True)
        with pytest.raises(ValueError, match=r"W_OV is not what its heads move.*contributions"):
            geometry.ov(model)
    elif name in ADDED:
        with pytest.warns(UserWarning, match="relative positions"):
            geometry.qk(model)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            geometry.qk(model)
    if name not in LATENT:
        circuits = geometry.ov(model)
        assert len(circuits) == sites(model).n_heads


def test_each_reason_is_named():
    def reasons(name):
        return " ".join(reason for s in sites(zoo_model(name)[0]) for some in query_key_obstacles(s) for reason in some)

    assert "normalised" in reasons("qwen3")
    assert "normalised" not in reasons("llama")
    assert "soft cap" in reasons("gemma2")
    assert "soft cap" not in reasons("gemma3")
    # T5's cross-attention has no relative bias
    t5 = zoo_model("t5")[0]
    assert not any(query_key_obstacles(sites(t5)["cross", 0]))


def test_a_layer_that_says_it_does_not_rotate():
    model, _ = fresh("llama")
    site = sites(model)["decoder", 0]
    site.module.use_rope = False
    assert query_key_obstacles(site) == ([], [])
    site.module.q_norm = nn.Identity()
    assert query_key_obstacles(site) == ([], [])
    site.module.q_norm = nn.LayerNorm(8)
    assert "normalised" in query_key_obstacles(site)[0][0]
    site.module.k_sconv = nn.Conv1d(8, 8, 3)
    assert "convolution" in query_key_obstacles(site)[0][1]


def test_what_spoils_ov():
    model, _ = fresh("llama")
    site = sites(model)["decoder", 0]
    assert output_value_obstacles(site) == []
    site.module.attn_sub_norm = nn.LayerNorm(48)
    assert "outputs are normalised" in output_value_obstacles(site)[0]
    site.module.v_norm = nn.LayerNorm(8)
    with pytest.raises(ValueError, match=r"values are normalised.*; the heads' outputs are normalised"):
        geometry.ov(model)


def test_a_gate_beside_the_query_is_told_from_a_fused_projection():
    from transformers import Phi3Config, Phi3ForCausalLM

    shape = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 8}
    fused = Phi3ForCausalLM(Phi3Config(**shape, num_key_value_heads=2, vocab_size=9, pad_token_id=0))
    site = sites(fused)["decoder", 0]
    assert site.q.module.weight.shape[0] == 2 * 16  # queries, keys and values: as wide as queries with gates
    assert output_value_obstacles(site) == []
    site.module.gate_proj = nn.Linear(16, 16)
    assert "gates" in output_value_obstacles(site)[0]


# --- the containers ---------------------------------------------------------------------------------------------------


def test_lookup_order_and_stack():
    model, _ = zoo_model("bart")
    circuits = geometry.ov(model)
    assert list(circuits)[:2] == [("encoder", 0, 0), ("encoder", 0, 1)]
    stacked = circuits.stack()
    assert len(stacked) == len(circuits) == ht.sites(model).n_heads
    for i, head in enumerate(circuits):
        torch.testing.assert_close(circuits[head].matrix(), stacked[i].matrix())
    scores = geometry.effective_rank(circuits)
    assert isinstance(scores, ht.HeadScores)
    assert list(scores) == list(circuits)
    torch.testing.assert_close(scores.flat().float(), geometry.effective_rank(stacked))
    only = geometry.ov(ht.sites(model)["encoder"])
    assert {key[0] for key in only.values} == {"encoder"}
    wrong_names = {("encoder", 0, 4): "heads 0..3, got 4", ("cross", 9, 0): "no site or head", "x": "no site or head"}
    for wrong, says in wrong_names.items():
        with pytest.raises(KeyError, match=says):
            circuits[wrong]


def test_stacks_of_one_kind():
    model, _ = zoo_model("clip")
    circuits = geometry.ov(model)
    key = next(iter(circuits.values))
    assert len(key) == 3
    assert circuits[key].shape[0] == ht.sites(model)[key].heads
    assert circuits[(*key, 1)].left.dim() == 2
    with pytest.raises(ValueError, match="sites differ in width"):
        circuits.stack()


def test_half_precision_and_gradients():
    model, _ = fresh("bert")
    circuits = geometry.ov(model.half())
    assert circuits["encoder", 0].left.dtype is torch.float32
    assert not circuits["encoder", 0].left.requires_grad
    assert geometry.ov(model.double())["encoder", 0].left.dtype is torch.float64
    before = copy.deepcopy(model.state_dict())
    geometry.ov(model)["encoder", 0].left.zero_()
    geometry.ov(model)["encoder", 0].right.zero_()
    geometry.qk(model)["encoder", 0].right.zero_()
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in before.items())


def test_pruned_heads_are_gone():
    model, _ = fresh("bert")
    want = geometry.ov(model)["encoder", 1, 2].matrix()
    ht.prune(model, {("encoder", 1): [0, 1], ("encoder", 2): [0, 1, 2, 3]})
    circuits = geometry.ov(model)
    assert len(circuits) == 6
    torch.testing.assert_close(circuits["encoder", 1, 0].matrix(), want)
    assert ("encoder", 2) not in circuits.values
    ht.prune(model, {("encoder", 0): [0, 1, 2, 3], ("encoder", 1): [0, 1]})
    with pytest.raises(ValueError, match="all heads are cut"):
        geometry.ov(model)
