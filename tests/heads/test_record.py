"""Maps, queries, keys, values and outputs as recorded, against the model's own."""

import pytest
import torch

import headtools as ht

from .zoo import zoo_model


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma3", "marian", "t5", "clip"])
def test_output_attentions_works_inside_the_context(name):
    model, batch = zoo_model(name)
    with ht.record(model, want="maps") as r, torch.no_grad():
        output = model(**batch, output_attentions=True)
    parts = [output.text_model_output, output.vision_model_output] if name == "clip" else [output]
    given = [each for part in parts for key in part for each in (part[key] if key.endswith("attentions") else ())]
    assert len(given) == len(r)
    for site in r:
        assert any(each.shape == r[site].maps.shape and torch.equal(each, r[site].maps) for each in given)
