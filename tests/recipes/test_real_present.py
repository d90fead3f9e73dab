"""Where the weights of real models are: the tables that ship are measured again, and the lessons' live cells run.

``headtools.organism.fetch.make_copy("smollm2")`` and ``...("minilm")`` bring them; the weekly workflow does, too.
"""

import os
import re

import pandas as pd
import pytest
import torch

import headtools as ht
from headtools.organism.real_models import CACHE, cache_folder
from recipes import _real_weights as weights
from recipes.measure_real import SIZES, roles_table
from tools import execute_notebooks

pytestmark = pytest.mark.full  # tables that ship and weights that are pinned: they change when someone changes them


@pytest.fixture(autouse=True)
def models_of_this_machine(monkeypatch):
    monkeypatch.setenv(CACHE, os.environ["HEADTOOLS_REAL_MODELS"])


def skip_without(name):
    if not (cache_folder() / name / "config.json").is_file():
        pytest.skip(f'the copy of {name} is not here: headtools.organism.fetch.make_copy("{name}") brings it')


def loaded(name):
    skip_without(name)
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


LIVE = {
    path: re.findall(r'@ht\.live\(\\"(.+?)\\"\)', path.read_text("utf-8"))
    for path in [*execute_notebooks.lessons(), *execute_notebooks.appendices()]
}


@pytest.mark.weekly
@pytest.mark.parametrize("path", [path for path, names in LIVE.items() if names], ids=lambda path: path.stem)
def test_live_cells_run(path):
    for name in LIVE[path]:
        skip_without(name)
    done = execute_notebooks.run(path, models=cache_folder())
    cells = [cell for cell in done.nb.cells if "@ht.live(" in cell.source]
    assert done.megabytes < 1500
    assert len(cells) == len(LIVE[path])
    for cell in cells:
        printed = "".join(output.get("text", "") for output in cell.outputs)
        assert "is not on this machine" not in printed
        assert len(printed.splitlines()) > 1  # the first says which weights
    if "whisper" in LIVE[path]:
        assert re.search("no head off: +Doesn't this train stop at every village", printed)
        assert re.search("0.3, 1.4, 2.3 off: +Doesn't.*train.*village", printed)
        assert re.search("0.4, 1.2, 2.4 off: +Doesn't\n", printed)
