"""A tokenizer and a tiny model for the task with names."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from recipes._real_names import PAIRS, PLACES, TEMPLATES, THINGS, THIRDS


@pytest.fixture(scope="session")
def names_tokenizer():
    """Return a tokenizer to which every word of the prompts is one token."""
    texts = [*TEMPLATES, *PLACES, *THINGS, *THIRDS, *sum(PAIRS, ()), ",", "<unk>"]
    words = dict.fromkeys(word for text in texts for word in text.replace(",", "").split())
    vocabulary = {word: i for i, word in enumerate([*words, ","])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.fixture(scope="session")
def llama(names_tokenizer):
    """Return a function that makes a tiny Llama of these words, two heads to a key."""

    def make(layers):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            sizes = {"vocab_size": len(names_tokenizer), "hidden_size": 32, "intermediate_size": 32}
            heads = {"num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2}
            return LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.4)).eval()

    return make
