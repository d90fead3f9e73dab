"""Groups of query heads: whole ones cut, spared ones kept, and what a cache holds against the cache that is made."""

import pytest
import torch
from transformers import DynamicCache

import headtools as ht
from headtools.heads.groups import cache_size, model_size

from .zoo import error, fresh, run, zoo_model

GROUPED = ("llama", "qwen3", "phi3", "gpt_oss")


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_goes_with_its_keys_and_values(name):
    model, batch = fresh(name)
    before = model_size(model, tokens=3)  # fewer than any sliding window has
    off = {("decoder", 0): [0, 1, 2], ("decoder", 2): [3, 4, 5]}  # six heads share two key-value heads
    with ht.ablate(model, off):
        expected = run(model, batch)
    ht.prune(model, {("decoder", 0): [0], ("decoder", 2): [1]}, groups=True)
    assert error(run(model, batch), expected) <= 1e-5
    after = model_size(model, tokens=3)
    assert [site.kv_heads for site in ht.sites(model)] == [1, 2, 1]
    assert after["parameters"] < before["parameters"]
    assert after["cache_bytes"] == before["cache_bytes"] * 4 // 6
    assert after["heads"] == before["heads"] - 6


def test_a_cut_that_makes_the_model_larger_says_so():
    model, _ = fresh("llama")
    before = model_size(model, 1)
    with pytest.warns(UserWarning, match="the cut made the model larger") as caught:
        ht.prune(model, {("decoder", 0): [0]})
    after, words = model_size(model, 1), str(caught[0].message)
    assert caught[0].filename == __file__
    assert f"{after['parameters']:,} parameters for {before['parameters']:,}" in words
    assert f"{after['cache_bytes']:,} bytes of cache a token for {before['cache_bytes']:,}" in words
    assert "groups=True)" in words


def test_a_cut_that_makes_the_model_smaller_says_nothing(recwarn):
    model, _ = fresh("llama")
    ht.prune(model, {("decoder", 0): [0, 1, 2]})
    ht.prune(model, [("decoder", 1, 1)], groups=True)
    assert not recwarn.list


def test_groups_are_ranked_by_what_their_heads_are_worth():
    model, _ = zoo_model("llama")
    values = {site.key: torch.arange(6.0) for site in ht.sites(model)}
    scores = ht.group_scores(model, ht.HeadScores(values))
    assert scores.values["decoder", 1].tolist() == [3, 12]
    with pytest.raises(ValueError, match="got 5 scores for decoder 0; expected 6"):
        ht.group_scores(model, ht.HeadScores({("decoder", 0): torch.ones(5)}))


CUTS = {"whole": {}, "uneven": {("decoder", 0): [0]}, "a layer": {("decoder", 1): range(6)}}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "qwen3", "opt"])
def test_the_cache_is_as_large_as_the_one_that_a_run_makes(name, cut):
    model, _ = fresh(name)
    if cut != "whole":
        ht.prune(model, {key: [h for h in heads if h < ht.sites(model)[key].heads] for key, heads in CUTS[cut].items()})
    cache = DynamicCache(config=model.config)
    ids = torch.arange(3, 15)[None]  # longer than Mistral's sliding window
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    made = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    kv_heads = sum(layer.keys.shape[1] for layer in cache.layers)
    assert model_size(model, ids.shape[1])["cache_bytes"] == cache_size(model, ids.shape[1]) == made
    assert model_size(model)["kv_heads"] == kv_heads


def test_streaming_saves_whole_groups_only():
    model, _ = zoo_model("llama")
    whole = cache_size(model, 100, number_bytes=2)
    per_head = whole // 6
    assert cache_size(model, 100, streaming={("decoder", 0): [0, 1]}, number_bytes=2) == whole
    short = cache_size(model, 100, streaming={("decoder", 0): [0, 1, 2]}, number_bytes=2)
    assert short == whole - per_head * 32 // 100


def test_latent_attention_keeps_one_vector():
    model, _ = zoo_model("deepseek_v3")
    assert cache_size(model, 10, number_bytes=2) == len(ht.sites(model)) * 10 * (16 + 8) * 2
    with pytest.raises(ValueError, match="keeps no cache"):
        cache_size(zoo_model("bert")[0])
