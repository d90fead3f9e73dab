"""A tokenizer for the task with names."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from recipes._real_names import PAIRS, PLACES, TEMPLATES, THINGS, THIRDS


@pytest.fixture(scope="session")
def names_tokenizer():
    """Return a tokenizer to which every word of the prompts is one token."""
    texts = [
        *TEMPLATES,
        *PLACES,
        *THINGS,
        *THIRDS,
        *sum(PAIRS, ()),
        ",",
        "<unk>",
    ]
    words = dict.fromkeys(word for text in texts for word in text.replace(",", "").split())
    vocabulary = {word: i for i, word in enumerate([*words, ","])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
