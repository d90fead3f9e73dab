"""Weights that are not all of what a layer computes: adapters of PEFT, norms, masks and quantised layers.

What is read is what the layer computes, found here with code of its own; what would be changed is refused by name.
"""

import copy
import warnings

import peft
import pytest
import torch
import torch.nn.utils.prune
from torch import nn

import headtools as ht
from headtools.geometry.circuits import ov, qk
from headtools.heads._weights import bias_of, shape_of, weight_of

from .reference import untouched
from .zoo import error, fresh, run

LORA = {
    "bert": ["query", "value"],
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["q_proj", "v_proj", "o_proj"],
    "t5": ["q", "v", "o"],
}


def adapted(name, kind=peft.LoraConfig, **options):
    """A model with adapters that do something, and a batch."""
    model, batch = fresh(name)
    if kind is peft.LoraConfig:
        options = {"r": 3, "lora_alpha": 8, "init_lora_weights": False, "fan_in_fan_out": name == "gpt2"} | options
    torch.manual_seed(0)
    config = kind(**({"target_modules": LORA[name]} | options))
    return peft.get_peft_model(model, config).eval(), batch


def merged(model):
    """The same model with plain weights, merged by PEFT."""
    return copy.deepcopy(model).merge_and_unload()


def by_probing(layer):
    """A layer's weight (in, out) and bias, from what it makes of unit vectors."""
    with torch.no_grad():
        bias = layer(torch.zeros(1, shape_of(layer)[1]))[0]
        return layer(torch.eye(shape_of(layer)[1])) - bias, bias


@pytest.mark.parametrize("name", LORA)
def test_sites_of_a_model_with_lora_are_those_of_the_merged_model(name):
    model, _ = adapted(name)
    ours, plain = ht.sites(model), ht.sites(merged(model))
    for attribute in ("key", "heads", "kv_heads", "head_dim", "value_dim"):
        assert [getattr(site, attribute) for site in ours] == [getattr(site, attribute) for site in plain]


