"""Confidence against loops over single sentences, and cases known beforehand."""

import copy

import pytest
import torch

import headtools as ht
from headtools.importance.confidence import confidence

from ..heads.zoo import zoo_model


def by_loops(model, batch, exclude):
    """Sentence by sentence without padding, token by token."""
    sums, tokens = {}, {}
    for row in range(3):
        length = int(batch["attention_mask"][row].sum())
        one = {"input_ids": batch["input_ids"][row : row + 1, :length]}
        if "decoder_input_ids" in batch:
            one["decoder_input_ids"] = batch["decoder_input_ids"][row : row + 1]
        with torch.no_grad(), ht.record(model, ("maps",)) as r:
            model(**one)
        for key in r:
            keys = one["decoder_input_ids" if key[0] == "decoder" and len(one) == 2 else "input_ids"][0].tolist()
            lookers = one["input_ids" if key[0] == "encoder" or len(one) == 1 else "decoder_input_ids"][0].tolist()
            for head, rows in enumerate(r[key].maps[0]):
                for looker, weights in zip(lookers, rows.tolist(), strict=True):
                    if looker in exclude:
                        continue
                    best = max([w for w, token in zip(weights, keys, strict=True) if token not in exclude], default=0)
                    sums[key, head] = sums.get((key, head), 0) + best
                    tokens[key, head] = tokens.get((key, head), 0) + 1
    return {name: sums[name] / tokens[name] for name in sums}


@pytest.mark.parametrize("exclude", [False, True])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "marian", "t5"])
def test_it_equals_loops(name, exclude):
    model, batch = zoo_model(name)
    out = [int(batch["input_ids"][0, 1]), int(batch["input_ids"][1, 0])] if exclude else []
    if exclude and "decoder_input_ids" in batch:
        out.append(int(batch["decoder_input_ids"][0, 0]))
    found, expected = confidence(model, [batch, batch], exclude=out), by_loops(model, batch, out)
    assert len(found) == len(expected)
    for (key, head), value in expected.items():
        assert found[(*key, head)] == pytest.approx(value, abs=1e-5)
        assert 0 <= found.low[key][head] <= found.high[key][head] <= 1


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


def test_batches_and_sites():
    model, batch = zoo_model("marian")
    rows = [{key: value[row : row + 1] for key, value in batch.items()} for row in range(3)]
    some = confidence(model, iter(rows), sites=["cross"])
    assert list(some.values) == [("cross", 0), ("cross", 1)]
    whole = confidence(model, batch)
    assert torch.allclose(some.values["cross", 1], whole.values["cross", 1], atol=1e-6)
    assert some.low is None
    assert confidence(model, rows * 2).low is not None


def test_the_model_is_left_as_it_was():
    model = copy.deepcopy(zoo_model("bert")[0]).train()
    model.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for batch in (zoo_model("bert")[1], {"input_ids": torch.tensor([[9999]])}):
        if batch["input_ids"].numel() == 1:
            with pytest.raises(IndexError):
                confidence(model, batch)
        else:
            confidence(model, batch)
        assert all(module.training for module in model.modules())
        assert sum(not p.requires_grad for p in model.parameters()) == 1
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert model.config._attn_implementation == "sdpa"


def test_what_cannot_be_excluded_is_refused():
    model, batch = zoo_model("vit")
    assert len(confidence(model, batch)) == 12
    with pytest.raises(ValueError, match="the batch has no ids for them"):
        confidence(model, batch, exclude=[3])
    with pytest.raises(ValueError, match="does not use transformers' AttentionInterface"):
        confidence(*zoo_model("bloom"))
    with pytest.raises(ValueError, match="got no batches"):
        confidence(model, [])
