"""The tables of real models that ship are those of the weights: measured again where the weights are.

``headtools.organism.fetch.make_copy("smollm2")`` and ``...("minilm")`` bring them; the weekly workflow does, too.
"""

import os

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.organism.real_models import CACHE, cache_folder
from recipes import _real_weights as weights
from recipes.measure_real import SIZES, roles_table

pytestmark = pytest.mark.full  # tables that ship and weights that are pinned: they change when someone changes them


@pytest.fixture(autouse=True)
def models_of_this_machine(monkeypatch):
    monkeypatch.setenv(CACHE, os.environ["HEADTOOLS_REAL_MODELS"])


def loaded(name):
    if not (cache_folder() / name / "config.json").is_file():
        pytest.skip(f'the copy of {name} is not here: headtools.organism.fetch.make_copy("{name}") brings it')
    return ht.load(name)


def test_smollm2_is_the_model_that_was_measured():
    model, tokenizer = loaded("smollm2")
    measured = {row["name"]: row for row in weights.three_heads(model, tokenizer, SIZES)[0]}
    shipped = ht.shipped_real("smollm2", "three_heads").to_dict("records")
    for row in shipped:
        again = measured[row["name"]]
        assert (again["layer"], again["head"], again["tokens"]) == (row["layer"], row["head"], row["tokens"])
        torch.testing.assert_close(torch.tensor(again["weights"]), torch.tensor(row["weights"]), atol=2e-3, rtol=0)


def test_minilm_is_the_model_that_was_measured():
    measured, _ = roles_table(*loaded("minilm"), n=SIZES["role sentences"])
    shipped = ht.shipped_real("minilm", "roles")
    both = pd.DataFrame(measured).merge(shipped, on=["layer", "head", "role"], suffixes=("", " shipped"))
    assert len(both) == len(shipped) > 100
    # A key may win by a hair on another machine: a hundredth of the looks may go elsewhere.
    assert (both["score"] - both["score shipped"]).abs().max() < 0.01
