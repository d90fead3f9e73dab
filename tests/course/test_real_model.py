"""A lesson's live cell: it runs where the model is, says so where it is not, and leaves the lesson's names alone."""

import pytest

import headtools as ht
from headtools.organism import load


def test_it_runs_where_the_model_is(monkeypatch):
    asked = []

    def here(name, fetch):
        asked.append((name, fetch))
        return "model", "tokenizer"

    monkeypatch.setattr(load, "load", here)
    given = []

    @ht.live("smollm2")
    def on_the_real_model(real, reads):
        given.append((real, reads))

    assert given == [("model", "tokenizer")]
    assert asked == [("smollm2", False)], "nothing is downloaded"
    assert on_the_real_model is None


def test_it_says_where_the_model_is_not(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HEADTOOLS_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    @ht.live("smollm2-base")
    def on_the_real_model(real, reads):
        raise AssertionError("called without a model")

    assert capsys.readouterr().out == (
        "SmolLM2-135M is not on this machine: ht.load('smollm2-base') downloads it, once.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_function_is_the_readers_own(monkeypatch):
    """Also one that looks like a missing model."""
    monkeypatch.setattr(load, "load", lambda name, fetch: ("model", "tokenizer"))
    with pytest.raises(FileNotFoundError, match="mine"):

        @ht.live("smollm2")
        def on_the_real_model(real, reads):
            raise FileNotFoundError("mine")
