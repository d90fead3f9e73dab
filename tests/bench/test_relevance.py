"""The benchmark of relevance measures what it says, and sees a cost that is there."""

import relevance as bench
import timing
import torch
import transformers


def tiny() -> bench.Subject:
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    model = transformers.BertForSequenceClassification(config).eval()
    return bench.Subject("tiny", model, {"input_ids": torch.arange(8)[None]}, lambda o, _b: o.logits.amax(-1))


def test_every_rule_gives_a_row():
    subject = tiny()
    rows = bench.measure(subject, 2, {"attnlrp": 1.08, "zplus": None})
    assert [row["work"] for row in rows] == ["rules: attnlrp", "rules: zplus"]
    assert all(row["s"] > 0 and row["ratio"] > 0 for row in rows)
    assert timing.markdown(rows).count("\n") == len(rows) + 1
    assert all(parameter.requires_grad for parameter in subject.model.parameters())


def test_a_cost_over_its_bound_is_seen(monkeypatch):
    monkeypatch.setattr(bench, "plain", lambda _subject: None)
    (line,) = timing.over(bench.measure(tiny(), 2, {"attnlrp": 1.08}))
    assert line.startswith("rules: attnlrp, tiny: ")
