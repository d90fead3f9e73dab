"""The table of typical mistakes in notebooks/contract.md: every line is run, and says what the table says."""

import copy
import re
import warnings
from pathlib import Path

import pytest
import torch

import headtools as ht

from .heads.reference import untouched
from .heads.zoo import zoo_model

PAGE = Path(__file__).parents[1] / "notebooks" / "contract.md"
TABLE = PAGE.read_text("utf-8").partition("## Typical mistakes")[2].partition("\n\nThe whole idea")[0]
ROWS = re.findall(r"^\| `(.*)` \| (.*) \|$", TABLE, re.M)


def test_there_is_a_table():
    assert len(ROWS) >= 15


@pytest.mark.parametrize(("code", "says"), ROWS, ids=[code[:40] for code, _ in ROWS])
def test_a_mistake_is_told(code, says, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model, batch = zoo_model("bert")
    names = {"ht": ht, "torch": torch, "model": model, "decoder": zoo_model("llama")[0]}
    names["batch"] = batch | {"labels": copy.copy(batch["input_ids"])}
    with untouched(model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            exec(code.replace("\\|", "|"), names)
        except Exception as error:
            told = str(error)
        else:
            told = " ".join(str(each.message) for each in caught)
    assert says in told, told
