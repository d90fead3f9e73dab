"""Token accuracy and batches of the organism, against one sentence at a time."""

import pytest
import torch

import headtools as ht
from headtools.organism.batches import TrainingBatches, batches
from headtools.organism.evaluate import bleu, token_accuracy


def test_it_equals_one_sentence_at_a_time():
    model, tokenizer = ht.load()
    sentences = ht.corpus("organism", "hard", limit=12)
    start = model.config.decoder_start_token_id
    with ht.ablate(model, {("encoder", layer): range(0, 8, 2) for layer in range(6)}):  # so that it makes mistakes
        shares = token_accuracy(model, sentences, size=5)
        for sentence, share in zip(sentences, shares, strict=True):
            source = tokenizer(str(sentence), return_tensors="pt").input_ids
            target = tokenizer(" ".join(sentence.target), return_tensors="pt").input_ids[0]
            given = torch.cat([torch.tensor([start]), target[:-1]])[None]
            with torch.no_grad():
                predicted = model(input_ids=source, decoder_input_ids=given).logits[0].argmax(-1)
            assert share.item() == pytest.approx((predicted == target).double().mean().item())
    assert 0 < shares.mean() < 1
    assert shares.unique().numel() > 3


def test_batches_are_what_the_model_takes():
    model, _ = ht.load()
    sentences = ht.corpus("organism", limit=5)
    made = batches(sentences, size=2)
    assert [len(batch["labels"]) for batch in made] == [2, 2, 1]
    for batch in made:
        assert batch.keys() == {"input_ids", "attention_mask", "decoder_input_ids", "labels"}
        with torch.no_grad():
            assert model(**batch).loss < 1
        # the decoder reads the labels one place later, after the start
        inside = batch["labels"][:, 1:] != -100
        assert torch.equal(batch["decoder_input_ids"][:, 1:][inside], batch["labels"][:, :-1][inside])


def test_bad_input_is_refused():
    model, _ = ht.load()
    with pytest.raises(ValueError, match="make no batch"):
        batches([])
    with pytest.raises(ValueError, match="make no batch"):
        token_accuracy(model, ht.corpus("organism", limit=2), size=0)
    with pytest.raises(ValueError, match="sentence 0 has no translation"):
        token_accuracy(model, ht.corpus("english", limit=2))
    with pytest.raises(ValueError, match="expected a list of sentences"):
        bleu(*ht.load(), [])


def test_training_batches_by_step_whatever_was_asked_before():
    in_turn, jumping = TrainingBatches(seed=3, tokens=256), TrainingBatches(seed=3, tokens=256)
    several = [in_turn(step) for step in range(90)]  # more than one chunk
    assert in_turn.chunk > 0
    for step in (80, 3, 80, 0):
        batch = jumping(step)
        assert all(torch.equal(batch[key], several[step][key]) for key in batch)
    assert not torch.equal(several[0]["input_ids"], TrainingBatches(seed=4, tokens=256)(0)["input_ids"])
    sizes = [len(b["input_ids"]) * (b["input_ids"].shape[1] + b["labels"].shape[1]) for b in several]
    assert max(sizes) <= 256
    assert sum(sizes) / len(sizes) > 180
