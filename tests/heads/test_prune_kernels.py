"""The attention implementation of a pruned model can be set, and reaches its cut layers as it does the others."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import headtools as ht
from headtools.heads._attention import PRUNED_BIAS, LayerConfig, unwrapped_config

from .reference import checkpoint, open_gates, some_heads, watch
from .zoo import BUILDERS, INTERFACE, RENAMED, error, fresh, run, valid

CUTTABLE = tuple(name for name in (*INTERFACE, *RENAMED) if name != "deepseek_v3")
ONLY_EAGER = ("gpt_oss", "gemma2")  # sinks, soft caps
CAUSAL = tuple(name for name in CUTTABLE if (BUILDERS | RENAMED)[name][1] == "causal" and name != "jamba")


def gated(model, batch, heads):
    with ht.gates(model, open_gates(ht.sites(model), heads)):
        return run(model, batch)


def seen_kernels(model):
    """The names that attention modules read when they look for their function."""
    return {unwrapped_config(site.module.config)._attn_implementation for site in ht.sites(model)}


@pytest.mark.parametrize("first_kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CUTTABLE)
def test_set_after_pruning(name, first_kernel):
    after = "sdpa" if first_kernel == "eager" else "eager"
    if name in ONLY_EAGER or name == "encoder_decoder":  # the latter's layers never hear of it, pruned or not
        return
    model, batch = fresh(name)
    plain, _ = fresh(name)
    for each in (model, plain):
        each.set_attn_implementation(first_kernel)
    heads = some_heads(ht.sites(model), seed=3)
    ht.prune(model, heads)
    for each in (model, plain):
        each.set_attn_implementation(after)
    assert seen_kernels(model) == {after}
    found, expected = run(model, batch), gated(plain, batch, heads)
    assert error(valid(name, found, batch), valid(name, expected, batch)) <= 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize("after", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CAUSAL)
def test_no_token_sees_a_later_one(name, after):
    """Phi-3's first logits moved by 6.7 when its last word changed."""
    if name in ONLY_EAGER and after == "sdpa":
        return
    model, batch = fresh(name)
    model.set_attn_implementation("eager")
    ht.prune(model, some_heads(ht.sites(model), seed=4))
    model.set_attn_implementation(after)
    ids = batch["input_ids"][:1]
    other = ids.clone()
    other[0, -1] = 5 if ids[0, -1] != 5 else 6
    one, two = run(model, {"input_ids": ids}), run(model, {"input_ids": other})
    assert error(one[:, :-1], two[:, :-1]) <= 1e-5
    assert error(one[:, -1], two[:, -1]) > 1e-3


def operated(model, batch):
    """The model after everything that headtools does to one."""
    sites = ht.sites(model)
    first = sites.all[0]
    with ht.gates(model, open_gates(sites)), ht.record(model):
        run(model, batch)
    for way in ("zero", "uniform"):
        with ht.ablate(model, {first.key: [0]}, replacement=way):
            run(model, batch)
    if first.kind != "decoder" or first.kv_heads == first.heads:
        with ht.edit(model, (*first.key, 0), drop_top=1):
            run(model, batch)
    ht.replay(model, {first.key: [1]})
    with ht.record(model):
        run(model, batch)
    return model


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "phi3", "t5", "marian", "clip", "vit"])
def test_set_after_every_operation(name):
    for before, after in (("eager", "sdpa"), ("sdpa", "eager")):
        model, batch = fresh(name)
        model.set_attn_implementation(before)
        operated(model, batch)
        assert seen_kernels(model) == {before}
        model.set_attn_implementation(after)
        assert seen_kernels(model) == {after}
        plain, _ = fresh(name)
        plain.set_attn_implementation(after)
        expected = gated(plain, batch, {ht.sites(plain).all[0].key: [1]})
        found = run(model, batch)
        assert error(valid(name, found, batch), valid(name, expected, batch)) <= 1e-5 * max(1, expected.abs().max())


@pytest.mark.parametrize("name", ["t5", "marian"])
def test_set_after_merging(name):
    model, batch = fresh(name)
    model.set_attn_implementation("eager")
    ht.merge(model, [(("encoder", 0, 0), ("encoder", 0, 2))], [batch])
    expected = run(model, batch)
    model.set_attn_implementation("sdpa")
    assert seen_kernels(model) == {"sdpa"}
    assert error(run(model, batch), expected) <= 1e-5 * expected.abs().max()


