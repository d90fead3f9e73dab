"""Cutting heads out: equal to closing their gates, in one forward pass and in generation, and loadable again."""

import pytest

import headtools as ht

from .reference import open_gates, some_heads
from .zoo import error, fresh, logits, run, valid, zoo_model

CLOSE = 1e-5
GROUPED = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3")


def gated(model, batch, heads):
    """The logits with the gates of some heads closed."""
    with ht.gates(model, open_gates(ht.sites(model), heads)):
        return run(model, batch)


def close(name, one, other, batch):
    """Whether two logits agree on real tokens to a hundred-thousandth of their size."""
    return error(valid(name, one, batch), valid(name, other, batch)) <= CLOSE * max(1, other.abs().max().item())


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
