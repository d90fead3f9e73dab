"""The benchmark measures what it says, and sees a cost that is there."""

import json
from contextlib import contextmanager

import overhead
import pytest
import timing
import torch
import transformers


@pytest.fixture
def tiny() -> overhead.Subject:
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    return overhead.Subject("tiny", model, {"input_ids": torch.arange(8)[None]}, {"busy": 2.0})


@contextmanager
def busy(model):
    """A context that costs as much as many passes."""
    yield
    for _ in range(200):
        torch.randn(100, 100) @ torch.randn(100, 100)


def test_every_condition_gives_a_row(tiny: overhead.Subject):
    rows = overhead.measure(tiny, rounds=2)
    assert [row["work"] for row in rows] == [condition.name for condition in overhead.CONDITIONS]
    assert all(row["s"] > 0 and row["ratio"] > 0 for row in rows)
    assert timing.markdown(rows).count("\n") == len(rows) + 1
    assert json.loads(json.dumps(rows)) == rows


def test_a_cost_over_its_bound_is_seen(tiny: overhead.Subject, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(overhead, "CONDITIONS", (overhead.Condition("busy", busy, "sdpa"),))
    (line,) = timing.over(overhead.measure(tiny, rounds=2))
    assert line.startswith("busy, tiny: ")
