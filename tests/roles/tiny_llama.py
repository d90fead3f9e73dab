"""A tiny causal model with grouped key-value heads and random weights, and a byte-level tokenizer."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from headtools.roles.plain_text import natural_text


def tiny_llama(layers=2, heads=6, kv_heads=2, seed=0, vocabulary=300):
    """Return a Llama in eval mode whose weights are large enough that heads differ."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        initializer_range=0.4,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def byte_tokenizer(vocabulary=300):
    """Return a byte-level tokenizer trained on the English corpus, with <s> and </s>."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<s>", "</s>"],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    inner.train_from_iterator(natural_text("english", "train", 40), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="</s>")
