"""Labels of tokens: spaces, continued words and split characters, for every kind of tokenizer."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headtools as ht

from ..roles.tiny_llama import byte_tokenizer


def test_byte_level_pieces_read_as_text():
    tokenizer = byte_tokenizer(400)
    ids = tokenizer("The harbour\nnaïve 漢!").input_ids
    labels = ht.token_labels(tokenizer, ids)
    assert len(labels) == len(ids)
    assert not any(character in label for label in labels for character in "ĠĊÃ\ufffd")
    joined = "".join(label.removeprefix("·") for label in labels)
    assert joined.replace("␣", "").replace("↵", "") == "Theharbournaïve漢!"
    assert "↵" in labels


def test_wordpiece():
    vocabulary = {"[UNK]": 0, "un": 1, "##believ": 2, "##able": 3, "dog": 4, "a": 5, "##a": 6}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]")
    assert ht.token_labels(tokenizer, tokenizer("unbelievable dog").input_ids) == ["un", "·believ", "·able", "dog"]
    assert ht.token_labels(tokenizer, torch.tensor([1, 3])) == ["un", "·able"]


def test_ids_of_several_texts_are_refused():
    with pytest.raises(TypeError, match=r"token_labels\(tokenizer, ids\[0\]\)"):
        ht.token_labels(byte_tokenizer(400), [[1, 2]])
