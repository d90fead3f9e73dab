"""The benchmark of a training step measures what it says, and sees a cost that is there."""

import gates
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
    model, ids = transformers.BertForMaskedLM(config), torch.arange(8)[None]
    return overhead.Subject("tiny", model, {"input_ids": ids, "labels": ids}, {gates.CONDITION: 2.0})


def test_both_steps_train_and_the_model_keeps_its_mode(tiny: overhead.Subject):
    model = tiny.model.eval()
    before = [p.detach().clone() for p in model.parameters()]
    row = gates.measure(tiny, rounds=2)
    assert min(row["s"], row["unit_s"]) > 0
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert timing.markdown([row]).count("\n") == 2


def test_a_cost_over_its_bound_is_seen(tiny: overhead.Subject, monkeypatch: pytest.MonkeyPatch):
    plain = gates.plain_step

    def busy(model, batch):
        step = plain(model, batch)
        return lambda: [step() for _ in range(20)]

    monkeypatch.setattr(gates, "gated_step", busy)
    (line,) = timing.over([gates.measure(tiny, rounds=2)])
    assert line.startswith("step with gates, tiny: ")
