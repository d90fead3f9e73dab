"""The kind of an attention module, from its name, its class and its owners; and projections of unusual forms."""

import pytest
from torch import nn

import headtools as ht
from headtools.heads._kinds import _causal_by_masks, find_kind

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
        ("model.decoder.layers.0.attn", {"is_causal": False, "is_decoder": True}, "encoder"),  # SeamlessM4T v2's units
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


@pytest.mark.parametrize("name", ["openai-gpt", "nllb-moe", "pegasus_x", "bigbird_pegasus"])
def test_decoders_that_do_not_say_so(name):
    """GPT-1's labels were compared at their own position; the others' decoders were padded by the source's mask."""
    from survey import build

    model, _ = build(name)
    kinds = ht.sites(model).kinds
    assert set(kinds) == ({"decoder"} if name == "openai-gpt" else {"encoder", "decoder", "cross"})
