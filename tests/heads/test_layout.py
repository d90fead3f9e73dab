"""Where projections are and which rows are a head's, in modules of every form that headtools knows."""

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads._layout import (
    find_output,
    find_projections,
    looks_like_attention,
)


class Odd(nn.Module):
    """An attention module with whatever children and attributes it is given."""

    def __init__(self, **attributes):
        super().__init__()
        for key, value in attributes.items():
            setattr(self, key, value)


Attention = type("Attention", (Odd,), {})


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
