"""The day transformers changes what headtools stands on, these tests say what changed and what to do.

They test transformers, not headtools. A failure here is news, not a bug: read the message, then change the
code and the course together (lesson 00 is built on the first of these facts).
"""

import inspect

import pytest
import torch
import transformers as tf
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, masking_utils, modeling_utils

from .heads.zoo import fresh, run, zoo_model

SWALLOWED = ("bert", "roberta", "distilbert", "gpt2", "marian", "t5")
LOST_MASK = "headtools_canary_without_mask"


@pytest.mark.parametrize("name", SWALLOWED)
@pytest.mark.parametrize("argument", ["head_mask", "decoder_head_mask", "cross_attn_head_mask"])
def test_a_head_mask_is_accepted_and_ignored(name, argument):
    model, batch = zoo_model(name)
    plain = run(model, batch)
    say = (
        f"{name} no longer swallows {argument}= silently: transformers 5 accepted it without effect, and lesson 00 "
        f"shows that trap. If it now raises or works, rewrite lesson 00 and the README's first paragraph."
    )
    try:
        masked = run(model, batch | {argument: torch.zeros(3, 4)})
    except Exception as problem:
        pytest.fail(f"{say} It raised {problem!r}")
    assert torch.equal(masked, plain), say


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5"])
def test_sdpa_gives_no_maps_and_no_error(name):
    model, batch = zoo_model(name)
    assert model.config._attn_implementation == "sdpa", (
        f"the default attention of {name} is {model.config._attn_implementation!r}, not 'sdpa': heads/record.py "
        f"delegates to the implementation a model runs; check that it still does"
    )
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    maps = [output[key] for key in output if key.endswith("attentions")]
    assert maps, "output_attentions=True under sdpa no longer leaves an attentions entry: update lesson 00 and 01"
    assert not any(maps), (
        "output_attentions=True now gives maps under sdpa (it gave an empty tuple): record() may be able to use them "
        "without switching the implementation"
    )


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5"])
def test_eager_gives_maps(name):
    model, batch = fresh(name)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    maps = [tensor for key in output if key.endswith("attentions") for tensor in output[key]]
    assert maps, "eager attention no longer returns maps: tests/heads/test_record.py compares with them"
    assert all(tensor.dim() == 4 for tensor in maps), "eager maps are no longer (B, H, T, S)"


def test_the_two_registries_are_where_they_were():
    for place, name in [
        (modeling_utils, "ALL_ATTENTION_FUNCTIONS"),
        (masking_utils, "ALL_MASK_ATTENTION_FUNCTIONS"),
    ]:
        assert hasattr(place, name), f"{place.__name__}.{name} is gone: heads/record.py registers through it"
    for name in ("sdpa", "eager"):
        assert name in masking_utils.ALL_MASK_ATTENTION_FUNCTIONS, (
            f"the mask function {name!r} is gone: heads/record.py gives its own names these masks"
        )
    order = list(inspect.signature(modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]).parameters)
    assert order[:5] == ["module", "query", "key", "value", "attention_mask"], (
        f"attention functions are now called with {order}: change the signature of the functions in heads/record.py"
    )


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "marian", "t5"])
def test_an_attention_without_mask_function_loses_the_padding(name):
    """Why record() must register a mask function beside the attention function."""
    model, batch = fresh(name)
    plain = run(model, batch)
    AttentionInterface.register(LOST_MASK, modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"])
    try:
        model.set_attn_implementation(LOST_MASK)
        lost = run(model, batch)
        AttentionMaskInterface.register(LOST_MASK, masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
        kept = run(model, batch)
    finally:
        AttentionInterface._global_mapping.pop(LOST_MASK, None)
        AttentionMaskInterface._global_mapping.pop(LOST_MASK, None)
    assert (lost - plain).abs().max() > 0.01, (
        "an attention function without a mask function no longer loses padding and causality: the second "
        "registration in heads/record.py may have become needless (keep it until every supported version agrees)"
    )
    assert torch.equal(kept, plain), (
        "an attention function registered with the sdpa mask no longer equals sdpa: record() changes the model's "
        "results now; find out what else the implementation's name decides"
    )


def test_the_private_names_that_headtools_leans_on():
    model, _ = zoo_model("bert")
    for holder, name, place in [
        (model.config, "_attn_implementation_internal", "heads/_attention.py switches and restores it"),
        (model, "_can_set_attn_implementation", "heads/_attention.py asks it before it switches"),
        (tf.PreTrainedModel, "_from_config", "organism/load.py builds a pruned model with it"),
        (torch._C, "_current_graph_task_id", "heads/record.py tells a recomputed layer by it"),
    ]:
        assert hasattr(holder, name), f"{type(holder).__name__}.{name} is gone: {place}"
    assert torch._C._current_graph_task_id() == -1, "outside a backward pass the number was -1: see heads/record.py"


def test_hooks_entered_after_compile_are_ignored_by_torch():
    """Why gates() refuses a compiled model: torch would run on without them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    compiled = torch.compile(model, backend="eager")
    row = torch.ones(1, 4)
    # torch's own default, whatever an intervention elsewhere in this process has set
    with torch.no_grad(), torch._dynamo.config.patch(skip_nnmodule_hook_guards=True):
        before = compiled(row)
        handle = model[1].register_forward_pre_hook(lambda module, arguments: (arguments[0] * 0,))
        after = compiled(row)
        handle.remove()
    torch._dynamo.reset()
    assert torch.equal(before, after), (
        "torch now runs hooks registered after torch.compile: gates() may accept compiled models; test that on the zoo"
    )
