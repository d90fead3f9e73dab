"""Models put together by hand: which names their sites get, and what is said of what is not understood."""

import warnings

import pytest
from torch import nn

import headtools as ht
from headtools.heads.sites import GUESSED_KIND


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
        ({"a": nn.MultiheadAttention(4, 2), "b": StrangeAttention()}, r"Module: torch\.nn\.MultiheadAttention never"),
        (
            {"a": StrangeAttention(), "b": OtherAttention(), "c": StrangeAttention()},
            r"Module: OtherAttention, StrangeAttention keeps its projections as bare tensors",
        ),
        (
            {"a": nn.Linear(2, 2), "b": nn.ReLU()},
            r"Module: it has no attention that headtools knows.*of your own .*q_proj, k_proj",
        ),
    ],
)
def test_why_nothing_was_found(parts, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        ht.sites(tree(**parts))
