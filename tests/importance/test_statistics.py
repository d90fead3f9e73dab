"""Statistics in cases known beforehand; tests/differential compares them with whole maps, row by row."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headtools as ht
from headtools.importance.statistics import offset

from ..heads.zoo import zoo_model


@pytest.fixture(scope="module")
def long_text():
    """A model, two texts of 600 tokens, one padded on the left, and their maps."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=8, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(config).eval()
    mask = torch.ones(2, 600, dtype=torch.long)
    mask[1, :100] = 0
    batch = {"input_ids": torch.randint(30, (2, 600)), "attention_mask": mask}
    with torch.no_grad(), ht.record(model, "maps") as seen:
        model(**batch)
    return model, batch, {key: seen[key].maps for key in seen}


def test_a_function_sees_every_row_once_and_may_choose_queries(long_text):
    model, batch, maps = long_text

    def on_key_20(block):
        query = torch.arange(block.rows.shape[2]) + block.first
        return block.rows[..., 20], block.queries & ((query == 10) | (query == 590))  # in the first and the last block

    found = ht.statistics(model, batch, {"key 20": on_key_20})["key 20"]
    for key, of_layer in maps.items():
        looks = of_layer[0, :, 10, 20], of_layer[0, :, 590, 20], of_layer[1, :, 590, 20]  # text 1 is padding at 10
        torch.testing.assert_close(found.values[key], torch.stack(looks).mean(0))


def test_where_a_key_stands_needs_one_text():
    model, batch = zoo_model("marian")
    with pytest.raises(ValueError, match=r"cross 0.* attention of a text to itself"):
        ht.statistics(model, batch, {"it": offset(-1)})
    assert ht.statistics(model, batch, {"it": offset(-1)}, sites=["encoder", "decoder"])["it"]
