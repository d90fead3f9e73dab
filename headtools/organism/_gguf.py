"""A Llama in one GGUF file, written as an ordinary folder: no package but torch and tokenizers is needed.

The format is that of ggml's ``docs/gguf.md``: metadata, a list of tensors, and the tensors in blocks of 32 numbers.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save_file
from torch import Tensor

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_BLOCKS = {0: (1, 4), 3: (32, 20), 8: (32, 34)}  # numbers and bytes of a block: float32, Q4_1, Q8_0
_ALIGNMENT = 32
_NORMAL = 1  # the type of a token that is neither special nor unused
_NAMES = {
    r"^token_embd\.": "model.embed_tokens.",
    r"^output_norm\.": "model.norm.",
    r"^blk\.": "model.layers.",
    r"\.attn_norm\.": ".input_layernorm.",
    r"\.ffn_norm\.": ".post_attention_layernorm.",
    r"\.attn_([qkv])\.": r".self_attn.\1_proj.",
    r"\.attn_output\.": ".self_attn.o_proj.",
    r"\.ffn_(gate|up|down)\.": r".mlp.\1_proj.",
}


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the metadata and the tensors of a GGUF file, in half precision whatever their code.

    Raises ``ValueError`` for another format and for tensors of another code than float32, Q4_1 and Q8_0.
    """
    tensors = {}
    with open(path, "rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise ValueError(f"{path} begins with {magic!r}; expected a GGUF file")
        _take(file, "I")  # the version
        n_tensors, n_entries = _take(file, "Q"), _take(file, "Q")
        metadata = {_string(file): _value(file, _take(file, "I")) for _ in range(n_entries)}
        # Name, sizes from the innermost one, code of the numbers, and where they begin after what is listed.
        listed = [
            (_string(file), [_take(file, "Q") for _ in range(_take(file, "I"))], _take(file, "I"), _take(file, "Q"))
            for _ in range(n_tensors)
        ]
        begin = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
        for name, sizes, code, offset in listed:
            if code not in _BLOCKS:
                raise ValueError(f"{path}: the numbers of {name} have ggml's code {code}; read are 0, 3 and 8")
            file.seek(begin + offset)
            numbers, n_bytes = _BLOCKS[code]
            raw = bytearray(file.read(math.prod(sizes) // numbers * n_bytes))
            tensors[name] = _numbers(torch.frombuffer(raw, dtype=torch.uint8), code).reshape(sizes[::-1])
    return metadata, tensors


def _take(file: BinaryIO, code: str) -> Any:
    (value,) = struct.unpack(f"<{code}", file.read(struct.calcsize(f"<{code}")))
    return value


def _string(file: BinaryIO) -> str:
    return file.read(_take(file, "Q")).decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind == _ARRAY:
        of, n = _take(file, "I"), _take(file, "Q")
        return [_value(file, of) for _ in range(n)]
    return _take(file, _SCALARS[kind])


def _numbers(raw: Tensor, code: int) -> Tensor:
    """Return the numbers of blocks: a scale (and in Q4_1 a minimum) in half precision, then 4 or 8 bits a number."""
    if code == 0:
        return raw.view(torch.float32).half()
    blocks = raw.reshape(-1, _BLOCKS[code][1])
    scale = blocks[:, :2].view(torch.float16).float()
    if code == 8:
        return (scale * blocks[:, 2:].view(torch.int8).float()).half()
    minimum, packed = blocks[:, 2:4].view(torch.float16).float(), blocks[:, 4:]
    return (scale * torch.cat([packed & 15, packed >> 4], 1).float() + minimum).half()


def llama_from_gguf(file: Path, folder: Path) -> None:
    """Write the Llama model and the byte-level tokenizer of a GGUF file to a folder, in half precision.

    The last layer is the embedding, as in SmolLM2.
    """
    from transformers import LlamaConfig

    about, tensors = read_gguf(file)
    of = {key.removeprefix("llama."): value for key, value in about.items()}
    config = LlamaConfig(
        vocab_size=of["vocab_size"],
        hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"],
        num_hidden_layers=of["block_count"],
        num_attention_heads=of["attention.head_count"],
        num_key_value_heads=of["attention.head_count_kv"],
        head_dim=of["rope.dimension_count"],
        max_position_embeddings=of["context_length"],
        rms_norm_eps=of["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": of["rope.freq_base"]},
        bos_token_id=of["tokenizer.ggml.bos_token_id"],
        eos_token_id=of["tokenizer.ggml.eos_token_id"],
        pad_token_id=of["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
        architectures=["LlamaForCausalLM"],
        dtype="float16",
    )
    weights = {}
    for name, weight in tensors.items():
        if re.search(r"attn_[qk]\.", name):
            # llama.cpp rotates neighbouring numbers of a query or key, transformers the first half with the second.
            weight = weight.unflatten(0, (-1, config.head_dim // 2, 2)).transpose(1, 2).reshape(weight.shape)
        weights[renamed(name, _NAMES)] = weight.contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    _tokenizer(about, config.max_position_embeddings).save_pretrained(folder)


def renamed(name: str, names: Mapping[str, Any]) -> str:
    """Return a weight's name in transformers; ``names`` are patterns of other names, and what stands in their place.

    >>> renamed("blk.0.attn_q.weight", _NAMES)
    'model.layers.0.self_attn.q_proj.weight'
    """
    for theirs, ours in names.items():
        name = re.sub(theirs, ours, name)
    return name


def _tokenizer(about: Mapping[str, Any], length: int) -> Any:
    """Return the tokenizer that a GGUF file's metadata describes, for "smollm": bytes, digits one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    of = {key.removeprefix("tokenizer.ggml."): value for key, value in about.items()}
    if (of["model"], of["pre"]) != ("gpt2", "smollm"):
        raise ValueError(f"got a tokenizer of the kind {of['model']}, {of['pre']}; read is gpt2, smollm")
    words = of["tokens"]
    merges = [tuple(pair.split(" ")) for pair in of["merges"]]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, of["token_type"], strict=True) if kind != _NORMAL]
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in special])
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=length,
        chat_template=about.get("tokenizer.chat_template"),
        **{name: words[of[f"{key}_token_id"]] for name, key in named.items()},
    )