@pytest.mark.parametrize("name", LORA)
def test_contributions_and_circuits_count_lora(name):
    model, batch = adapted(name)
    plain = merged(model)
    with ht.record(model, want="z") as recorded:
        ours = run(model, batch)
    assert error(ours, run(plain, batch)) < 1e-4
    circuits, score = ov(model), qk(model, anyway=True) if name == "bert" else None
    for site, other in zip(ht.sites(model), ht.sites(plain), strict=True):
        weight = other.out.weight if name == "gpt2" else other.out.weight.T
        naive = torch.stack(
            [recorded[site].z[..., h, :] @ part for h, part in enumerate(weight.split(site.value_dim))], 2
        )
        assert error(ht.contributions(site, recorded[site].z), naive) < 1e-4
        fraction = site.heads // site.kv_heads
        for head in range(site.heads):
            value, _ = by_probing(other.v.module)
            value = value[:, other.v.rows[head // fraction]]
            matrix = value @ weight[head * site.value_dim : (head + 1) * site.value_dim]
            assert error(circuits[site.key][head].matrix(), matrix) < 1e-4
            if score:
                query, key = by_probing(other.q.module)[0], by_probing(other.k.module)[0]
                product = query[:, other.q.rows[head]] @ key[:, other.k.rows[head]].T
                assert error(score[site.key][head].matrix(), product) < 1e-4


def test_weights_with_lora_are_differentiable():
    model, _ = adapted("bert", target_modules=["attention.output.dense"])
    layer = ht.sites(model)["encoder", 0].out
    ht.sites(model)["encoder", 0].w_o.sum().backward()
    assert layer.lora_A["default"].weight.grad.abs().sum() > 0
    assert layer.base_layer.weight.grad is None, "it is frozen"


KINDS = {
    "dora": (peft.LoraConfig, {"use_dora": True}),
    "rslora": (peft.LoraConfig, {"use_rslora": True}),
    "bias": (peft.LoraConfig, {"lora_bias": True}),
    "dropout": (peft.LoraConfig, {"lora_dropout": 0.5}),
    "loha": (peft.LoHaConfig, {"r": 3, "init_weights": False}),
    "lokr": (peft.LoKrConfig, {"r": 3, "init_weights": False}),
    "adalora": (peft.AdaLoraConfig, {"init_r": 3, "total_step": 9, "init_lora_weights": False}),
    "oft": (peft.OFTConfig, {"oft_block_size": 4, "init_weights": False}),
    "vera": (peft.VeraConfig, {"r": 3, "init_weights": False}),
    "ia3": (peft.IA3Config, {"feedforward_modules": [], "init_ia3_weights": False}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_adapters_give_the_weight_that_they_apply(kind):
    config, options = KINDS[kind]
    model, _ = adapted("bert", config, **options)
    for site in ht.sites(model)["encoder"]:
        with untouched(model):
            weight, bias = site.v.weight(), site.v.bias()
        probed, constant = by_probing(site.v.module)
        assert error(weight.mT, probed[:, site.v.rows].movedim(1, 0)) < 1e-5
        assert error(bias, constant[site.v.rows]) < 1e-5
    layer = site.v.module
    assert error(weight_of(layer), layer.base_layer.weight) > 0.05


def test_an_adapter_of_an_unknown_kind_is_refused_by_name():
    model, _ = adapted("bert", peft.HRAConfig, r=4)
    with untouched(model), pytest.raises(ValueError, match=r"hra.*merge it: model = model\.merge_and_unload\(\)"):
        ov(model)


def test_adapters_that_are_several_disabled_or_merged():
    model, _ = adapted("bert", lora_bias=True)
    options = {"r": 2, "lora_alpha": 5, "init_lora_weights": False, "target_modules": ["value"]}
    model.add_adapter("second", peft.LoraConfig(**options))
    layer = ht.sites(model)["encoder", 0].v.module

    def check():
        weight, bias = weight_of(layer), bias_of(layer)
        probed, constant = by_probing(layer)
        assert error(weight.T, probed) < 1e-5
        assert error(bias, constant) < 1e-5
        return weight.detach()

    first = check()
    model.base_model.set_adapter(["default", "second"])
    assert error(check(), first) > 0.05
    model.base_model.set_adapter("second")
    second = check()
    with model.disable_adapter():
        assert torch.equal(check(), layer.base_layer.weight)
    model.merge_adapter()
    assert error(check(), second) < 1e-5
    with model.disable_adapter(), pytest.raises(ValueError, match="merged and disabled"):
        weight_of(layer)


@pytest.mark.parametrize("kind", ["dropout", "dora", "loha"])
def test_dropout_in_an_adapter_that_trains_is_refused(kind):
    config, options = KINDS[kind]
    options = options | ({"module_dropout": 0.5} if kind == "loha" else {"lora_dropout": 0.5})
    model, _ = adapted("bert", config, **options)
    model.train()
    with untouched(model), pytest.raises(ValueError, match=r"applies dropout.*model\.eval\(\)"):
        ov(model)


def test_a_trained_copy_of_a_layer_is_what_runs():
    model, batch = adapted("bert", target_modules=["intermediate.dense"], modules_to_save=["attention"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(0.1 if "modules_to_save" in name else 0.0)
    assert ht.sites(model).n_heads == 12
    with ht.record(model) as recorded:
        run(model, batch)
    site = ht.sites(model)["encoder", 1]
    assert site.key in recorded.captured
    assert error(site.w_o, ht.sites(merged(model))["encoder", 1].w_o) == 0
    model, batch = adapted("bert", target_modules=["value"], modules_to_save=["query"])
    plain = merged(model)
    assert error(qk(model)["encoder", 1].matrix(), qk(plain)["encoder", 1].matrix()) == 0


# --- what torch itself puts around weights ----------------------------------------------------------------------------


def old(function):
    """One of torch's older functions, which tell users to take the newer ones."""

    def apply(layer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(layer)

    return apply


AROUND = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "older weight_norm": old(nn.utils.weight_norm),
    "older spectral_norm": old(nn.utils.spectral_norm),
    "prune": lambda layer: nn.utils.prune.l1_unstructured(layer, "weight", 0.5),
    "prune twice": lambda layer: nn.utils.prune.random_unstructured(AROUND["prune"](layer), "weight", 0.5),
}
LINES = {
    "older weight_norm": r"remove_weight_norm\(",
    "older spectral_norm": r"remove_spectral_norm\(",
    "prune": r"torch\.nn\.utils\.prune\.remove\(",
}


def wrapped(name, wrapper):
    """A model with one of torch's wrappers around two of its projections, after a change that no run has seen yet."""
    torch.manual_seed(0)
    model, batch = fresh(name)
    for site in ht.sites(model):
        AROUND[wrapper](site.out)
        AROUND[wrapper](site.v.module)
    model.eval()
    run(model, batch)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return model, batch


@pytest.mark.parametrize("wrapper", AROUND)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_weights_that_are_computed_are_up_to_date(name, wrapper):
    model, _ = wrapped(name, wrapper)
    for site in ht.sites(model):
        ours, value = site.w_o, site.v.weight()
        probed, _ = by_probing(site.out)
        assert error(ours.flatten(0, 1), probed) < 1e-5
        assert error(value.mT, by_probing(site.v.module)[0][:, site.v.rows].movedim(1, 0)) < 1e-5


@pytest.mark.parametrize("wrapper", ["spectral_norm", "older spectral_norm"])
def test_an_estimate_that_moves_is_refused(wrapper):
    model, _ = wrapped("bert", wrapper)
    model.train()
    with untouched(model), pytest.raises(ValueError, match=r"another estimate in every forward.*model\.eval\(\)"):
        ov(model)


@pytest.mark.parametrize("wrapper", AROUND)
def test_what_changes_weights_refuses_computed_ones_by_name(wrapper, tmp_path):
    model, batch = wrapped("bert", wrapper)
    line = LINES.get(wrapper.removesuffix(" twice"), r"parametrize\.remove_parametrizations\(")
    v = torch.randn(32)
    for change in (
        lambda: ht.prune(model, {("encoder", 0): [0]}),
        lambda: ht.edit(model, ("encoder", 0, 1), remove=v).__enter__(),
        lambda: ht.edit(model, ("encoder", 0, 1), remove=v, side="read").__enter__(),
        lambda: ht.merge(model, [(("encoder", 0, 0), ("encoder", 0, 1))], batch),
        lambda: ht.refit(model, {("encoder", 0): [0]}, batch),
        lambda: ht.save(model, tmp_path / "saved"),
    ):
        with untouched(model), pytest.raises(ValueError, match=rf"bert\.encoder\.layer\.0.*{line}"):
            change()
    assert not (tmp_path / "saved").exists()


def test_the_line_in_the_refusal_mends_it(tmp_path):
    for how in AROUND:
        model, _ = wrapped("bert", how)
        while True:
            try:
                ht.prune(model, {("encoder", layer): [0] for layer in range(3)})
                break
            except ValueError as error:
                eval(str(error).partition("make it plain: ")[2], {"torch": torch, "model": model})
        assert ht.sites(model).n_heads == 9


@pytest.mark.parametrize("name", LORA)
def test_what_changes_weights_refuses_adapters_by_name(name, tmp_path):
    model, batch = adapted(name)
    site = ht.sites(model).all[0]
    changes = [
        lambda: ht.prune(model, {site.key: [0]}),
        lambda: ht.refit(model, {site.key: [0]}, batch),
        lambda: ht.save(model, tmp_path / "saved"),
    ]
    if name != "bert":  # there the output projection is plain
        changes.append(lambda: ht.edit(model, (*site.key, 1), drop_top=1).__enter__())
    if name != "llama":  # there values are shared
        changes += [
            lambda: ht.edit(model, (*site.key, 1), drop_top=1, side="read").__enter__(),
            lambda: ht.merge(model, [((*site.key, 0), (*site.key, 1))], batch),
        ]
    for change in changes:
        with untouched(model), pytest.raises(ValueError, match=r"PEFT.*model = model\.merge_and_unload\(\)"):
            change()
    assert not (tmp_path / "saved").exists()
    plain = model.merge_and_unload()
    ht.prune(plain, {site.key: [0]})
    ht.save(plain, tmp_path / "saved")


def test_save_refuses_adapters_that_transformers_put_in_and_prompts(tmp_path):
    model, _ = fresh("bert")
    model.add_adapter(peft.LoraConfig(target_modules=["query"]))
    with pytest.raises(ValueError, match=r"adapters of PEFT.*PeftModel\.from_pretrained\(.*merge_and_unload"):
        ht.save(model, tmp_path / "saved")
    model, _ = fresh("gpt2")
    model = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="adapters of PEFT"):
        ht.save(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_an_edit_of_a_plain_layer_beside_adapters():
    model, _ = adapted("bert")
    plain = merged(model)
    with ht.edit(model, ("encoder", 1, 2), drop_top=1), ht.edit(plain, ("encoder", 1, 2), drop_top=1):
        assert error(ov(model)["encoder", 1, 2].matrix(), ov(plain)["encoder", 1, 2].matrix()) < 1e-5


# --- quantised layers -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def quantised():
    """BERT with 8-bit linear layers, and a batch."""
    model, batch = fresh("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}).eval(), batch


def test_hooks_reach_the_heads_of_quantised_layers(quantised):
    model, batch = quantised
    plain, _ = fresh("bert")
    assert [site.heads for site in ht.sites(model)] == [4, 4, 4]
    heads = {("encoder", 1): [0, 2]}
    before = run(model, batch)
    with ht.ablate(model, heads):
        removed = run(model, batch)
    for by in ("mean", "resample", "uniform"):
        with ht.ablate(model, heads, replacement=by, reference=batch):
            assert error(run(model, batch), before) > 1e-3
    with ht.gates(model, {("encoder", 1): torch.tensor([0.0, 1.0, 0.0, 1.0])}):
        assert torch.equal(run(model, batch), removed)
    with ht.record(model, want=("maps", "z")) as recorded:
        run(model, batch)
    assert recorded["encoder", 1].maps.sum(-1).allclose(torch.ones(()))
    with ht.ablate(plain, heads):
        assert error(run(plain, batch), removed) < error(before, removed)


def test_weights_of_quantised_layers_are_refused_by_name(quantised):
    model, batch = quantised
    site = ht.sites(model)["encoder", 0]
    z = torch.ones(1, 2, 4, 8)
    for read in (lambda: ov(model), lambda: qk(model), lambda: ht.contributions(site, z)):
        with pytest.raises(TypeError, match="packed integers; load the model in floating point"):
            read()
    for change in (
        lambda: ht.prune(model, {("encoder", 0): [0]}),
        lambda: ht.edit(model, ("encoder", 0, 1), remove=torch.ones(32)).__enter__(),
        lambda: ht.refit(model, {("encoder", 0): [0]}, batch),
    ):
        with pytest.raises((TypeError, ValueError), match=r"packed integers; load the model in floating point"):
            change()


def test_what_needs_gradients_is_refused_on_quantised_layers_by_name(quantised):
    model, batch = quantised
    labelled = [batch | {"labels": batch["input_ids"]}]
    assert len(ht.ablation(model, labelled, progress=False).values) == 3
    for measure in (
        lambda: ht.gradient(model, labelled),
        lambda: ht.relevance(model, labelled),
        lambda: ht.fit_gates(model, labelled, 0.1, weights=None, steps=1, progress=False),
    ):
        with pytest.raises(
            TypeError, match=r"needs gradients, and none flows through bert\.encoder\S+ .*floating point"
        ):
            measure()


def test_whole_numbers_and_eight_bit_floats_are_no_weights():
    for kind in (torch.int8, torch.float8_e4m3fn):
        model, _ = fresh("bert")
        for site in ht.sites(model):
            site.v.module.weight = nn.Parameter(site.v.module.weight.to(kind), requires_grad=False)
        with pytest.raises(TypeError, match=f"keeps its weights as {kind}"):
            ov(model)
