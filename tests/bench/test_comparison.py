"""The comparison with peers: two processes, the same model, honest about what a peer cannot do."""

import sys
from typing import ClassVar

import comparison
import pytest

PEER = '''"""A peer that is headtools under another name, {what}."""
import torch, with_headtools


def works(kind, size):
    found = with_headtools.works(kind, size)
    {change}
    return {{name: found[name] for name in ("plain", "plain, 2 rows", "gradient", "relevance")}}
'''


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """A function that makes a peer, which changes what headtools does, and compares with it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(comparison.PEERS, "twin", "torch")

    def compare(change: str) -> list[dict]:
        (tmp_path / "with_twin.py").write_text(PEER.format(what="for a test", change=change))
        return comparison.measure("twin", "bert", "tiny", 1, {"twin": sys.executable})

    return compare


@pytest.mark.full
def test_a_peer_that_is_the_same_agrees_and_one_that_cannot_says_so(peer):
    rows = peer("found['relevance'] = lambda: 1 / 0")
    gradient, relevance = rows
    assert (gradient["work"], gradient["difference"], gradient["rounds"]) == ("gradient", 0.0, 1)
    assert gradient["ours_ratio"] > 1
    assert gradient["peer_s"] > 0
    assert "ZeroDivisionError" in relevance["said"]
    assert "cannot: ZeroDivisionError" in comparison.markdown(rows)


class Pretended:
    """A side that answers what the test wants; the first that is made is ours."""

    answers: ClassVar[list] = []

    def __init__(self, *_: object) -> None:
        self.told, self.numbers = self.answers.pop(0)

    def run(self, work: str) -> dict:
        return {"seconds": 1.0, "numbers": self.numbers}

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        pass


def pretend(monkeypatch, ours: tuple, its: tuple) -> list[dict]:
    monkeypatch.setattr(comparison, "Side", Pretended)
    monkeypatch.setattr(Pretended, "answers", [ours, its])
    return comparison.measure("lxt", "bert", "tiny", 2, {"lxt": "python"})


def test_another_model_is_not_compared_and_an_own_failure_is_no_row(monkeypatch):
    told = {"works": ["plain", "relevance"], "versions": {"lxt": "2.1"}}
    (row,) = pretend(monkeypatch, (told, {"0 0": 2.0}), (told, {"0 0": 2.0}))
    assert (row["version"], row["rounds"], row["ratio"], row["difference"]) == ("2.1", 2, 1.0, 0.0)
    with pytest.raises(RuntimeError, match="the plain passes differ"):
        pretend(monkeypatch, (told, {"0 0": 2.0}), (told, {"0 0": 2.1}))
    with pytest.raises(RuntimeError, match="own side failed: no memory"):
        pretend(monkeypatch, ({"error": "no memory"}, {}), (told, {}))


def test_a_peer_that_is_not_there_or_does_not_start_is_told(monkeypatch):
    (row,) = comparison.measure("lxt", "bert", "tiny", 1, {})
    assert row["said"] == "not installed"
    (row,) = pretend(monkeypatch, ({"works": []}, {}), ({"error": "ValueError: no map"}, {}))
    assert row["said"] == "ValueError: no map"


def test_leave_one_out_is_run_less_often(monkeypatch):
    told = {"works": ["plain", "leave-one-out"], "versions": {"lxt": "2.1"}}
    (row,) = pretend(monkeypatch, (told, {"0 0": 2.0}), (told, {"0 0": 2.0}))
    assert (row["work"], row["rounds"]) == ("leave-one-out", 1)