def test_a_pruned_t5_names_no_kernel_of_ours():
    model, batch = fresh("t5")
    ht.prune(model, {("encoder", 1): [0], ("decoder", 0): [1, 2], ("cross", 1): [0]})
    assert {part.config._attn_implementation for part in (model, model.encoder, model.decoder)} == {"sdpa"}
    assert ht.sites(model)["encoder", 1].module.config._attn_implementation == PRUNED_BIAS
    model.set_attn_implementation(PRUNED_BIAS)
    with pytest.raises(ValueError, match=r'as a model.s attention.*set_attn_implementation\("sdpa"\)'):
        run(model, batch)


@pytest.mark.parametrize("name", ["t5", "phi3"])
def test_copies_do_not_share(name):
    model, batch = fresh(name)
    key = ht.sites(model).all[0].key
    ht.prune(model, {key: [0]})
    expected = run(model, batch)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(run(twin, batch), expected)
        twin.set_attn_implementation("eager")
        assert seen_kernels(twin) == {"eager"}
        assert seen_kernels(model) == {"sdpa"}
        ht.prune(twin, {key: [0]})
        assert len(ht.pruned(model)) == 1


@pytest.mark.full  # a process of its own; the test above unpickles in this one
def test_a_pickled_t5_in_a_fresh_process(tmp_path):
    model, batch = fresh("t5")
    ht.prune(model, {("encoder", 0): [0, 2], ("decoder", 1): [1], ("cross", 0): [3]})
    torch.save((model, batch, run(model, batch)), tmp_path / "model.pt")
    code = (
        "import sys, torch\n"
        f"model, batch, expected = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        "with torch.no_grad():\n    found = model(**batch).logits\n"
        "assert torch.equal(found, expected)\n"
        "model.set_attn_implementation('eager')\n"
        "with torch.no_grad():\n    assert torch.allclose(model(**batch).logits, expected, atol=1e-4)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["t5", "phi3"])
def test_a_pruned_layer_generates_and_trains(name):
    model, batch = fresh(name)
    heads = some_heads(ht.sites(model), seed=5)
    with ht.gates(model, open_gates(ht.sites(model), heads)):
        written = model.generate(**{k: batch[k][:1] for k in ("input_ids", "attention_mask")}, max_new_tokens=5)
    ht.prune(model, heads)
    repeated = model.generate(**{k: batch[k][:1] for k in ("input_ids", "attention_mask")}, max_new_tokens=5)
    assert torch.equal(repeated, written)
    checkpoint(model)
    model.train()
    model(**batch).logits.logsumexp(-1).sum().backward()
    assert all(site.out.weight.grad.abs().max() > 0 for site in ht.sites(model))


def test_a_pruned_layer_compiles_in_one_graph():
    model, given = fresh("t5")
    ht.prune(model, {("encoder", 0): [0, 3]})
    stack = model.encoder
    del given["decoder_input_ids"]
    try:
        with torch.no_grad():
            compiled = torch.compile(stack, backend="eager", fullgraph=True)(**given).last_hidden_state
            expected = stack(**given).last_hidden_state
    finally:
        torch._dynamo.reset()
    assert error(compiled, expected) <= 1e-5 * expected.abs().max()


def test_maps_of_a_pruned_layer_follow_the_kernel():
    model, batch = fresh("t5")
    ht.prune(model, {("encoder", 1): [0]})
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        sites = ht.sites(model)
        with watch(sites), ht.record(model) as r:
            run(model, batch)
        assert r["encoder", 1].maps.shape[1] == 3
        assert error(r["encoder", 1].maps.sum(-1), torch.ones(3, 3, 7)) < 1e-5
        assert seen_kernels(model) == {kernel}


def test_a_layers_configuration_is_a_view():
    model, _ = fresh("phi3")
    ht.prune(model, {("decoder", 1): [0, 3]})
    config = ht.sites(model)["decoder", 1].module.config
    assert isinstance(config, LayerConfig)
    assert (config.num_attention_heads, model.config.num_attention_heads) == (4, 6)
    model.config.sliding_window = 3
    assert config.sliding_window == 3
    config.attention_dropout = 0.5
    assert model.config.attention_dropout == 0.5
    config.num_attention_heads = 2
    assert (config.num_attention_heads, model.config.num_attention_heads) == (2, 6)
    assert unwrapped_config(LayerConfig(config, {})) is model.config
    assert "Phi3Config" in repr(config)
    with pytest.raises(AttributeError, match="nothing_such"):
        config.nothing_such  # noqa: B018
