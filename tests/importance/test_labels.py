"""Labels for any kind of model, from sentences alone."""

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import headtools as ht

MARKS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
SENTENCES = [("the", "sea", "rose"), ("the", "hill"), ("a", "sea", "and", "a", "hill")]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def a_tokenizer(side="right", **marks):
    words = dict.fromkeys(word for sentence in SENTENCES for word in sentence)
    made = Tokenizer(models.WordLevel({t: i for i, t in enumerate((*MARKS, *words))}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    marks = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"} | marks
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, padding_side=side, **marks)


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
    (batch,) = ht.label(model("continues"), a_tokenizer(side), SENTENCES)
    real = batch["attention_mask"].bool()
    assert torch.equal(batch["labels"][real], batch["input_ids"][real])
    assert (batch["labels"][~real] == -100).all()
    assert ((~real)[:, 0].any() if side == "left" else (~real)[:, -1].any()).item()
    slopes = ht.gate_gradients(model("continues"), batch)
    for row, sentence in enumerate(SENTENCES):
        if side == "right":
            (alone,) = ht.label(model("continues"), TOKENIZER, [sentence])
            assert torch.allclose(slopes["decoder", 0][row], ht.gate_gradients(model("continues"), alone)["decoder", 0],
                                  atol=1e-6)  # fmt: skip


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
        ("fills in", TOKENIZER, [], ValueError, "no sentences came"),
        ("fills in", a_tokenizer(mask_token=None), SENTENCES, ValueError, "no mask token"),
        ("fills in", TOKENIZER, [("sea",), ("</s>",)], ValueError, r"sentences \[1\] of a batch have no word"),
        ("continues", TOKENIZER, [("sea",), ()], ValueError, r"sentences \[1\] of a batch have one token"),
        ("neither", TOKENIZER, SENTENCES, ValueError, "predicts no words and no class"),
    ],
)
def test_what_cannot_be_labelled_is_told(kind, tokenizer, sentences, error, words):
    with pytest.raises(error, match=words):
        ht.label(model(kind), tokenizer, sentences)
