"""Small sentences, a tokenizer that cuts some of their words in pieces, and random models that read them."""

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel, PreTrainedTokenizerFast

from headtools.roles.sentence import Sentence

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "cat", "play", "##ed", "##ing", "it", "saw", "."]
SAID = [
    Sentence(
        ("the", "dog", "played", "."),
        (2, 3, 0, 3),
        ("det", "nsubj", "root", "punct"),
        ("DET", "NOUN", "VERB", "PUNCT"),
        (0,) * 4,
    ),
    Sentence(
        ("the", "cat", "saw", "the", "dog", "playing", "."),
        (2, 3, 0, 5, 3, 5, 3),
        ("det", "nsubj", "root", "det", "obj", "acl", "punct"),
        ("DET", "NOUN", "VERB", "DET", "NOUN", "VERB", "PUNCT"),
        (0,) * 7,
    ),
    Sentence(
        ("the", "dog", "saw", "it", "."),
        (2, 3, 0, 3, 3),
        ("det", "nsubj", "root", "obj", "punct"),
        ("DET", "NOUN", "VERB", "PRON", "PUNCT"),
        (0, 0, 0, 2, 0),
    ),
]
MORE = [
    *SAID,
    Sentence(
        ("the", "dog", "saw", "the", "cat", "it", "played", "it", "saw", "."),
        (2, 3, 0, 5, 3, 7, 3, 9, 3, 3),
        ("det", "nsubj", "root", "det", "obj", "nsubj", "acl", "obj", "acl", "punct"),
        ("DET", "NOUN", "VERB", "DET", "NOUN", "PRON", "VERB", "PRON", "VERB", "PUNCT"),
        (0,) * 5 + (2, 0, 2, 0, 0),
    ),
    Sentence(("playing",), (0,), ("root",), ("VERB",), (0,)),
]


def wordpieces(marks: bool = True, side: str = "right") -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.WordPiece({w: i for i, w in enumerate(PIECES)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if marks:
        plain.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]"} if marks else {}
    names |= {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(tokenizer_object=plain, padding_side=side, **names)


def whole_words(sentences, **more) -> PreTrainedTokenizerFast:
    """One token for each word of some sentences, and an end mark."""
    marks = ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
    words = dict.fromkeys(word for words in sentences for word in words)
    plain = Tokenizer(models.WordLevel({w: i for i, w in enumerate((*marks, *words))}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    plain.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"} | more
    return PreTrainedTokenizerFast(tokenizer_object=plain, **names)


def small_model(name: str) -> torch.nn.Module:
    """A random model in float64, whose own maps do not depend on what is beside a sentence."""
    torch.manual_seed(4)
    size = {"vocab_size": len(PIECES), "initializer_range": 0.6}
    if name == "gpt2":  # places are counted from the left, padding included
        return GPT2Model(GPT2Config(**size, n_embd=16, n_layer=2, n_head=4)).eval().double()
    size |= {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 8}
    if name == "bert":
        return BertModel(BertConfig(**size)).eval().double()
    return LlamaModel(LlamaConfig(**size, num_key_value_heads=2)).eval().double()
