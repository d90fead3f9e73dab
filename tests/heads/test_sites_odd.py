"""Models put together by hand: which names their sites get, and what is said of what is not understood."""

import warnings

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads.sites import GUESSED_KIND

from .zoo import run, zoo_model


class Attention(nn.Module):
    """Attention of the older kind: known by its name and its children."""

    def __init__(self, *more, heads=2, **attributes):
        super().__init__()
        self.num_heads = heads
        for name in ("q_proj", "k_proj", "v_proj", *more):
            setattr(self, name, nn.Linear(4, 4))
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.out_proj(self.v_proj(x))


def good(**attributes):
    return Attention("out_proj", **attributes)


def tree(**parts):
    """Modules by dotted name."""
    root = nn.Module()
    for path, module in parts.items():
        *above, name = path.split("__")
        at = root
        for part in above:
            if not hasattr(at, part):
                at.add_module(part, nn.Module())
            at = getattr(at, part)
        at.add_module(name, module)
    return root.eval()


def keys(model):
    return [site.key for site in ht.sites(model)]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("attn",), [("encoder", 0)]),
        (("layers__0__attn", "layers__1__attn"), [("encoder", 0), ("encoder", 1)]),
        (("first", "second"), [("encoder", 0), ("encoder", 1)]),
        (("text__attn", "image__attn"), [("text", "encoder", 0), ("image", "encoder", 0)]),
        (("model__text__attn", "model__image__attn"), [("text", "encoder", 0), ("image", "encoder", 0)]),
        (
            ("text__layers__0__attn", "image__layers__0__attn", "text__layers__1__attn"),
            [("text", "encoder", 0), ("text", "encoder", 1), ("image", "encoder", 0)],
        ),
        # layers within layers: the first number tells the stack
        (("a__0__b__0__attn", "a__0__b__1__attn", "a__1__b__0__attn"), [("encoder", n) for n in range(3)]),
        # stacks of different kinds need no names
        (("encoder__0__attn", "decoder__0__attn"), [("encoder", 0), ("decoder", 0)]),
        (("decoder__0__attn", "decoder__0__cross_attn"), [("decoder", 0), ("cross", 0)]),
        (("m__0__attn", "m__extra__0__attn"), [("m", "encoder", 0), ("extra", "encoder", 0)]),
    ],
)
def test_the_names_of_sites(parts, expected):
    assert keys(tree(**{part: good() for part in parts})) == expected


def test_kinds_and_stacks_are_answered_apart():
    sites = ht.sites(tree(text__0__attn=good(), image__0__attn=good(), image__1__attn=good(), image__1__cross=good()))
    assert sites.kinds == {"encoder": 6, "cross": 2}
    assert sites["image"].kinds == {"encoder": 4}
    assert [site.label for site in sites["encoder"]] == ["text encoder 0", "image encoder 0", "image encoder 1"]
    assert sites["encoder", 1] is sites["image", "encoder", 1] is sites[["image", "encoder", 1]]
    assert sites["cross", 0].stack == ""
    with pytest.raises(KeyError, match=r"names 2 sites: add the stack, e\.g\. \('text', 'encoder', 0\)"):
        sites["encoder", 0]
    with pytest.raises(KeyError, match=r"it has text encoder 0\.\.0, image encoder 0\.\.1, cross 0\.\.0"):
        sites["decoder"]
    with pytest.raises(KeyError, match=r"no site \('image', 'encoder', 2\).*\(layers count from 0\)"):
        sites["image", "encoder", 2]


def test_what_is_not_understood_is_told_where_the_user_is():
    parts = {"a__0__attn": good(), "a__1__attn": Attention(), "a__2__attn": good(heads=3)}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sites = ht.sites(tree(**parts))
    assert [str(one.message) for one in told] == [
        "headtools does not understand 2 attention modules: a.1.attn (Attention)"
    ]
    assert told[0].filename == __file__
    assert sites.skipped == ("a.1.attn (Attention)", "a.2.attn (Attention)")
    assert repr(sites).splitlines()[-2:] == [
        f"encoder 0: {GUESSED_KIND}",
        "not understood: a.1.attn (Attention), a.2.attn (Attention)",
    ]
    assert "not understood" not in repr(ht.sites(tree(attn=good())))
    assert sites["encoder"].skipped == ()


def test_an_empty_choice_says_none():
    assert repr(ht.heads.sites.Sites(())).splitlines()[-1] == "0 sites, 0 heads"
    with pytest.raises(KeyError, match="it has none"):
        ht.heads.sites.Sites(())["encoder", 0]


class StrangeAttention(nn.Module):
    """Only the name says what it is."""


class OtherAttention(StrangeAttention):
    """Likewise."""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {f"a__{n}__attn": Attention() for n in range(4)},
            r"Module: found attention but not its heads, in a\.0\.attn \(Attention\), a\.1\.attn \(Attention\), "
            r"a\.2\.attn \(Attention\); needs",
        ),
        ({"a": nn.MultiheadAttention(4, 2), "b": StrangeAttention()}, r"Module uses torch\.nn\.MultiheadAttention"),
        (
            {"a": StrangeAttention(), "b": OtherAttention(), "c": StrangeAttention()},
            r"Module: OtherAttention, StrangeAttention keeps its projections as bare tensors",
        ),
        ({"a": nn.Linear(2, 2), "b": nn.ReLU()}, r"Module has no attention: none of its 3 modules is attention"),
    ],
)
def test_why_nothing_was_found(parts, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        ht.sites(tree(**parts))


def test_understood_attention_beside_other_kinds():
    """What is no attention of ours is passed over without a word, as long as heads are found."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(ht.sites(tree(a=good(), b=StrangeAttention(), c=nn.MultiheadAttention(4, 2)))) == 1


class Latent(nn.Module):
    """Keys and values from a latent, with or without a width for its queries."""

    def __init__(self, **widths):
        super().__init__()
        self.v_head_dim = 2
        for name, value in widths.items():
            setattr(self, name, value)
        self.o_proj = nn.Linear(4, 8)
        self.kv_a_proj_with_mqa, self.kv_b_proj = nn.Linear(8, 3), nn.Linear(3, 10)

    def forward(self, x):
        return ALL_ATTENTION_FUNCTIONS  # noqa: F821 (its name is all that is read)


@pytest.mark.parametrize(("widths", "dim"), [({}, 2), ({"head_dim": 5}, 5), ({"head_dim": 5, "qk_head_dim": 3}, 3)])
def test_the_width_of_latent_queries(widths, dim):
    (site,) = ht.sites(tree(attn=Latent(**widths)))
    assert (site.latent, site.interface, site.head_dim, site.value_dim) == (True, True, dim, 2)
    assert (site.heads, site.kv_heads) == (2, 2)


@pytest.mark.parametrize("name", ["bert", "fsmt"])
def test_splitting_and_joining_undo_each_other(name):
    model, batch = zoo_model(name)
    site = ht.sites(model).all[0]
    read = []
    handle = site.out.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    run(model, batch)
    handle.remove()
    z = site.split(read[0])
    assert z.shape == (3, 7, site.heads, site.value_dim)
    assert torch.equal(site.join(z), read[0])
    assert torch.equal(z[1, 2, 3], read[0][(2, 1) if name == "fsmt" else (1, 2)][-site.value_dim :])
