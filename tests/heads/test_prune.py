"""Cutting heads out: equal to closing their gates, in one forward pass and in generation, and loadable again."""

import copy
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import headtools as ht
from headtools.heads.prune import prune

from .reference import assert_same_state, bias_of, open_gates, some_heads, state, untouched, watch
from .zoo import INTERFACE, PADDED, error, fresh, logits, run, valid, zoo_model

SIDES = ("right", "left")
CLOSE = 1e-5
LATENT = ("deepseek_v3",)
CUTTABLE = tuple(name for name in INTERFACE if name not in LATENT)
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3")


def gated(model, batch, heads):
    """The logits with the gates of some heads closed."""
    with ht.gates(model, open_gates(ht.sites(model), heads)):
        return run(model, batch)


def close(name, one, other, batch):
    """Whether two logits agree on real tokens to a hundred-thousandth of their size."""
    return error(valid(name, one, batch), valid(name, other, batch)) <= CLOSE * max(1, other.abs().max().item())


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in PADDED if name in CUTTABLE])
def test_pruned_equals_gated(name, side):
    model, batch = fresh(name, side)
    sites = ht.sites(model)
    heads = some_heads(sites, seed=7)
    plain, expected = run(model, batch), gated(model, batch, heads)
    size = sum(parameter.numel() for parameter in model.parameters())
    ht.prune(model, heads)
    assert close(name, run(model, batch), expected, batch)
    assert not close(name, plain, expected, batch)
    after = ht.sites(model)
    for site in sites:
        remaining = site.heads - len(heads[site.key])
        assert after[site.key].heads == remaining
        assert after[site.key].original == tuple(h for h in range(site.heads) if h not in heads[site.key])
        assert after[site.key].w_o.shape[:2] == (remaining, site.value_dim)
    if name not in GROUPED:  # uneven groups cost copies of keys and values
        assert sum(parameter.numel() for parameter in model.parameters()) < size
    assert sorted(ht.pruned(model)) == sorted((*key, head) for key, some in heads.items() for head in some)


@pytest.mark.parametrize("name", CUTTABLE)
def test_one_head_of_each_site_in_turn(name):
    """A wrong row order hides when several heads go at once."""
    model, batch = zoo_model(name)
    for site in ht.sites(model):
        for head in {0, site.heads - 1}:
            cut = copy.deepcopy(model)
            ht.prune(cut, [(*site.key, head)])
            assert close(name, run(cut, batch), gated(model, batch, {site.key: [head]}), batch)


@pytest.mark.parametrize("name", CUTTABLE)
def test_uneven_pruning_leaves_other_layers_alone(name):
    model, batch = fresh(name)
    sites = ht.sites(model)
    first = next(iter(sites))
    heads = {first.key: list(range(1, first.heads))}
    expected = gated(model, batch, heads)
    ht.prune(model, heads)
    assert close(name, run(model, batch), expected, batch)
    assert [site.heads for site in ht.sites(model)] == [1, *(site.heads for site in list(sites)[1:])]


@pytest.mark.parametrize("name", CUTTABLE)
def test_all_heads_of_a_site_and_of_every_site(name):
    model, batch = fresh(name)
    sites = ht.sites(model)
    last = list(sites)[-1]
    expected = gated(model, batch, {last.key: list(range(last.heads))})
    nothing = gated(model, batch, {site.key: list(range(site.heads)) for site in sites})
    ht.prune(model, {last.key: list(range(last.heads))})
    assert close(name, run(model, batch), expected, batch)
    assert ht.sites(model).n_heads == sites.n_heads - last.heads
    assert "all cut" in repr(ht.sites(model))
    rest = [site for site in sites if site is not last]
    if rest:
        ht.prune(model, {site.key: list(range(site.heads)) for site in rest})
    assert close(name, run(model, batch), nothing, batch)
    assert ht.sites(model).n_heads == 0
    assert len(ht.pruned(model)) == sites.n_heads


@pytest.mark.parametrize("name", CUTTABLE)
def test_pruning_twice_equals_pruning_once(name):
    model, batch = fresh(name)
    once, _ = fresh(name)
    sites = ht.sites(model)
    ht.prune(once, {site.key: [0, site.heads - 1] for site in sites if site.heads > 2})
    ht.prune(model, {site.key: [0] for site in sites if site.heads > 2})
    # numbered as they are now: the last head has moved down by one
    ht.prune(model, {site.key: [site.heads - 2] for site in sites if site.heads > 2})
    assert ht.pruned(model) == ht.pruned(once)
    assert close(name, run(model, batch), run(once, batch), batch)


