"""The tables of real models, measured on a tiny model."""

import pytest

import headtools as ht
from headtools.organism import real_models as found
from recipes import measure_real

from ..roles.tiny_llama import byte_tokenizer, tiny_llama


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(found.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.weekly  # a minute, and run by whoever changes the recipe
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
