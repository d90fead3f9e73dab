"""The kind of an attention module, from its name, its class and its owners; and projections of unusual forms."""

import pytest
import torch
from torch import nn

from headtools.heads._kinds import _causal_by_masks, find_kind
from headtools.heads._layout import find_output, find_projections, head_width, looks_like_attention
from headtools.heads.sites import _stack_name

OLDER = ("Bloom", "CodeGen", "Mpt", "XGLM", "GPTNeoXJapanese", "ImageGPT", "CpmAnt", "CTRL", "Doge", "Clvp")


def module(name="OddAttention", **attributes):
    made = type(name, (nn.Module,), {})()
    for key, value in attributes.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(
    ("name", "attributes", "kind"),
    [
        ("h.0.attn", {}, "encoder"),
        ("h.0.attn", {"is_causal": True}, "decoder"),
        ("h.0.attn", {"is_causal": False}, "encoder"),
        ("model.decoder.layers.0.attn", {"is_causal": False}, "encoder"),
        ("model.decoder.layers.0.attn", {}, "decoder"),
        ("decoder.encoder.layers.0.attn", {}, "encoder"),
        ("h.0.attn", {"is_decoder": True}, "decoder"),
        ("h.0.attn", {"is_decoder": "yes"}, "encoder"),
        ("h.0.attn", {"is_cross_attention": True, "is_causal": True}, "cross"),
        ("h.0.attn", {"is_cross_attention": False}, "encoder"),
        ("h.0.crossattention.self", {"is_causal": True}, "cross"),
        ("h.0.EncDecAttention", {}, "cross"),
        ("h.0.encoder_attn", {}, "cross"),
        ("cross_encoder.h.0.attn", {}, "encoder"),  # the stack's name is not the layer's
        ("crossattention", {}, "cross"),
    ],
)
def test_what_a_module_says(name, attributes, kind):
    assert find_kind(name, module(**attributes)) == kind


@pytest.mark.parametrize("older", OLDER)
def test_older_decoders_are_known_by_their_class(older):
    assert find_kind("h.0.attn", module(f"{older}Attention")) == "decoder"
    assert find_kind("h.0.attn", module(f"Not{older}Attention")) == "encoder"


def test_keys_that_are_the_values_too():
    odd = module(q_proj=nn.Linear(8, 8), k_proj=nn.Linear(8, 4), v_proj=None)
    parts = find_projections(odd, 4, 2)
    assert parts.v.module is parts.k.module is odd.k_proj
    assert parts.q.rows.shape == (4, 2)
    assert parts.v.rows.tolist() == [[0, 1], [2, 3]]
    assert find_projections(module(q_proj=None, k_proj=nn.Linear(8, 4), v_proj=None), 4, 2).k is None
    assert find_projections(module(q_proj=nn.Linear(8, 8), k_proj=None, v_proj=None), 4, 2).q is None


@pytest.mark.parametrize(
    ("q", "k", "v"),
    [(9, 8, 8), (8, 8, 7), (8, 6, 6), (8, 5, 4)],
)
def test_sizes_that_fit_no_heads_give_no_rows(q, k, v):
    odd = module(q_proj=nn.Linear(8, q), k_proj=nn.Linear(8, k), v_proj=nn.Linear(8, v))
    parts = find_projections(odd, 4, 2)
    assert (parts.q, parts.k, parts.v) == (None, None, None)


@pytest.mark.parametrize(
    ("total", "heads", "by_head", "expected"),
    [
        (24, 4, False, 4),
        (16, 4, False, 2),
        (12, 4, False, 1),
        (8, 4, False, None),
        (13, 4, False, None),
        (20, 4, False, None),  # three key heads for four
        (24, 4, True, 4),
        (16, 4, True, None),  # head by head there is a key for each query
    ],
)
def test_fused_projections(total, heads, by_head, expected):
    odd = module(**{"query_key_value" if by_head else "qkv_proj": nn.Linear(8, total)})
    parts = find_projections(odd, heads, 2)
    if expected is None:
        assert parts.q is None
        return
    rows = torch.cat([parts.q.rows.flatten(), parts.k.rows.flatten(), parts.v.rows.flatten()])
    assert sorted(rows.tolist()) == list(range(total))
    assert parts.k.rows.shape == (expected, 2)
    if by_head:
        assert parts.q.rows[1].tolist() == [6, 7]
        assert parts.k.rows[0].tolist() == [2, 3]
    else:
        assert parts.k.rows[0].tolist() == [heads * 2, heads * 2 + 1]


@pytest.mark.parametrize("marker", ["conv1d", "receptance", "b_proj", "A_log"])
def test_what_only_looks_like_attention(marker):
    parts = {name: nn.Linear(8, 8) for name in ("q_proj", "k_proj", "v_proj")}
    assert looks_like_attention(module(**parts))
    assert not looks_like_attention(module(**parts, **{marker: nn.Linear(1, 1)}))
    assert not looks_like_attention(module("Mixer", **parts))
    assert looks_like_attention(module(qkv=nn.Linear(8, 24)))
    assert not looks_like_attention(module(q_proj=nn.Linear(8, 8)))


