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
    """Stands for torchao's weights, which say that they are float32 and can be neither read nor added up."""

    __module__ = "torchao.quantization"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") in ("sum", "isfinite", "isnan", "__getitem__"):
            raise NotImplementedError(f"Int8Tensor dispatch: {function.__name__}")
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result.as_subclass(torch.Tensor) if function is nn.functional.linear else result


class Blocked(Subclass):
    """Likewise, and no gradient flows through it, as with int8 activations."""

    __module__ = "torchao.quantization"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        return result.detach() if function is nn.functional.linear else result


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


@pytest.mark.parametrize("of", ["bert.encoder.layer.1.intermediate.dense", KEY])
def test_weights_of_torchao(of):
    """Outputs and gates of quantised layers are promised, gradients where they flow."""
    measured, words = {}, "none flows through .*load the model in floating point"
    for kind in (None, Subclass, Blocked):
        model, batch = fresh("bert")
        layer = ht.sites(model)[of].out if of == KEY else model.get_submodule(of)
        if kind:
            layer._parameters["weight"] = nn.Parameter(layer.weight.detach().as_subclass(kind), requires_grad=False)
        batch = batch | {"labels": batch["input_ids"]}
        measured[kind] = [ht.ablation(model, batch), ht.ablation(model, batch, replacement="mean", reference=batch)]
        if kind is Blocked:
            with pytest.raises(TypeError, match=words):
                ht.gradient(model, batch)
        else:
            measured[kind].append(ht.gradient(model, batch))
    for plain, *others in zip(*measured.values(), strict=False):
        assert all(torch.equal(plain.flat(), other.flat()) for other in others)


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
