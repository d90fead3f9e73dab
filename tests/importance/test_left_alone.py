"""However a measure ends, the model is as it was; dropout is off and gradients need not be on.

That every measure leaves a training model as it was, the differential harness tests as well.
"""

from functools import partial

import pytest
import torch

import headtools as ht

from ..heads.reference import untouched
from ..heads.zoo import fresh, logits
from .test_gradient import close, labelled

MEASURES = {
    "gradient": ht.gradient,
    "ablation": partial(ht.ablation, progress=False),
    "relevance": partial(ht.relevance, rules="voita"),
}
EACH = pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)


def score(outputs, _batch):
    return logits(outputs).flatten(1).logsumexp(1)


@EACH
@pytest.mark.parametrize("name", ["gpt2", "marian", "t5"])
def test_a_model_with_frozen_parts_and_parts_that_train_is_left_as_it_was(name, measure):
    """Also when the loss stops it: in the run of the batch, in trials, or in the middle of a replay."""
    model, batch = fresh(name)
    next(model.parameters()).requires_grad_(False)
    model.train()
    next(model.children()).eval()
    with untouched(model):
        measure(model, batch, score)
    for runs in (0, 2, 5) if measure is MEASURES["ablation"] else (0,):
        left = iter(range(runs))

        def stopping(outputs, batch, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return score(outputs, batch)

        with untouched(model), pytest.raises(KeyboardInterrupt):
            measure(model, batch, stopping)
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.is_grad_enabled()
    assert not torch.overrides._get_current_function_mode_stack()


@EACH
def test_dropout_is_off_and_gradients_need_not_be_on(measure):
    _, batch = labelled("bert")
    model, _ = fresh("bert")
    expected = measure(model, batch).rows
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            close(measure(model, batch).rows, expected)
    for module in model.train().modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    close(measure(model, batch).rows, expected)
