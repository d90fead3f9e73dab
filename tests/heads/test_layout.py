"""Where projections are and which rows are a head's, in modules of every form that headtools knows."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import headtools as ht
from headtools.heads._layout import (
    Projection,
    find_output,
    find_projections,
    head_width,
    looks_like_attention,
    shape_of,
    tokens_first,
    uses_interface,
)

from .zoo import error, run, zoo_model


class Odd(nn.Module):
    """An attention module with whatever children and attributes it is given."""

    def __init__(self, **attributes):
        super().__init__()
        for key, value in attributes.items():
            setattr(self, key, value)


Attention = type("Attention", (Odd,), {})


@pytest.mark.parametrize("name", ["bert", "gpt2", "opt", "qwen2", "marian", "gpt_neox"])
def test_rows_and_biases_make_the_queries_and_values_that_attention_sees(name):
    model, batch = zoo_model(name)
    site, read = ht.sites(model).all[0], []
    handle = site.v.module.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    with ht.record(model, want=("q", "v")) as recorded:
        run(model, batch)
    handle.remove()
    for part, found in ((site.q, recorded[site].q), (site.v, recorded[site].v)):
        if part is site.q and name in ("qwen2", "gpt_neox"):
            continue  # turned by rotary embedding
        made = torch.einsum("btd,hwd->bhtw", read[0], part.weight())
        bias = part.bias()
        made = made if bias is None else made + bias[:, None]
        scale = site.head_dim**-0.5 if part is site.q and name == "opt" else 1
        assert error(found, made * scale) <= 1e-5
        assert (bias is None) == (part.module.bias is None)


@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_a_projection_of_either_kind(kind):
    module = Conv1D(6, 4) if kind is Conv1D else nn.Linear(4, 6)
    assert shape_of(module) == (6, 4)
    with torch.no_grad():
        module.bias.copy_(torch.arange(6.0))
    part = Projection(module, torch.tensor([[5, 0], [1, 2]]))
    x = torch.randn(3, 4)
    made = torch.einsum("bd,hwd->bhw", x, part.weight()) + part.bias()
    assert torch.allclose(made.flatten(1), module(x)[:, [5, 0, 1, 2]], atol=1e-6)
    assert part.bias().tolist() == [[5, 0], [1, 2]]
    assert part.weight().shape == (2, 2, 4)
    assert Projection(nn.Linear(4, 6, bias=False), part.rows).bias() is None


def test_rows_go_where_the_weights_are():
    part = Projection(nn.Linear(4, 6, device="meta"), torch.tensor([[5, 0], [1, 2]]))
    assert part.weight().device.type == part.bias().device.type == "meta"
    assert part.weight().shape == (2, 2, 4)


def test_keys_and_values_fused_beside_their_queries():
    odd = Attention(q_attn=Conv1D(8, 8), c_attn=Conv1D(16, 8))
    found = find_projections(odd, 4, 2)
    assert [part.module for part in (found.q, found.k, found.v)] == [odd.q_attn, odd.c_attn, odd.c_attn]
    assert found.q.rows.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert found.k.rows.tolist() == found.q.rows.tolist()
    assert found.v.rows.tolist() == [[8, 9], [10, 11], [12, 13], [14, 15]]
    assert found.q.transposed
    assert found.k.transposed
    assert not found.latent


def test_queries_that_carry_a_gate():
    odd = Attention(q_proj=nn.Linear(8, 16), k_proj=nn.Linear(8, 4), v_proj=nn.Linear(8, 4))
    found = find_projections(odd, 4, 2)
    assert found.q.rows.tolist() == [[0, 1], [4, 5], [8, 9], [12, 13]]
    assert found.k.rows.tolist() == found.v.rows.tolist() == [[0, 1], [2, 3]]


def test_separate_projections_may_be_transposed_one_by_one():
    odd = Attention(q_proj=Conv1D(8, 8), k_proj=nn.Linear(8, 8), v_proj=Conv1D(8, 8))
    found = find_projections(odd, 4, 2)
    assert [part.transposed for part in (found.q, found.k, found.v)] == [True, False, True]
    odd = Attention(q_proj=nn.Linear(8, 8), k_proj=Conv1D(8, 8), v_proj=nn.Linear(8, 8))
    found = find_projections(odd, 4, 2)
    assert [part.transposed for part in (found.q, found.k, found.v)] == [False, True, False]


@pytest.mark.parametrize("removed", ["kv_a_proj_with_mqa", "kv_b_proj", None])
def test_latent_attention_has_both_its_projections(removed):
    parts = {name: nn.Linear(8, 8) for name in ("kv_a_proj_with_mqa", "kv_b_proj")}
    parts.pop(removed, None)
    assert find_projections(Attention(**parts), 4, 2).latent == (removed is None)


def test_nothing_known_is_nothing_found():
    found = find_projections(Attention(strange=nn.Linear(8, 8), q_attn=nn.Linear(8, 8)), 4, 2)
    assert (found.q, found.k, found.v, found.latent) == (None, None, None, False)


def test_a_matrix_inside_a_wrapper_counts():
    inner = nn.Linear(8, 8)
    wrapped = {name: Odd(linear=nn.Linear(8, 8)) for name in ("q_proj", "k_proj", "v_proj")}
    odd = Attention(**wrapped, o_proj=Odd(linear=Odd(linear=inner)))
    assert looks_like_attention(odd)
    assert find_output(odd, "attn", odd) is inner
    assert find_projections(odd, 4, 2).v.module is wrapped["v_proj"].linear
    for nothing in (Odd(linear="no module"), nn.LayerNorm(8), nn.Identity(), Odd(weight=None)):
        assert find_output(odd, "attn", Attention(o_proj=nothing)) is None
        assert not looks_like_attention(Attention(**(wrapped | {"k_proj": nothing})))


@pytest.mark.parametrize(
    ("around", "path"),
    [
        ({"output": Odd(dense=nn.Linear(8, 8))}, "output.dense"),
        ({"output": nn.Linear(8, 8), "out_proj": nn.Linear(8, 8)}, "output"),
        ({"out_proj": nn.Linear(8, 8), "dense": nn.Linear(8, 8)}, "out_proj"),
        ({"dense": nn.Linear(8, 8)}, "dense"),
        ({"output": Odd(dense=nn.LayerNorm(8)), "dense": nn.Linear(8, 8)}, "dense"),
        ({"other": nn.Linear(8, 8)}, None),
    ],
)
def test_an_output_beside_the_attention(around, path):
    parent = Odd(**around)
    parent.inner = Attention()
    root = Odd(layer=parent)
    expected = None if path is None else parent.get_submodule(path)
    assert find_output(root, "layer.inner", parent.inner) is expected
    assert find_output(parent, "inner", parent.inner) is None, "at the top there is nothing beside it"


def test_the_width_of_one_head_alone_and_of_small_ones():
    out = nn.Linear(12, 8)
    assert head_width(Odd(head_dim=1), out) == 1
    assert head_width(Odd(num_heads=1), out) == 12
    assert head_width(Odd(head_dim=12.0, num_heads=3.0), out) is None
    assert head_width(Odd(head_dim=0, num_heads=True), out) is None
    assert head_width(Odd(num_heads=2, config=Odd(num_attention_heads=3)), out) == 6
    assert head_width(Odd(config=Odd(head_dim=4)), out) is None


def test_what_a_forward_names():
    assert not uses_interface(nn.Linear(2, 2))
    assert not uses_interface(type("Builtin", (nn.Module,), {"forward": len})())
    assert not tokens_first(Attention())
    fsmt = type("Attention", (nn.Module,), {"__module__": "somewhere.modeling_fsmt"})
    assert tokens_first(fsmt())
    far = type("Attention", (nn.Module,), {"__module__": "modeling_fsmt.else"})
    assert not tokens_first(far())


@pytest.mark.parametrize(
    "shape",
    [
        {"multi_query": True},
        {"multi_query": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 1},
        {"new_decoder_architecture": True, "num_kv_heads": 4},
    ],
)
def test_falcon_with_keys_that_heads_share(shape):
    """Alone in its row a token sees itself, so each head gives the value that its rows make."""
    import transformers as tf

    torch.manual_seed(0)
    config = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "bias": True}
    model = tf.FalconForCausalLM(tf.FalconConfig(**config, **shape)).eval()
    site = ht.sites(model)["decoder", 1]
    torch.nn.init.normal_(site.v.module.bias)
    assert site.kv_heads == shape.get("num_kv_heads", 1 if shape.get("multi_query") else 4)
    read = []
    handle = site.v.module.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    with torch.no_grad(), ht.record(model, want="z") as recorded:
        model(input_ids=torch.tensor([[3], [7]]))
        handle.remove()
        values = torch.einsum("btd,hvd->bthv", read[0], site.v.weight()) + site.v.bias()
        each = values.repeat_interleave(site.heads // site.kv_heads, 2)
    assert torch.allclose(recorded["decoder", 1].z, each, atol=1e-6)
