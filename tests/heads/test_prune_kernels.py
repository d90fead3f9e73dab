"""The attention implementation of a pruned model can be set, and reaches its cut layers as it does the others."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch

import headtools as ht
from headtools.heads._attention import PRUNED_BIAS, LayerConfig, unwrapped_config

from .reference import some_heads
from .test_prune import gated
from .zoo import INTERFACE, RENAMED, error, fresh, run, valid

CUTTABLE = tuple(name for name in (*INTERFACE, *RENAMED) if name != "deepseek_v3")
ONLY_EAGER = ("gpt_oss", "gemma2")  # sinks, soft caps


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
