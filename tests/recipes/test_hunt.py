"""The hunt draws models that can be built, and sees a number that is wrong."""

import random
from contextlib import contextmanager

import pytest
import torch

import headtools as ht
from recipes import hunt

KNOWN = [("bert", "BertForMaskedLM", 11), ("llama", "LlamaForCausalLM", 12), ("t5", "T5ForConditionalGeneration", 13)]


@pytest.mark.parametrize(("family", "name", "seed"), KNOWN)
def test_a_draw_ends_and_can_be_drawn_again(family, name, seed):
    row = hunt.drawn(family, name, seed)
    assert row["end"] in ("equal", "not built"), row
    assert hunt.drawn(family, name, seed) == row


def equal():
    """A draw of Llama that is built and equal, and its row."""
    rows = (hunt.drawn("llama", "LlamaForCausalLM", seed) for seed in range(20))
    return next(row for row in rows if row["end"] == "equal")


@pytest.mark.parametrize("what", ["ablate", "gates"])
def test_a_wrong_number_is_seen(monkeypatch, what):
    row, right = equal(), getattr(ht, what)

    @contextmanager
    def nothing(model, heads):
        with right(model, {}):
            yield

    monkeypatch.setattr(ht, what, nothing)
    found = hunt.drawn(row["family"], row["class"], row["seed"])
    assert (found["end"], found["why"].split(" of ")[0]) == ("different", what)


def test_padding_is_no_difference():
    batch = {"input_ids": torch.ones(2, 8, dtype=torch.long), "attention_mask": torch.ones(2, 8, dtype=torch.long)}
    sides = {tuple(hunt.padded(batch, random.Random(seed))["attention_mask"][1].tolist()) for seed in range(30)}
    assert sides == {(1,) * 8, (0, 0, 0, 1, 1, 1, 1, 1), (1, 1, 1, 1, 1, 0, 0, 0)}
