"""Roles of long texts: read block by block, they are those of whole maps."""

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.heads import _attention

from ..heads.zoo import zoo_model


def sinks():
    model, batch = zoo_model("llama", "left")
    return ht.attention_sinks(model, batch)


def scores():
    return ht.induction_scores(zoo_model("gemma3")[0], n=5, length=7, repeats=3)


def roles():
    sentences = ht.corpus("organism", "test", limit=40)
    return ht.taxonomy(*ht.load(), sentences, times=20)


@pytest.mark.parametrize("measure", [sinks, scores, roles])
def test_blocks_change_nothing(measure, monkeypatch):
    whole = measure()
    monkeypatch.setattr(_attention, "WHOLE", 3)
    monkeypatch.setattr(_attention, "N_QUERIES", 3)
    monkeypatch.setattr(_attention, "LAZY_FROM", 1)
    pd.testing.assert_frame_equal(measure(), whole, rtol=0, atol=1e-5)


def test_no_map_of_a_long_text_is_made(monkeypatch):
    model, _ = zoo_model("llama")
    largest = []

    class Seen(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if isinstance(made, torch.Tensor):
                largest.append(made.untyped_storage().nbytes())
            return made

    n_tokens = 1500
    with Seen():
        ht.attention_sinks(model, {"input_ids": torch.randint(3, 90, (1, n_tokens))})
    n_heads = ht.sites(model)["decoder", 0].heads
    assert max(largest) <= n_heads * _attention.N_QUERIES * n_tokens * 4
