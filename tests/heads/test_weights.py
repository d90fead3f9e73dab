"""Only plain floating-point weights are read, sliced or saved; z and gates work whatever computes a layer."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

import headtools as ht
from headtools.geometry.circuits import ov

from .zoo import fresh, run

KEY = ("encoder", 0)
LAYER = "bert.encoder.layer.0.attention"


def lora(model):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["value", "attention.output.dense"], init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


def changed(change, part="output.dense"):
    """A model in which something else makes the weight of one projection."""

    def build(model):
        change(model.get_submodule(f"{LAYER}.{part}"))
        return model

    return build


def quantised(model):
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, inplace=True)


class Subclass(torch.Tensor):
    """Stands for a quantised weight that says it is float32, as torchao's do."""

    __module__ = "torchao.quantization"


def wrapped_tensor(layer):
    layer._parameters["weight"] = nn.Parameter(layer.weight.detach().as_subclass(Subclass))


WAYS = {
    "adapter": (lora, r"model = model\.merge_and_unload\(\)"),
    "weight norm": (changed(parametrizations.weight_norm), "is computed by torch.nn.utils"),
    "old weight norm": (changed(weight_norm, "self.value"), "is computed by torch.nn.utils"),
    "spectral norm": (changed(spectral_norm), "is computed by torch.nn.utils"),
    "mask": (changed(lambda layer: prune.random_unstructured(layer, "weight", 0.5)), "is computed by torch.nn.utils"),
    "masked bias": (changed(lambda layer: prune.random_unstructured(layer, "bias", 0.5), "self.value"), "is computed"),
    "quantised": (quantised, "quantised.*load the model in floating point"),
    "tensor subclass": (changed(wrapped_tensor), "quantised.*load the model in floating point"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", WAYS)
def test_weights_that_are_not_plain(way):
    build, words = WAYS[way]
    model, batch = fresh("bert")
    model = build(model).eval()
    plain = run(model, batch)
    with ht.gates(model, {KEY: torch.ones(4)}):
        assert torch.equal(run(model, batch), plain)
    with ht.ablate(model, {KEY: [1]}), ht.record(model, want="z") as seen:
        assert not torch.equal(run(model, batch), plain)
    assert seen[KEY].z[:, :, 0].any()
    assert not seen[KEY].z[:, :, 1].any()
    for call in (lambda: ov(model), lambda: ht.prune(model, {KEY: [0]})):
        with pytest.raises(ValueError, match=words):
            call()
    assert torch.equal(run(model, batch), plain)


def test_a_trained_copy_of_attention_is_refused():
    """PEFT keeps the original beside it, and hooks on that would see nothing."""
    peft = pytest.importorskip("peft")
    model, _ = fresh("bert")
    config = peft.LoraConfig(target_modules=["intermediate.dense"], modules_to_save=["attention"])
    with pytest.raises(ValueError, match=r"trained copy of attention.*merge_and_unload\(\)"):
        ht.sites(peft.get_peft_model(model, config))


def test_adapters_elsewhere_are_refused_too():
    """They would be lost in what is saved, and merged into other shapes after pruning."""
    peft = pytest.importorskip("peft")
    model, batch = fresh("bert")
    config = peft.LoraConfig(target_modules=["intermediate.dense"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config).eval()
    with pytest.raises(ValueError, match=r"adapters of PEFT; merge them first: model = model\.merge_and_unload\(\)"):
        ht.prune(adapted, {KEY: [0]})
    with ht.ablate(adapted, {KEY: [0]}):
        expected = run(adapted, batch)
    merged = adapted.merge_and_unload()
    ht.prune(merged, {KEY: [0]})
    assert torch.allclose(run(merged, batch), expected, atol=1e-4)
