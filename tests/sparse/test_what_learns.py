"""Which weights learn, and what is said where nothing could: frozen weights, adapters, no gradients, checkpointing."""

import copy
import warnings

import peft
import pytest
import torch

import headtools as ht
from headtools.heads.gates import gates
from headtools.sparse.fit_gates import fit_gates, recover

from ..heads.reference import state, untouched
from ..heads.zoo import error, fresh, run

RUN = {"steps": 2, "progress": False}


@pytest.fixture
def bert():
    model, batch = fresh("bert")
    return model, [batch | {"labels": batch["input_ids"]}]


@pytest.fixture
def adapted(bert):
    """BERT with LoRA, whose own weights are frozen."""
    model, batches = bert
    config = peft.LoraConfig(target_modules=["query", "value"], r=2, init_lora_weights=False)
    return peft.get_peft_model(model, config), batches


def changed(before, after):
    after = dict(after.named_parameters())
    return {name for name, parameter in before.named_parameters() if not torch.equal(parameter, after[name])}


LEARN = {
    "fit_gates": lambda model, batches, **options: fit_gates(model, batches, 0.1, **RUN, **options).model,
    "recover": lambda model, batches, **options: recover(model, batches, **RUN, **options),
}


@pytest.mark.parametrize("learn", LEARN)
def test_adapters_learn_and_their_base_does_not(adapted, learn):
    model, batches = adapted
    before, twin = state(model), copy.deepcopy(model)
    trained = LEARN[learn](model, batches)
    names = changed(model, trained)
    assert names
    assert all("lora_" in name for name in names)
    assert [p.requires_grad for p in trained.parameters()] == [p.requires_grad for p in model.parameters()]
    base, base_after = (m.base_model.model.bert.embeddings.state_dict() for m in (model, trained))
    assert all(torch.equal(base[name], base_after[name]) for name in base)
    assert not changed(twin, model)
    now = state(model)
    assert now["needs_grad"] == before["needs_grad"]
    assert now["training"] == before["training"]
    LEARN[learn](model, batches, in_place=True)
    assert changed(twin, model) == names


def test_gates_alone_leave_adapters_as_they_are_and_what_closed_is_cut_after_merging(adapted):
    model, batches = adapted
    with untouched(model):
        start = {site.key: torch.full((4,), 3.0) for site in ht.sites(model)}
        start["encoder", 1][0] = -3.0
        found = fit_gates(model, batches, 0.0, weights=None, start=start, **RUN)
    assert found.closed_heads == [("encoder", 1, 0)]
    with pytest.raises(ValueError, match="merge_and_unload"):
        found.cut()
    plain = copy.deepcopy(found.model).merge_and_unload()
    ht.prune(plain, found.closed_heads)
    batch = {name: batches[0][name] for name in ("input_ids", "attention_mask")}
    with gates(model, found.values()):
        assert error(run(model.eval(), batch), run(plain.eval(), batch)) < 1e-4


@pytest.mark.parametrize("learn", LEARN)
def test_frozen_weights_stay_frozen_and_a_frozen_model_is_refused(bert, learn):
    model, batches = bert
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layer.2" in name)
    names = changed(model, LEARN[learn](model, batches))
    assert names
    assert all("layer.2" in name for name in names)
    with untouched(model), pytest.raises(ValueError, match=r"frozen, bert\.\S+ among them.*requires_grad_\(True\)"):
        LEARN[learn](model, batches, weights=["bert.embeddings"])
    model.requires_grad_(False)
    with untouched(model), pytest.raises(ValueError, match="frozen"):
        LEARN[learn](model, batches)


@pytest.mark.parametrize("learn", LEARN)
@pytest.mark.parametrize(
    ("off", "back"),
    [(torch.no_grad, torch.enable_grad), (torch.inference_mode, lambda: torch.inference_mode(False))],
)
def test_no_gradients_is_said_before_anything_happens(bert, learn, off, back, tmp_path):
    model, batches = bert
    words = r"torch\.(no_grad|inference_mode)\(\) switches them off.*(enable_grad\(\)|inference_mode\(False\))"
    with untouched(model), off(), pytest.raises(RuntimeError, match=words):
        LEARN[learn](model, batches, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with off(), back():
        assert changed(model, LEARN[learn](model, batches))


def test_weights_made_without_gradients_are_refused():
    with torch.inference_mode():
        model, batch = fresh("bert")
    with pytest.raises(RuntimeError, match=r"made under torch\.inference_mode"):
        recover(model, [batch | {"labels": batch["input_ids"]}], **RUN)


def checkpointing(model, reentrant):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the name of this method changes with transformers
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    return model


def test_reentrant_checkpointing_is_refused_with_the_line_that_fixes_it(bert):
    model, batches = bert
    plain = fit_gates(model, batches, 0.1, **RUN)
    checkpointing(model, True)
    line = r'gradient_checkpointing_enable\(gradient_checkpointing_kwargs=\{"use_reentrant": False\}\)'
    with untouched(model), pytest.raises(ValueError, match=line):
        fit_gates(model, batches, 0.1, **RUN)
    with untouched(model), pytest.raises(ValueError, match=line):
        recover(model, batches, weights=["bert.encoder.layer.1"], **RUN)
    every = recover(copy.deepcopy(model), batches, **RUN)  # where all learns, the older kind is right, too
    alone = fit_gates(model, batches, 0.1, weights=None, **RUN)  # and no layer checkpoints in eval mode
    checkpointing(model, False)
    same = fit_gates(model, batches, 0.1, **RUN)
    assert (same.history - plain.history).abs().max().max() < 1e-5
    assert max(map(error, recover(model, batches, **RUN).parameters(), every.parameters())) < 1e-5
    assert alone.history.equals(fit_gates(model, batches, 0.1, weights=None, **RUN).history)


def test_adapters_learn_under_checkpointing(adapted):
    model, batches = adapted
    plain = fit_gates(model, batches, 0.1, **RUN)
    checkpointing(model.base_model.model, True)
    with pytest.raises(ValueError, match="use_reentrant"):
        fit_gates(model, batches, 0.1, **RUN)
    with pytest.raises(ValueError, match="use_reentrant"):
        recover(model, batches, **RUN)
    checkpointing(model.base_model.model, False)
    same = fit_gates(model, batches, 0.1, **RUN)
    assert (same.history - plain.history).abs().max().max() < 1e-5
    assert (
        not changed(plain.model, same.model)
        or max(map(error, plain.model.parameters(), same.model.parameters())) < 1e-5
    )


def test_a_loss_that_does_not_reach_the_gates_is_refused(bert):
    model, batches = bert

    def detached(outputs, batch):
        return outputs.loss.detach()

    for weights in (None, "all"):
        with untouched(model), pytest.raises(ValueError, match="does not depend on any gate"):
            fit_gates(model, batches, 0.1, loss=detached, weights=weights, **RUN)
