"""Statistics in cases known beforehand; tests/differential compares them with whole maps, row by row."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import headtools as ht
from headtools.importance.statistics import Received, first_token, offset, on_pairs

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


def test_pairs_find_the_fact_that_a_question_asks_for(long_text):
    model, batch, maps = long_text
    pairs = [(0, 590, 20), (0, 590, 21), (0, 10, 5), (1, 599, 300)]  # in the first and the last block
    found = ht.statistics(model, batch, {"needle": on_pairs(lambda _batch: pairs)})["needle"]
    for key, of_layer in maps.items():
        looks = of_layer[0, :, 590, 20:22].sum(-1), of_layer[0, :, 10, 5], of_layer[1, :, 599, 300]
        torch.testing.assert_close(found.values[key], torch.stack(looks).mean(0))


def test_a_class_sees_every_row_once(long_text):
    model, batch, maps = long_text

    class LastArgmax:
        def __init__(self):
            self.found = {}

        def update(self, block):
            self.found.setdefault(block.site.key, []).append(block.rows.argmax(-1))

        def finish(self):
            return {key: torch.cat(parts, -1) for key, parts in self.found.items()}

    found = ht.statistics(model, batch, {"argmax": LastArgmax, "received": Received})
    real = batch["attention_mask"].float()
    for key, of_layer in maps.items():
        tied = of_layer.topk(2, -1).values.diff(dim=-1)[..., 0] > -1e-6  # (B, head, query)
        same = (found["argmax"][key] == of_layer.argmax(-1)) | tied
        assert same.transpose(1, 2)[batch["attention_mask"].bool()].all()
        mean = torch.einsum("bhqk,bq->bhk", of_layer, real) / real.sum(-1)[:, None, None]
        torch.testing.assert_close(found["received"][key][0], mean)


@pytest.mark.parametrize("function", [offset(-1), first_token])
def test_where_a_key_stands_needs_one_text(function):
    model, batch = zoo_model("marian")
    with pytest.raises(ValueError, match=r"cross 0.* attention of a text to itself"):
        ht.statistics(model, batch, {"it": function})
    assert ht.statistics(model, batch, {"it": function}, sites=["encoder", "decoder"])["it"]
