"""What a pruned module says of its size, under whatever names, and what it must not lose: types, biases, kernels."""

import pytest
import torch
from torch import nn

import headtools as ht

from .homemade import HEADS, WIDTH, attention
from .reference import untouched
from .zoo import error, fresh

QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
KEY_HEADS = ("num_key_value_heads", "kv_heads", "num_kv_heads")
WIDTHS = ("all_head_size", "split_size", "embed_dim", "inner_dim", "q_dim")


def cut(model, x, heads, **more):
    """The outputs with some heads at gate 0, and with them gone."""
    site = ht.sites(model).all[0]
    with torch.no_grad(), ht.ablate(model, {site.key: heads}):
        gated = model(x)
    ht.prune(model, {site.key: heads}, **more)
    with torch.no_grad():
        return gated, model(x)


@pytest.mark.parametrize(
    "names",
    [
        *({"heads": name} for name in QUERY_HEADS),
        *({"kv_heads": name} for name in KEY_HEADS),
        *({"width": name} for name in WIDTHS),
    ],
    ids=lambda names: next(iter(names.values())),
)
@pytest.mark.parametrize(("heads", "remaining", "kv_left"), [([0, 3], 2, 2), ([0, 1], 2, 1), ([2], 3, 3)])
def test_sizes_under_every_name(names, heads, remaining, kv_left):
    model, x = attention(**names)
    gated, now = cut(model, x, heads)
    assert error(now, gated) <= 1e-6
    own, told = model[0], {"heads": "num_heads", "kv_heads": "num_key_value_heads", "width": "embed_dim"} | names
    sizes = [getattr(own, told[part]) for part in ("heads", "kv_heads", "width")]
    assert sizes == [remaining, kv_left, remaining * WIDTH]
    assert own.num_key_value_groups == remaining // kv_left
    assert (own.untold, own.odd, own.head_dim) == (HEADS * WIDTH, HEADS, WIDTH), "what is nobody's size"


def test_keys_and_values_have_a_width_too():
    """EXAONE 4.5 splits what one projection makes by ``q_dim`` and ``kv_dim``: a pruned one could not run."""
    model, x = attention(width="q_dim")
    gated, now = cut(model, x, [2])  # every query head gets its own keys and values: more of them than before
    assert error(now, gated) <= 1e-6
    assert (model[0].q_dim, model[0].kv_dim) == (3 * WIDTH, 3 * WIDTH)


def test_one_number_a_head_is_no_norm_inside_a_head():
    """Where there are as many heads as a head has features, both have the same shape."""
    model, _ = attention()
    own = model[0]
    own.num_heads = own.head_dim = 4
    own.q_proj, own.o_proj = nn.Linear(10, 16), nn.Linear(16, 10)
    own.k_proj, own.v_proj = nn.Linear(10, 8), nn.Linear(10, 8)
    own.q_norm = nn.LayerNorm(4)
    ht.sites(model)
    own.head_scale = nn.Parameter(torch.ones(4))
    with untouched(model), pytest.raises(ValueError, match=r"'head_scale' of shape \(4,\) that may mix heads"):
        ht.prune(model, {("encoder", 0): [1]})
    del own.head_scale
    ht.prune(model, {("encoder", 0): [1]})


@pytest.mark.parametrize("frozen", [True, False])
def test_sinks_are_cut_with_their_heads(frozen):
    model, _ = fresh("gpt_oss")
    model.requires_grad_(not frozen)
    first = ht.sites(model).all[0]
    before = first.module.sinks.detach().clone()
    ht.prune(model, {first.key: [0, 4]})
    assert torch.equal(first.module.sinks.detach(), before[[1, 2, 3, 5]])
    assert first.module.sinks.requires_grad is not frozen


class Table(nn.Module):
    """Holds a matrix, as nn.Linear does, and may do anything with it."""

    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, columns))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_proj": nn.Linear(10, 24)}, "a projection computes more than queries, keys and values"),
        ({"q_proj": Table(12, 10)}, "projects with Table; only nn.Linear and Conv1D can be sliced"),
        ({"o_proj": Table(10, 12)}, "projects with Table; only nn.Linear and Conv1D can be sliced"),
        ({"mixer": nn.Linear(4, 4)}, r"has a parameter 'mixer.weight' of shape \(4, 4\) that may mix heads"),
        ({"sinks": nn.Parameter(torch.ones(3, 3))}, "has a parameter 'sinks'"),
        ({"scale": nn.Parameter(torch.ones(4))}, r"has a parameter 'scale' of shape \(4,\)"),
        ({"norm": nn.LayerNorm(10)}, r"has a parameter 'norm.weight' of shape \(10,\)"),
    ],
)
def test_what_cannot_be_sliced_is_refused(change, words):
    model, _ = attention()
    for name, value in change.items():
        setattr(model[0], name, value)
    with untouched(model), pytest.raises(ValueError, match=rf"HomeAttention \(encoder 0\).*{words}.*use ablate"):
        ht.prune(model, {("encoder", 0): [1]})
