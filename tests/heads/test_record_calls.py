"""Recording over many calls and beside other contexts: streaming, shared layers, nesting, exceptions."""

import pytest
import torch

import headtools as ht

from .reference import assert_same_state, checkpoint, state
from .zoo import error, fresh, logits, run, valid, zoo_model

CLOSE = 1e-5


def test_every_configuration_gets_its_own_name_back():
    model, batch = fresh("clip")
    model.text_model.config._attn_implementation = "eager"
    before = state(model)
    assert len({name for _, name in before["attention"].values()}) == 2
    with ht.record(model) as r:
        run(model, batch)
    assert_same_state(before, state(model))
    assert len(r) == 5


def test_reduce_folds_calls_and_keeps_no_map():
    model, batch = zoo_model("bert")
    calls = []

    def count(site, captured, before):
        calls.append((site.key, captured.maps.shape))
        return captured.maps.sum((0, 2, 3)) + (0 if before is None else before)

    with ht.record(model, want="maps", accumulate=count) as folded:
        for row in range(3):
            run(model, {key: value[row : row + 1] for key, value in batch.items()})
    with ht.record(model, want="maps") as full:
        run(model, batch)
    assert len(calls) == 9
    assert all(shape == (1, 4, 7, 7) for _, shape in calls)
    for site in ht.sites(model):
        assert folded[site.key].shape == (4,)
        assert error(folded[site.key], full[site.key].maps.sum((0, 2, 3))) <= 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian"])
def test_generate_is_recorded_step_by_step(name):
    model, batch = zoo_model(name, "left")
    batch = {key: value for key, value in batch.items() if key != "decoder_input_ids"}
    steps = []
    with ht.record(model, accumulate=lambda site, captured, _: steps.append((site.key, captured.maps.shape[2:]))):
        model.generate(**batch, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    first = [shape for key, shape in steps if key == ("decoder", 0)]
    start = 7 if name != "marian" else 1
    assert first == [(start, start), *((1, start + step) for step in range(1, 4))]


def test_tensors_are_detached_unless_asked():
    model, batch = zoo_model("bert")
    with ht.record(model) as r:
        model(**batch)
    assert not r["encoder", 0].maps.requires_grad
    assert not r["encoder", 0].z.requires_grad
    with ht.record(model, grad=True) as r:
        output = logits(model(**batch))
    gradient = torch.autograd.grad(output.sum(), [r["encoder", 0].z, r["encoder", 2].maps], retain_graph=False)
    assert all(part.abs().max() > 0 for part in gradient)


def test_a_gate_inside_a_record_and_a_record_inside_a_gate():
    model, batch = zoo_model("bert")
    heads = {("encoder", 0): [1]}
    before = state(model)
    with ht.ablate(model, heads), ht.record(model) as inner:
        inside = run(model, batch)
    with ht.ablate(model, heads):
        alone = run(model, batch)
    assert inner["encoder", 0].z[:, :, 1].abs().max() == 0, "the record sees what the output projection reads"
    assert error(valid("bert", inside, batch), valid("bert", alone, batch)) <= CLOSE
    with ht.record(model) as outer, ht.ablate(model, heads):
        run(model, batch)
    with ht.record(model) as plain:
        run(model, batch)
    assert error(outer["encoder", 0].maps, plain["encoder", 0].maps) == 0
    assert error(outer["encoder", 1].maps, inner["encoder", 1].maps) <= CLOSE
    assert_same_state(before, state(model))


def test_checkpointing_records_each_layer_once():
    model, batch = fresh("bert")
    with ht.record(model, grad=True) as r:
        logits(model(**batch)).sum()
    model.train()
    checkpoint(model)
    counted = []
    leaf = {("encoder", 0): torch.ones(4, requires_grad=True)}
    with ht.gates(model, leaf), ht.record(model, training=True) as repeated:
        logits(model(**batch)).sum().backward()
    assert all(error(repeated[key].maps, r[key].maps) <= CLOSE for key in r)
    with (
        ht.gates(model, leaf),
        ht.record(model, training=True, accumulate=lambda site, captured, _: counted.append(site.key)),
    ):
        logits(model(**batch)).sum().backward()
    assert len(counted) == 3, "a reduction counts recomputed layers twice"