@pytest.mark.parametrize("name", CUTTABLE)
def test_saved_and_loaded_again(name, tmp_path):
    model, batch = fresh(name)
    sites = list(ht.sites(model))
    heads = some_heads(sites, seed=9)
    heads[sites[0].key] = list(range(sites[0].heads))  # a layer without heads among them
    ht.prune(model, heads)
    expected = run(model, batch)
    # tied weights are stored once each: safetensors refuses shared memory
    save_file({key: value.clone() for key, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    (tmp_path / "pruned.json").write_text(json.dumps(ht.pruned(model)))
    repeated, _ = fresh(name)
    with torch.no_grad():
        for parameter in repeated.parameters():
            parameter.zero_()
    ht.replay(repeated, json.loads((tmp_path / "pruned.json").read_text()))
    repeated.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(run(repeated, batch), expected)
    assert ht.pruned(repeated) == ht.pruned(model)


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_queries_even_and_uneven(name):
    model, batch = fresh(name)
    # 6 query heads share 2 key heads: 0, 1, 2 and 3, 4, 5
    cuts = {
        ("decoder", 0): ([1, 5], (4, 2)),  # two of each group stay
        ("decoder", 1): ([0, 1, 2], (3, 1)),  # a whole group goes
        ("decoder", 2): ([4], (5, 5)),  # uneven: every query gets its own keys and values
    }
    heads = {key: some for key, (some, _) in cuts.items()}
    expected = gated(model, batch, heads)
    ht.prune(model, heads)
    after = ht.sites(model)
    assert {key: (after[key].heads, after[key].kv_heads) for key in cuts} == {key: n for key, (_, n) in cuts.items()}
    assert close(name, run(model, batch), expected, batch)
    ht.prune(model, {("decoder", 2): [0, 3]})
    more = heads | {("decoder", 2): [0, 3, 4]}
    full, _ = zoo_model(name)
    assert close(name, run(model, batch), gated(full, batch, more), batch)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "marian", "gpt_oss"])
def test_pruned_equals_gated_in_eager_attention(name):
    model, batch = fresh(name)
    model.set_attn_implementation("eager")
    heads = some_heads(ht.sites(model), seed=14)
    expected = gated(model, batch, heads)
    ht.prune(model, heads)
    assert close(name, run(model, batch), expected, batch)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "albert", "phi3"])
def test_everything_works_on_a_pruned_model(name):
    model, batch = fresh(name)
    first = some_heads(ht.sites(model), seed=13, share=0.3)
    ht.prune(model, first)
    sites = ht.sites(model)
    before, plain = state(model), run(model, batch)
    with ht.gates(model, open_gates(sites)):
        assert torch.equal(run(model, batch), plain)
    with watch(sites) as recorded, ht.record(model) as r:
        run(model, batch)
    assert_same_state(before, state(model))
    for site in sites:
        assert r[site.key].maps.shape[1] == site.heads
        total = ht.contributions(site, r[site.key].z).sum(-2) + bias_of(site.out)
        assert error(total, recorded[site.key][-1][1]) <= CLOSE * max(1, total.abs().max())
    copied = copy.deepcopy(model)
    assert ht.pruned(copied) == ht.pruned(model)
    assert torch.equal(run(copied, batch), plain)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_a_pruned_model_trains(name):
    model, batch = fresh(name)
    ht.prune(model, some_heads(ht.sites(model)))
    logits(model(**batch)).logsumexp(-1).sum().backward()
    for site in ht.sites(model):
        for module in {id(m): m for m in (site.q.module, site.v.module, site.out)}.values():
            assert module.weight.grad is not None
            assert module.weight.grad.shape == module.weight.shape
            assert module.weight.grad.abs().max() > 0


def test_frozen_weights_stay_frozen():
    model, _ = fresh("bert")
    model.requires_grad_(False)
    ht.prune(model, {("encoder", 0): [1]})
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_pruning_one_copy_leaves_the_other_alone():
    model, batch = zoo_model("phi3")  # its layers read their sizes from a configuration they share
    with untouched(model):
        cut = copy.deepcopy(model)
        ht.prune(cut, {("decoder", 1): [0, 3]})
        assert cut.config.num_attention_heads == model.config.num_attention_heads
        run(cut, batch)
        run(model, batch)


@pytest.mark.parametrize("name", LATENT)
def test_latent_attention_is_refused_in_words(name):
    model, _ = zoo_model(name)
    with untouched(model), pytest.raises(ValueError, match=r"latent.*ablate"):
        ht.prune(model, {("decoder", 0): [1]})


law = settings(max_examples=10, deadline=None)


@law
@given(data=st.data())
@pytest.mark.parametrize("name", ["marian", "gpt2", "llama"])
def test_law_pruned_equals_gated_for_any_heads(name, data):
    model, batch = fresh(name)
    heads = {}
    for site in ht.sites(model):
        selected = data.draw(st.sets(st.integers(0, site.heads - 1)), label=str(site.key))
        if selected:
            heads[site.key] = sorted(selected)
    expected = gated(model, batch, heads)
    if heads:
        prune(model, heads)
    assert close(name, run(model, batch), expected, batch)
    repeated, _ = fresh(name)
    ht.replay(repeated, json.loads(json.dumps(ht.pruned(model))))
    repeated.load_state_dict(model.state_dict())
    assert torch.equal(run(repeated, batch), run(model, batch))