def test_the_width_of_a_head():
    out = nn.Linear(12, 8)
    assert head_width(module(head_dim=4), out) == 4
    assert head_width(module(head_dim=5, num_heads=3), out) == 4
    assert head_width(module(v_head_dim=6, head_dim=4), out) == 6
    assert head_width(module(num_heads=0, head_dim=-4), out) is None
    assert head_width(module(config=module(num_attention_heads=2)), out) == 6
    assert head_width(module(head_dim=True), out) is None
    assert head_width(module(num_heads=5), out) is None


SEPARATE = [
    *("q_proj k_proj v_proj", "query key value", "q k v", "q_lin k_lin v_lin", "linear_q linear_k linear_v"),
    *("Wq Wk Wv", "query_proj key_proj value_proj", "project_q project_k project_v", "q_head k_head v_head"),
]
OUTPUTS = """o_proj out_proj c_proj Wo proj projection projection_layer dense o out_lin linear_out output attention_out
             post_proj output_projection"""
WIDTHS = "v_head_dim head_dim attention_head_size key_value_proj_dim head_size d_head dim_head"


@pytest.mark.parametrize("names", SEPARATE)
def test_names_of_separate_projections(names):
    parts = {name: nn.Linear(8, 8) for name in names.split()}
    odd = module(**parts)
    assert looks_like_attention(odd)
    found = find_projections(odd, 4, 2)
    assert [found.q.module, found.k.module, found.v.module] == list(parts.values())


@pytest.mark.parametrize("name", ["Wqkv", "qkv_proj", "qkv", "c_attn", "att_proj", "query_key_value"])
def test_names_of_fused_projections(name):
    odd = module(**{name: nn.Linear(8, 24)})
    assert looks_like_attention(odd)
    found = find_projections(odd, 4, 2)
    assert found.q.module is found.v.module is getattr(odd, name)


@pytest.mark.parametrize("name", OUTPUTS.split())
def test_names_of_output_projections(name):
    odd = module(**{name: nn.Linear(8, 8)})
    assert find_output(odd, "attn", odd) is getattr(odd, name)


@pytest.mark.parametrize("name", ["num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads"])
def test_names_of_the_number_of_heads(name):
    assert head_width(module(**{name: 3}), nn.Linear(12, 8)) == 4
    assert head_width(module(config=module(**{name: 3})), nn.Linear(12, 8)) == 4


@pytest.mark.parametrize("name", WIDTHS.split())
def test_names_of_the_width_of_a_head(name):
    assert head_width(module(**{name: 4}), nn.Linear(12, 8)) == 4


def create_causal_mask():
    """Stands for transformers' own function of that name."""


def create_bidirectional_mask():
    """Likewise."""


class Causal(nn.Module):
    """Builds its mask in a method, as some models do."""

    def __init__(self, **config):
        super().__init__()
        self.inner = nn.ModuleDict({"attn": nn.Identity()})
        if config:
            self.config = type("Config", (), config)()

    def forward(self, x):
        return self.make_mask(x)

    def make_mask(self, x):
        return create_causal_mask()


class Both(Causal):
    def make_mask(self, x):
        return create_causal_mask(), create_bidirectional_mask()


class Plain(nn.Module):
    def __init__(self, inside, switch=False):
        super().__init__()
        self.inside = inside
        if switch:
            self._can_set_attn_implementation = lambda: True

    def forward(self, x):
        return x


@pytest.mark.parametrize(
    ("owner", "name", "causal"),
    [
        (Causal(), "inner.attn", True),
        (Both(), "inner.attn", False),
        (Plain(Causal()), "inside.inner.attn", True),
        (Causal(), "inner", True),
        (Both(), "inner", False),
        (Plain(Causal()), "inside.inner", True),
        (Plain(nn.Identity()), "inside", None),
        (Causal(is_causal=False), "inner.attn", False),
        (Causal(is_causal=True), "inner.attn", True),
        (Causal(use_bidirectional_attention=True), "inner.attn", False),
    ],
)
def test_who_builds_the_mask(owner, name, causal):
    assert _causal_by_masks(owner, name) is causal


def test_another_model_around_it_does_not_count():
    outer = Causal()
    outer.inner["model"] = Plain(nn.Identity(), switch=True)
    assert _causal_by_masks(outer, "inner.model.inside") is None


@pytest.mark.parametrize(
    ("prefix", "rivals", "short"),
    [
        ("text_model.encoder", {"vision_model.encoder"}, "text_model"),
        ("model.text.layers", {"model.vision.layers"}, "text"),
        ("a.layers", {"b.x.layers", "c.y"}, "a"),
        ("model.layers", {"model.layers.extra"}, "model.layers"),
        ("m.a.layers", {"m.b.layers", "n.layers"}, "m.a"),
    ],
)
def test_stacks_have_short_names(prefix, rivals, short):
    assert _stack_name(prefix, {prefix, *rivals}) == short
