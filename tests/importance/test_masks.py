"""Masks in other forms, and labels that do not count, change no measure."""

import pytest
import torch

from headtools.importance.ablation import ablation
from headtools.importance.confidence import confidence
from headtools.importance.gradient import gradient

from ..heads.batches import by_pairs
from .test_gradient import labelled


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_a_mask_by_pairs_changes_no_measure(name):
    model, batch = labelled(name)
    other = batch | {"attention_mask": by_pairs(batch["attention_mask"].bool(), name != "bert")}
    for measure in (
        lambda b: confidence(model, b, exclude=[]).values,
        lambda b: gradient(model, b, per="position").values,
        lambda b: ablation(model, b, replacement="mean", progress=False).rows,
    ):
        plain, found = measure(batch), measure(other)
        for key, value in plain.items():
            assert torch.allclose(found[key], value, atol=1e-5), key


def test_labels_that_do_not_count_do_not_count_in_means():
    """Three more labels of -100 behind each text leave ablation by the mean as it was."""
    model, batch = labelled("t5")
    del batch["decoder_input_ids"]
    longer = batch | {"labels": torch.nn.functional.pad(batch["labels"], (0, 3), value=-100)}
    plain, found = (ablation(model, b, replacement="mean", progress=False).rows for b in (batch, longer))
    for key, value in plain.items():
        assert torch.allclose(found[key], value, atol=1e-5), key
