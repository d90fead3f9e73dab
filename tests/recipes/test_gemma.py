"""The second family: windows by design are windows by measurement, cuts are what they are called, tables add up."""

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

import headtools as ht
from recipes import gemma


def tiny():
    torch.manual_seed(0)
    config = Gemma3TextConfig(
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=60,
        sliding_window=4,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )
    return Gemma3ForCausalLM(config).eval()


def test_a_window_of_the_design_is_one_of_the_measurement(monkeypatch):
    monkeypatch.setattr(gemma, "WINDOW", 4)
    monkeypatch.setattr(gemma, "NEAR", 2)
    batches = [{"input_ids": torch.randint(5, 60, (1, 20))} for _ in range(2)]
    rows = gemma.windows(tiny(), batches)
    assert [row["kind"] for row in rows] == ["window"] * 8 + ["global"] * 4
    parts = torch.tensor([[row[part] for part in ("first", "near", "middle", "beyond")] for row in rows])
    assert torch.allclose(parts.sum(1), torch.ones(12), atol=1e-5)
    assert parts[:8, [0, 3]].abs().max() == 0
    assert parts[8:, 3].min() > 0.2  # most of 20 tokens


def test_the_tables_hold_what_their_windows_must():
    table = ht.shipped_real("gemma3", "windows")
    assert table[["first", "near", "middle", "beyond"]].sum(axis=1).to_numpy() == pytest.approx(1.0, abs=2e-3)
    assert table[table.kind == "window"][["first", "beyond"]].to_numpy().max() == 0
    assert len(ht.shipped_real("gemma3", "heads")) == 72
    cut = ht.shipped_real("gemma3", "cut")
    assert ((cut.rise_low <= cut.rise) & (cut.rise <= cut.rise_high)).all()
