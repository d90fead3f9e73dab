"""Sites are found once for a model, and again after whatever would make the known ones wrong."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import headtools as ht

from .homemade import attention
from .zoo import fresh, run

KEY = ("encoder", 0)


def test_sites_are_found_once():
    model, batch = fresh("bert")
    known = ht.sites(model)
    run(model, batch)
    model.train()
    model.eval()
    with ht.record(model), ht.ablate(model, {KEY: [0]}, replacement="uniform"):
        assert ht.sites(model) is known
    assert ht.sites(model) is known


def test_a_model_is_not_kept_alive():
    model, _ = fresh("bert")
    ht.sites(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    module = attention()[0][0]  # its own site holds it
    ht.sites(module)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_pruning_and_loading():
    model, batch = fresh("bert")
    ht.sites(model)
    ht.prune(model, {KEY: [1, 2], ("encoder", 1): [0, 1, 2, 3]})
    assert [site.heads for site in ht.sites(model)] == [2, 1, 4]
    assert [site.empty for site in ht.sites(model)] == [False, True, False]
    other, _ = fresh("bert")
    ht.sites(other)
    ht.replay(other, ht.pruned(model))
    other.load_state_dict(model.state_dict())
    assert [site.original for site in ht.sites(other)] == [(0, 3), (), (0, 1, 2, 3)]
    assert torch.equal(run(model, batch), run(other, batch))
    known = ht.sites(other)
    other.load_state_dict(model.state_dict())  # the same modules, with other numbers
    assert ht.sites(other) is known
    assert torch.equal(known[KEY].w_o, ht.sites(model)[KEY].w_o)


def test_one_head_that_is_cut_leaves_every_shape():
    model, _ = fresh("bert")
    ht.prune(model, {KEY: [0, 1, 2]})
    assert not ht.sites(model)[KEY].empty
    ht.prune(model, {KEY: [0]})
    assert ht.sites(model)[KEY].empty


def test_a_copy_has_sites_of_its_own():
    model, batch = fresh("bert")
    ht.sites(model)
    copied = copy.deepcopy(model)
    assert ht.sites(copied)[KEY].module is copied.get_submodule(ht.sites(model)[KEY].name)
    plain = run(model, batch)
    with ht.ablate(copied, {KEY: [0]}):
        assert torch.equal(run(model, batch), plain)
        assert not torch.equal(run(copied, batch), plain)


@pytest.mark.parametrize("part", ["attention.self", "attention.self.query", "attention.output.dense"])
def test_a_module_that_was_replaced(part):
    """By an equal one: all shapes and classes are as before, and hooks on the old one would see nothing."""
    model, batch = fresh("bert")
    ht.sites(model)
    where = f"bert.encoder.layer.0.{part}"
    model.set_submodule(where, copy.deepcopy(model.get_submodule(where)))
    site, layer = ht.sites(model)[KEY], model.bert.encoder.layer[0]
    assert site.module is layer.attention.self
    assert site.q.module is layer.attention.self.query
    assert site.out is layer.attention.output.dense
    plain = run(model, batch)
    with ht.ablate(model, {KEY: [0]}):
        assert not torch.equal(run(model, batch), plain)


def test_is_causal_and_sizes_that_are_set():
    model = attention()[0]
    del model[0].is_causal
    assert ht.sites(model).guessed
    model.is_causal = True
    assert (ht.sites(model).all[0].kind, ht.sites(model).guessed) == ("decoder", ())
    model.is_causal = False
    assert ht.sites(model).all[0].kind == "encoder"
    assert ht.sites(model).all[0].heads == 4
    model[0].head_dim, model[0].num_heads = 6, 2
    model[0].num_key_value_heads = 1
    assert ht.sites(model).all[0].heads == 2


def test_a_configuration_that_changes():
    model, _ = fresh("clip")
    kinds = [site.kind for site in ht.sites(model)]
    assert "decoder" in kinds
    model.text_model.config.is_causal = False
    assert {site.kind for site in ht.sites(model)} == {"encoder"}


def test_adapters_that_are_added_and_merged():
    peft = pytest.importorskip("peft")
    model, batch = fresh("bert")
    before = ht.sites(model)
    targets = ["query", "attention.output.dense"]
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    site = ht.sites(adapted)[KEY]
    assert site.out is not before[KEY].out  # the adapter around it, which reads z
    plain = run(adapted, batch)
    with ht.ablate(adapted, {KEY: [0]}), ht.record(adapted, want="z") as recorded:
        assert not torch.equal(run(adapted, batch), plain)
    assert not recorded[KEY].z[:, :, 0].any()
    merged = adapted.merge_and_unload()
    assert isinstance(ht.sites(merged)[KEY].out, nn.Linear)
    assert torch.allclose(run(merged, batch), plain, atol=1e-4)


def test_sites_found_under_inference_mode_serve_gradients():
    model, _ = fresh("bert")
    with torch.inference_mode():
        ht.sites(model)
    site = ht.sites(model)[KEY]
    site.q.weight().square().sum().backward()
    assert site.q.module.weight.grad.abs().sum() > 0


def test_all_but_a_kind():
    marian, bert = ht.sites(fresh("marian")[0]), ht.sites(fresh("bert")[0])
    assert [site.kind for site in marian.pick("not cross")] == ["encoder"] * 2 + ["decoder"] * 2
    assert {site.kind for site in marian.pick(["not encoder"])} == {"decoder", "cross"}
    assert bert.pick("not cross") == list(bert)
    assert bert.pick("not encoder") == []
    assert marian.pick(["not cross", ("encoder", 0)]) == marian.pick("not cross")
    clip = ht.sites(fresh("clip")[0])
    assert {site.stack for site in clip.pick("not vision_model")} == {"text_model"}
