"""Generation with heads switched off or cut out: the same with a cache, without one, and with beams."""

import pytest
import torch

import headtools as ht

from .reference import some_heads
from .zoo import error, fresh, zoo_model

CLOSE = 1e-5
GENERATING = ("gpt2", "llama", "gemma3", "marian", "bart", "t5")


def generated(model, batch, cache, steps=6):
    """Tokens and their scores from greedy decoding of a fixed length."""
    batch = {key: value for key, value in batch.items() if key != "decoder_input_ids"}
    fixed = {"max_new_tokens": steps, "min_new_tokens": steps, "do_sample": False, "pad_token_id": 0}
    out = model.generate(**batch, **fixed, use_cache=cache, return_dict_in_generate=True, output_logits=True)
    return out.sequences, torch.stack(out.logits)


def agree(one, other):
    assert torch.equal(one[0], other[0])
    assert error(one[1], other[1]) <= CLOSE * 5 * max(1, other[1].abs().max().item())


@pytest.mark.parametrize("name", GENERATING)
def test_generation_gated_and_pruned_with_and_without_cache(name):
    model, batch = fresh(name, "left")
    heads = some_heads(ht.sites(model), seed=11)
    plain = generated(model, batch, cache=True)
    with ht.ablate(model, heads):
        cached, uncached = generated(model, batch, cache=True), generated(model, batch, cache=False)
    agree(cached, uncached)
    assert error(cached[1], plain[1]) > 1e-3
    ht.prune(model, heads)
    agree(generated(model, batch, cache=True), cached)
    agree(generated(model, batch, cache=False), cached)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generation_with_a_static_cache(name):
    model, batch = fresh(name, "left")
    heads = some_heads(ht.sites(model), seed=11)
    fixed = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    static = fixed | {"cache_implementation": "static", "disable_compile": True}
    with ht.ablate(model, heads):
        expected = model.generate(**batch, **fixed)
        assert torch.equal(model.generate(**batch, **static), expected)
    model, batch = fresh(name, "left")
    ht.prune(model, heads)
    assert torch.equal(model.generate(**batch, **static), expected)


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian", "t5"])
def test_generation_with_gates_per_example(name):
    """Without beams rows stay rows: every example is generated as if it were alone with its own gates."""
    model, batch = zoo_model(name, "left")
    batch = {key: value for key, value in batch.items() if key != "decoder_input_ids"}
    fixed = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    sites = ht.sites(model)
    generator = torch.Generator().manual_seed(9)
    values = {site.key: (torch.rand(3, site.heads, generator=generator) > 0.5).float() for site in sites}
    with ht.gates(model, values):
        together = model.generate(**batch, **fixed)
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        with ht.gates(model, {key: value[row] for key, value in values.items()}):
            alone = model.generate(**one, **fixed)
        assert torch.equal(alone[0], together[row])
