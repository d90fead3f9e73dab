"""Confidence in cases known beforehand; tests/differential compares it with loops over single sentences."""

import copy

import pytest
import torch

from headtools.importance.confidence import confidence

from ..heads.zoo import fresh, zoo_model


def test_an_even_spread_gives_one_over_the_length():
    model, batch = copy.deepcopy(zoo_model("bert")[0]), zoo_model("bert")[1]
    for layer in model.bert.encoder.layer:
        layer.attention.self.query.weight.data.zero_()
        layer.attention.self.query.bias.data.zero_()
    # lengths 7, 5 and 3: each token of the first spreads over seven, and so on; the mean is over 15 tokens
    assert confidence(model, batch).flat().tolist() == pytest.approx([3 / 15] * 12)
    # without the first token of the first sentence, six look and another of its seven weights is as great
    first = int(batch["input_ids"][0, 0])
    assert (batch["input_ids"] == first).sum() == 1
    assert confidence(model, batch, exclude=first).flat().tolist() == pytest.approx([(6 / 7 + 2) / 14] * 12)
    # and where none of its tokens counts, the two others are left, of five and three tokens
    everything = batch["input_ids"][0].tolist()
    assert not set(everything) & set(batch["input_ids"][1:].flatten().tolist()) - {0}
    assert confidence(model, batch, exclude=everything).flat().tolist() == pytest.approx([2 / 8] * 12)


def test_the_end_mark_is_left_out_unless_told_otherwise():
    model, batch = zoo_model("marian")
    batch["input_ids"][:, 1] = model.config.eos_token_id
    named = confidence(model, batch, exclude=[model.config.eos_token_id])
    assert torch.equal(confidence(model, batch).flat(), named.flat())
    assert (confidence(model, batch, exclude=[]).flat() > named.flat()).any()


def test_without_an_eos_token_every_token_counts_and_the_scores_say_so():
    model, batch = fresh("bert")
    model.config.eos_token_id = None
    scores = confidence(model, batch)
    assert "every token" in repr(scores)
    assert torch.equal(scores.flat(), confidence(model, batch, exclude=[]).flat())
    assert "counts" not in confidence(model, batch, exclude=[]).notes
