"""What a pruned module says of its size, under whatever names, and what it must not lose: types, biases, kernels."""

import pytest
import torch
from torch import nn

import headtools as ht

from .homemade import HEADS, WIDTH, attention
from .reference import untouched
from .zoo import error, fresh, run

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


def test_a_width_that_is_the_models_own_stays():
    """`embed_dim` is the width of the heads in some modules and that of the model in others, and may not be read."""
    model, x = attention(width="all_head_size")
    model[0].embed_dim = HEADS * WIDTH  # the forward does not read it
    model[0].inner_dim = 7
    gated, now = cut(model, x, [1])
    assert error(now, gated) <= 1e-6
    assert (model[0].embed_dim, model[0].inner_dim) == (HEADS * WIDTH, 7)


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt_neox", "llama", "t5"])
def test_projections_say_what_they_are(name):
    model, batch = fresh(name)
    first = ht.sites(model).all[0]
    ht.prune(model, {first.key: [1]})
    site = ht.sites(model)[first.key]
    for module in {id(m): m for m in (site.q.module, site.k.module, site.v.module, site.out)}.values():
        names = ("nx", "nf") if type(module).__name__ == "Conv1D" else ("in_features", "out_features")
        shape = module.weight.shape if names[0] == "nx" else module.weight.shape[::-1]
        assert tuple(getattr(module, name) for name in names) == tuple(shape)
        assert module.weight.is_contiguous()
        assert module.weight.dtype == torch.float32
    assert not any(weight.requires_grad for weight in model.requires_grad_(False).parameters())
    ht.prune(model, {first.key: [0]})
    assert not any(weight.requires_grad for weight in model.parameters()), "frozen weights stay frozen, biases too"
    run(model, batch)


@pytest.mark.parametrize("frozen", [True, False])
def test_sinks_are_cut_with_their_heads(frozen):
    model, _ = fresh("gpt_oss")
    model.requires_grad_(not frozen)
    first = ht.sites(model).all[0]
    before = first.module.sinks.detach().clone()
    ht.prune(model, {first.key: [0, 4]})
    assert torch.equal(first.module.sinks.detach(), before[[1, 2, 3, 5]])
    assert first.module.sinks.requires_grad is not frozen


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_a_pruned_t5_keeps_its_kernel(kernel):
    model, batch = fresh("t5")
    model.set_attn_implementation(kernel)
    for _ in range(2):  # the second cut finds a layer with a configuration of its own
        with ht.ablate(model, {("encoder", 1): [0]}):
            gated = run(model, batch)
        ht.prune(model, {("encoder", 1): [0]})
        assert model.encoder.config._attn_implementation == kernel
        assert error(run(model, batch), gated) <= 1e-5 * gated.abs().max()


def test_head_by_head_down_to_one():
    """Rows of GPT-NeoX go head by head, and of two heads and of one it must be seen."""
    model, batch = fresh("gpt_neox")
    for remaining in (3, 2, 1, 0):
        with ht.ablate(model, {("decoder", 1): [remaining // 2]}):
            gated = run(model, batch)
        ht.prune(model, {("decoder", 1): [remaining // 2]})
        assert error(run(model, batch), gated) <= 1e-5 * max(1, gated.abs().max())
    assert ht.sites(model)["decoder", 1].empty
    assert ht.sites(model).kinds == {"decoder": 8}
    assert ht.sites(model)["decoder"].n_heads == 8


def test_what_was_cut_when():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [2]})
    ht.prune(model, {("encoder", 0): [0, 2]})  # 0 and 3 of the original
    site = ht.sites(model)["encoder", 0]
    assert (site.heads, site.original, site.empty) == (1, (1,), False)
    assert ht.pruned(model) == [("encoder", 0, 0), ("encoder", 0, 2), ("encoder", 0, 3)]
    ht.prune(model, {("encoder", 0): [0]})
    site = ht.sites(model)["encoder", 0]
    assert (site.heads, site.original, site.empty) == (1, (), True)
    assert not site.out.weight.any()
    row = repr(ht.sites(model)).splitlines()[1].split("  ")
    assert "0 (all cut)" in row


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


def test_what_mixes_no_heads_may_stay():
    model, x = attention()
    model[0].q_norm, model[0].sinks = nn.LayerNorm(WIDTH), nn.Parameter(torch.arange(4.0))
    model[0].LayerNorm, model[0].relative_attention_bias = nn.LayerNorm(10), nn.Embedding(5, 4)
    gated, now = cut(model, x, [1, 2])
    assert error(now, gated) <= 1e-6
    assert model[0].sinks.tolist() == [0, 3]
    model, _ = attention()
    type(model[0]).__name__ = "UMT5Attention"
    with untouched(model), pytest.raises(ValueError, match="shapes its tensors by the full number of heads"):
        ht.prune(model, {("encoder", 0): [1]})
