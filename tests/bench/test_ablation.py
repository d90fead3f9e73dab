"""The benchmark of ablation measures what it says, and sees a wrong number and a cost that is there."""

import ablation
import pytest
import timing
import torch
import transformers


@pytest.fixture
def tiny() -> ablation.Subject:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=20, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_()
    return ablation.Subject("tiny", model, {"input_ids": torch.arange(8).view(2, 4), "labels": torch.ones(2).long()})


def test_a_row_says_what_was_measured(tiny: ablation.Subject):
    row = ablation.measure(tiny, rounds=2)
    assert (row["work"], row["unit"], row["rounds"]) == (ablation.WORK, ablation.UNIT, 2)
    assert min(row["s"], row["unit_s"]) > 0
    assert row["difference"] <= row["tolerance"] == ablation.TOLERANCE
    assert timing.markdown([row]).count("\n") == 2


def test_wrong_numbers_and_high_costs_are_seen(tiny: ablation.Subject, monkeypatch: pytest.MonkeyPatch):
    plain = ablation.ours

    def slow_and_wrong(subject):
        for _ in range(20):
            ablation.naive(subject)
        return {key: value * 1.01 for key, value in plain(subject).items()}

    monkeypatch.setattr(ablation, "ours", slow_and_wrong)
    lines = timing.over([ablation.measure(tiny, rounds=1)])
    assert len(lines) == 2
    assert "the bound is 0.52" in lines[0]
    assert "differs by" in lines[1]


@pytest.mark.full  # makes models of 110 and 74 million weights
def test_the_subjects_are_of_the_sizes_told():
    bert, marian = ablation.bert(), ablation.marian()
    assert [bert.model.num_parameters() > 80e6, marian.model.num_parameters() > 40e6] == [True, True]
    assert bert.batch["attention_mask"].sum(1).tolist() == [64, 32]
    assert (marian.batch["labels"] == -100).sum() == 24
