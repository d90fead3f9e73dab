"""Confidence in cases known beforehand; tests/differential compares it with loops over single sentences."""

import copy

import pytest
import torch

import headtools as ht
from headtools.importance.confidence import confidence

from ..heads.reference import untouched
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


def test_a_shared_layer_is_the_mean_of_its_calls():
    model, batch = zoo_model("albert")
    seen = []
    with torch.no_grad(), ht.record(model, ("maps",), accumulate=lambda _s, c, _b: seen.append(c.maps)):
        model(**batch)
    real = batch["attention_mask"].bool()
    calls = [maps.amax(-1).transpose(1, 2)[real].mean(0) for maps in seen]
    assert len(calls) == 3
    assert torch.allclose(confidence(model, batch, exclude=[]).values["encoder", 0], torch.stack(calls).mean(0))


def test_the_model_is_left_as_it_was_and_intervals_stay_between_none_and_all():
    model, batch = fresh("bert")
    model.train().bert.embeddings.word_embeddings.weight.requires_grad_(False)
    with untouched(model):
        scores = confidence(model, [batch, batch])
        with pytest.raises(ValueError, match="the model knows 0 to 95"):
            confidence(model, {"input_ids": torch.tensor([[9999]])})
    for key, low in scores.low.items():
        assert ((low >= 0) & (low <= scores.values[key]) & (scores.values[key] <= scores.high[key])).all()
        assert (scores.high[key] <= 1).all()


def test_without_an_eos_token_every_token_counts_and_the_scores_say_so():
    model, batch = fresh("bert")
    model.config.eos_token_id = None
    scores = confidence(model, batch)
    assert "every token" in repr(scores)
    assert torch.equal(scores.flat(), confidence(model, batch, exclude=[]).flat())
    assert "counts" not in confidence(model, batch, exclude=[]).notes
