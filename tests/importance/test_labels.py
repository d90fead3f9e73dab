"""Labels for any kind of model, from sentences alone."""

from functools import partial

import pytest
import torch
import transformers as tf

import headtools as ht

from ..roles.small import whole_words
from .test_gradient import slopes_of

SENTENCES = [("the", "sea", "rose"), ("the", "hill"), ("a", "sea", "and", "a", "hill")]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
a_tokenizer = partial(whole_words, SENTENCES)
TOKENIZER = a_tokenizer()
IDS = {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model(kind):
    torch.manual_seed(0)
    if kind == "continues":
        config = tf.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, resid_pdrop=0.5, **IDS)
        return tf.GPT2LMHeadModel(config)
    kinds = {"fills in": tf.BertForMaskedLM, "classifies": tf.BertForSequenceClassification, "neither": tf.BertModel}
    return kinds[kind](tf.BertConfig(**IDS, **SHAPE, num_labels=7, hidden_dropout_prob=0.5))


def test_a_classifier_gets_its_own_greatest_logit():
    judge = model("classifies").train()
    (batch,) = ht.label(judge, TOKENIZER, SENTENCES)
    assert judge.training
    with torch.no_grad():
        judge.eval()
        logits = judge(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    assert batch["labels"].tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_model_that_continues_gets_the_sentence(side):
    (batch,) = ht.label(model("continues"), a_tokenizer(padding_side=side), SENTENCES)
    real = batch["attention_mask"].bool()
    assert torch.equal(batch["labels"][real], batch["input_ids"][real])
    assert (batch["labels"][~real] == -100).all()
    assert ((~real)[:, 0].any() if side == "left" else (~real)[:, -1].any()).item()
    slopes = slopes_of(model("continues"), batch)
    for row, sentence in enumerate(SENTENCES):
        if side == "right":
            (alone,) = ht.label(model("continues"), TOKENIZER, [sentence])
            assert torch.allclose(
                slopes["decoder", 0][row], slopes_of(model("continues"), alone)["decoder", 0], atol=1e-6
            )


def test_a_model_that_fills_in_gets_masked_words():
    (batch,) = ht.label(model("fills in"), TOKENIZER, SENTENCES * 20, size=60)
    (plain,) = [TOKENIZER([" ".join(s) for s in SENTENCES * 20], return_tensors="pt", padding=True)]
    chosen = batch["labels"] != -100
    assert (batch["input_ids"][chosen] == TOKENIZER.mask_token_id).all()
    assert torch.equal(batch["labels"][chosen], plain["input_ids"][chosen])
    assert torch.equal(batch["input_ids"][~chosen], plain["input_ids"][~chosen])
    assert chosen.sum(1).min() == 1
    words = plain["input_ids"] > 4
    assert not (chosen & ~words).any(), "neither padding nor marks are masked"
    assert 0.15 < chosen.sum() / words.sum() < 0.5
    again = ht.label(model("fills in"), TOKENIZER, SENTENCES * 20, size=60)[0]["labels"]
    other = ht.label(model("fills in"), TOKENIZER, SENTENCES * 20, size=60, seed=1)[0]["labels"]
    assert torch.equal(batch["labels"], again)
    assert not torch.equal(batch["labels"], other)


def test_batches_have_the_size_that_was_asked_for():
    sizes = [len(batch["labels"]) for batch in ht.label(model("fills in"), TOKENIZER, SENTENCES * 3, size=4)]
    assert sizes == [4, 4, 1]
    alone = a_tokenizer(pad_token=None)
    assert [len(b["labels"]) for b in ht.label(model("fills in"), alone, SENTENCES)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "tokenizer", "sentences", "error", "words"),
    [
        ("fills in", None, SENTENCES, TypeError, "need the model's tokenizer"),
        ("fills in", TOKENIZER, [], ValueError, "got no sentences"),
        ("fills in", a_tokenizer(mask_token=None), SENTENCES, ValueError, "no mask token"),
        ("fills in", TOKENIZER, [("sea",), ("</s>",)], ValueError, r"sentences \[1\] of a batch have no token to mask"),
        ("continues", TOKENIZER, [("sea",), ()], ValueError, r"sentences \[1\] have fewer than two tokens"),
        ("neither", TOKENIZER, SENTENCES, ValueError, "predicts neither tokens nor a class"),
    ],
)
def test_what_cannot_be_labelled_is_told(kind, tokenizer, sentences, error, words):
    with pytest.raises(error, match=words):
        ht.label(model(kind), tokenizer, sentences)


class Spoken(tuple):
    """A sentence of some words, with or without a translation."""

    def __new__(cls, words, target=None):
        made = super().__new__(cls, words)
        made.target = target
        return made


def translator():
    torch.manual_seed(0)
    return tf.T5ForConditionalGeneration(
        tf.T5Config(d_model=16, d_kv=8, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0, **IDS)
    )


def test_a_translation_is_the_label():
    given = [Spoken(("the", "sea"), ("a", "hill")), Spoken(("the", "hill"), ("a", "sea", "and", "a", "hill"))]
    (batch,) = ht.label(translator(), TOKENIZER, given)
    wanted = [TOKENIZER(" ".join(sentence.target))["input_ids"] for sentence in given]
    assert [row[row != -100].tolist() for row in batch["labels"]] == wanted
    assert sorted(batch) == ["attention_mask", "input_ids", "labels"]


def test_without_a_translation_the_model_writes():
    model = translator().train()
    given = [Spoken(sentence, ("a",) if number else None) for number, sentence in enumerate(SENTENCES)]
    (batch,) = ht.label(model, TOKENIZER, given)
    assert model.training
    model.eval()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    written = model.generate(**inputs, do_sample=False, num_beams=1, max_new_tokens=24)[:, 1:]
    for row, wanted in zip(batch["labels"], written, strict=True):
        ends = (wanted == 2).nonzero().flatten().tolist()
        end = ends[0] + 1 if ends else len(wanted)
        assert row[:end].tolist() == wanted[:end].tolist()
        assert (row[end:] == -100).all()


@pytest.mark.parametrize("kind", ["fills in", "continues", "translates"])
def test_a_tokenizer_that_gives_no_mask_unless_asked(kind):
    quiet = a_tokenizer(model_input_names=["input_ids"])
    assert "attention_mask" not in quiet(["sea"])
    given = [Spoken(sentence, sentence[:2]) for sentence in SENTENCES]
    one = translator() if kind == "translates" else model(kind)
    (plain,), (found,) = ht.label(one, TOKENIZER, given), ht.label(one, quiet, given)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_texts_longer_than_the_tokenizer_allows_are_cut():
    short = a_tokenizer(model_max_length=3)
    (batch,) = ht.label(model("continues"), short, [SENTENCES[2]])
    assert batch["input_ids"].shape == (1, 3)
    (batch,) = ht.label(model("continues"), TOKENIZER, [SENTENCES[2]])
    assert batch["input_ids"].shape == (1, 6)


@pytest.mark.parametrize("sentences", ["the dog slept .", ["the dog slept ."]])
def test_strings_are_refused_before_they_are_taken_for_letters(sentences):
    model, tokenizer = ht.load()
    with pytest.raises(TypeError, match=r"got one sentence|is a string; expected"):
        ht.label(model, tokenizer, sentences)
