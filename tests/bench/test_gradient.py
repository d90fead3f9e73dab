"""The benchmark of the gradient runs, tells both ways apart, and leaves the model without gradients."""

import gradient
import overhead
import torch
import transformers


def test_both_ways_give_a_row():
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=20
    )
    model = transformers.BertForSequenceClassification(config).eval()
    batch = {"input_ids": torch.arange(16).view(2, 8), "labels": torch.tensor([0, 1])}
    rows = gradient.measure(overhead.Subject("tiny", model, batch, {gradient.OURS: 1e-9}), rounds=2)
    assert [row["condition"] for row in rows] == [gradient.OURS, gradient.USUAL]
    assert all(row["ms"] > 0 and row["ratio"] > 0 for row in rows)
    assert overhead.over(rows) == rows[:1]
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
