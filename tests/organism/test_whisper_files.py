"""Whisper out of files like OpenAI's, made here of a tiny model: the same numbers, the same tokens, no code run."""

import base64
import json
import pickle

import pytest
import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration
from transformers.convert_slow_tokenizer import bytes_to_unicode

import headtools as ht
from headtools.organism import _whisper

WORDS = [b"th", b"the", b" f", b"ox", b" fox", b" the"]  # each of two earlier pieces
SPECIAL = 1608  # tokens that are no text: end, start, 99 languages, 6 signs, 1,501 times
RENAMED = {  # our names, and OpenAI's
    "layers": "blocks",
    "self_attn": "attn",
    "encoder_attn": "cross_attn",
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "out_proj": "out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "embed_tokens": "token_embedding",
}


@pytest.fixture
def files(tmp_path):
    """OpenAI's two files of a tiny model, and that model."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    letters = sorted(range(256), key=lambda byte: bytes_to_unicode()[byte])
    lines = [f"{base64.b64encode(word).decode()} {i}" for i, word in enumerate([bytes([b]) for b in letters] + WORDS)]
    (folder / "gpt2.tiktoken").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "vocab_size": 256 + len(WORDS) + SPECIAL}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    sizes |= {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 12, "init_std": 0.3}
    model = WhisperForConditionalGeneration(WhisperConfig(**sizes, pad_token_id=0, attn_implementation="eager")).eval()
    theirs = {}
    for name, weight in model.state_dict().items():
        if name == "proj_out.weight":
            continue
        parts = [RENAMED.get(part, part) for part in name.removeprefix("model.").split(".")]
        new = ".".join(parts).replace("embed_positions.weight", "positional_embedding")
        theirs[new.replace("encoder.layer_norm", "encoder.ln_post").replace("decoder.layer_norm", "decoder.ln")] = (
            weight
        )
    dims = {"n_vocab": sizes["vocab_size"], "n_mels": 8, "n_audio_state": 16, "n_audio_layer": 2, "n_audio_head": 2}
    dims |= {"n_audio_ctx": 20, "n_text_state": 16, "n_text_layer": 1, "n_text_head": 4, "n_text_ctx": 12}
    torch.save({"dims": dims, "model_state_dict": theirs}, folder / "tiny.en.pt")
    return folder, model


def test_the_model_and_the_tokenizer(files, tmp_path):
    unpacked, model = files
    (tmp_path / "plain").mkdir()
    _whisper.whisper_from_pickle(unpacked, tmp_path / "plain")
    assert not list((tmp_path / "plain").glob("*.pt"))
    again, tokenizer = ht.load(tmp_path / "plain")
    assert isinstance(again, WhisperForConditionalGeneration)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
        sound, ids = torch.randn(1, 8, 40), torch.tensor([[3, 5, 9]])
        wanted, got = (m(input_features=sound, decoder_input_ids=ids).logits for m in (model, again))
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert [site.key for site in ht.sites(again)][-1] == ("cross", 0)

    assert tokenizer.decode(tokenizer("the fox, naïve").input_ids, skip_special_tokens=True) == "the fox, naïve"
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("the fox").input_ids)
    assert tokens == ["<|startoftranscript|>", "<|notimestamps|>", "the", "Ġfox", "<|endoftext|>"]
    assert len(tokenizer) == again.config.vocab_size
    first = 256 + len(WORDS)
    names = tokenizer.convert_ids_to_tokens([first, first + 1, first + 2, first + 106, first + 107, len(tokenizer) - 1])
    assert names == ["<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|notimestamps|>", "<|0.00|>", "<|30.00|>"]
    settings = json.loads((tmp_path / "plain" / "generation_config.json").read_text())
    assert settings["alignment_heads"][0] == [1, 0]
    assert settings["no_timestamps_token_id"] == first + 106


def test_a_pickle_that_would_run_code_is_refused(files, tmp_path):
    class Evil:
        def __reduce__(self):
            return (tmp_path.joinpath("run").write_text, ("yes",))

    unpacked, _ = files
    torch.save({"dims": Evil()}, unpacked / "tiny.en.pt")
    with pytest.raises(pickle.UnpicklingError):
        _whisper.whisper_from_pickle(unpacked, tmp_path)
    assert not (tmp_path / "run").exists()
