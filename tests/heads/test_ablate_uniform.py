"""Even attention: maps of equal weights, what they give, and what the model is left with."""

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads._attention import _check_uniform, uniform_mask

from .reference import some_heads, untouched, watch
from .zoo import BUILDERS, INTERFACE, PADDED, _spread, error, fresh, run, valid, zoo_model

EVEN = tuple(name for name in INTERFACE if name != "gpt_oss")


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in PADDED if name in EVEN])
def test_chosen_heads_look_evenly_at_all_they_may_see(name, side):
    model, batch = zoo_model(name, side)
    sites = list(ht.sites(model))
    heads = some_heads(sites)
    with ht.record(model, want=("maps",)) as plain:
        run(model, batch)
    with untouched(model), ht.ablate(model, heads, replacement="uniform"), ht.record(model, want=("maps",)) as recorded:
        run(model, batch)
    first = sites[0]
    kept = [head for head in range(first.heads) if head not in heads[first.key]]
    if name != "albert":  # whose only site runs again on what it changed itself
        assert torch.equal(recorded[first].maps[:, kept], plain[first].maps[:, kept])
    for site in sites:
        maps = recorded[site].maps[:, heads[site.key]]
        visible = plain[site].maps.amax(1, keepdim=True) > 0  # every head of a layer may see the same tokens
        even = visible / visible.sum(-1, keepdim=True)
        assert (maps - even).abs().max() <= 1e-6, site.label
        if site is first:
            assert (plain[site].maps[:, heads[site.key]] - even).abs().max() > 0.01, "it was even before"


@pytest.mark.parametrize("name", [name for name in EVEN if name != "albert"])
def test_outputs_are_the_means_of_the_values(name):
    model, batch = zoo_model(name)
    site = next(iter(ht.sites(model)))
    with ht.record(model, want=("maps", "v", "z")) as plain:
        run(model, batch)
    values = plain[site].v.repeat_interleave(site.heads // plain[site].v.shape[1], 1)
    visible = (plain[site].maps.amax(1, keepdim=True) > 0).float()
    mean = (visible / visible.sum(-1, keepdim=True)) @ values  # (B, head, query, value_dim)
    with ht.ablate(model, {site.key: [1]}, replacement="uniform"), ht.record(model, want=("z",)) as recorded:
        run(model, batch)
    z, before = recorded[site].z, plain[site].z
    real = batch["attention_mask"].bool() if BUILDERS[name][1] in ("text", "causal", "seq2seq") else ...
    assert error(z[:, :, 1][real], mean[:, 1][real]) <= 1e-5  # padding may see nothing: kernels then differ
    assert error(z[:, :, 0][real], before[:, :, 0][real]) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "marian"])
def test_whichever_kernel_the_model_runs(name):
    model, batch = fresh(name)
    heads = some_heads(ht.sites(model))
    found = {}
    for kernel in ("sdpa", "eager"):
        model.set_attn_implementation(kernel)
        with untouched(model), ht.ablate(model, heads, replacement="uniform"):
            found[kernel] = run(model, batch)
        plain = run(model, batch)
    assert error(valid(name, found["sdpa"], batch), valid(name, found["eager"], batch)) <= 1e-5 * plain.abs().max()
    assert error(found["eager"], plain) > 1e-3


def test_a_head_that_may_see_one_token_does_not_change():
    model, batch = zoo_model("gpt2")
    with ht.ablate(model, {("decoder", 0): [0, 1, 2, 3]}, replacement="uniform"):
        even = run(model, batch)
    plain = run(model, batch)
    assert error(even[:, 0], plain[:, 0]) <= 1e-5
    assert error(even[0, 1], plain[0, 1]) > 1e-3


def test_contexts_nest_and_end_by_themselves():
    model, batch = zoo_model("bert")
    sites = list(ht.sites(model))
    with ht.ablate(model, {("encoder", 0): [0]}, replacement="uniform"):
        with ht.ablate(model, {("encoder", 0): [2], ("encoder", 1): [1]}, replacement="uniform"):
            both = run(model, batch)
        uniform = ht.ablate(model, {("encoder", 0): [3]}, replacement="uniform")
        with untouched(model), pytest.raises(ZeroDivisionError), uniform:
            raise ZeroDivisionError
        one = run(model, batch)
    with ht.ablate(model, {("encoder", 0): [0, 2], ("encoder", 1): [1]}, replacement="uniform"):
        assert torch.equal(run(model, batch), both)
    with ht.ablate(model, {("encoder", 0): [0]}, replacement="uniform"):
        assert torch.equal(run(model, batch), one)
    with watch(sites) as recorded:
        run(model, batch)
    assert len(recorded["encoder", 0]) == 1


def test_with_zeros_and_gates():
    model, batch = zoo_model("bert")
    with ht.ablate(model, {("encoder", 1): [2]}):
        off = run(model, batch)
        with ht.ablate(model, {("encoder", 1): [2]}, replacement="uniform"):
            assert error(run(model, batch), off) <= 1e-6


def test_a_pruned_t5_has_biases_of_its_own():
    model, batch = fresh("t5")
    with (
        ht.ablate(model, {("encoder", 1): [0], ("decoder", 0): [2]}),
        ht.ablate(model, {("encoder", 1): [3]}, replacement="uniform"),
    ):
        expected = run(model, batch)
    ht.prune(model, {("encoder", 1): [0], ("decoder", 0): [2]})
    with ht.ablate(model, {("encoder", 1): [2]}, replacement="uniform"):  # number 3 of before
        assert error(run(model, batch), expected) <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("name", "message"), [("bloom", "does not use transformers' AttentionInterface"), ("gpt_oss", "attention sinks")]
)
def test_what_cannot_be_even_is_refused(name, message):
    model, _ = zoo_model(name)
    site = next(iter(ht.sites(model)))
    uniform = ht.ablate(model, {site.key: [0]}, replacement="uniform")
    with untouched(model), pytest.raises(ValueError, match=message), uniform:
        pass


def test_empty_batches_are_refused():
    model, batch = zoo_model("bert")
    empty = {key: value[:0] for key, value in batch.items()}
    uniform = ht.ablate(model, {("encoder", 0): [0]}, replacement="uniform")
    with pytest.raises(ValueError, match="the batch is empty"), uniform:
        model(**empty)


SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
IMAGE = SHAPE | {"image_size": 16, "patch_size": 4, "drop_path_rate": 0.0}
QUIET = {"hidden_dropout": 0.0, "attention_dropout": 0.0, "layerdrop": 0.0}
SPEECH = SHAPE | {"num_mel_bins": 16, "subsampling_conv_channels": 8, "subsampling_factor": 4, "layerdrop": 0.0}
CONVOLUTIONS = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
LISTENS = SHAPE | QUIET | CONVOLUTIONS | {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2}
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
BIASED = {  # a position bias of each head, in the mask or beside it
    "beit": (
        lambda: tf.BeitModel(tf.BeitConfig(**IMAGE, use_relative_position_bias=True)),
        ("pixel_values", 3, 16, 16),
    ),
    "beit, shared": (
        lambda: tf.BeitModel(tf.BeitConfig(**IMAGE, use_shared_relative_position_bias=True)),
        ("pixel_values", 3, 16, 16),
    ),
    "swin": (lambda: tf.SwinModel(tf.SwinConfig(**WINDOWS, drop_path_rate=0.0)), ("pixel_values", 3, 32, 32)),
    "parakeet": (lambda: tf.ParakeetEncoder(tf.ParakeetEncoderConfig(**SPEECH)), ("input_features", 64, 16)),
    "conformer": (
        lambda: tf.Wav2Vec2ConformerModel(tf.Wav2Vec2ConformerConfig(**LISTENS, mask_time_prob=0.0)),
        ("input_values", 400),
    ),
}


def biased(name):
    torch.manual_seed(0)
    build, (key, *shape) = BIASED[name]
    model = build().eval()
    _spread(model)
    with torch.no_grad():
        for where, weight in model.named_parameters():
            if "relative_position_bias_table" in where:
                weight.normal_(std=2)
    return model, {key: torch.randn(2, *shape)}


@torch.no_grad()
@pytest.mark.parametrize("name", BIASED)
def test_position_biases_in_the_mask_are_none_for_even_heads(name):
    model, batch = biased(name)
    sites = list(ht.sites(model))
    heads = {site.key: [0, site.heads - 1] for site in sites}
    outputs = {}
    for kernel in ("eager", "sdpa"):
        model.set_attn_implementation(kernel)
        with ht.record(model, want=("maps",)) as plain:
            model(**batch)
        with untouched(model), ht.ablate(model, heads, replacement="uniform"):
            outputs[kernel] = model(**batch).last_hidden_state
            with ht.record(model, want=("maps",)) as recorded:
                model(**batch)
        for site in sites:
            maps, before = recorded[site].maps, plain[site].maps
            visible = before.amax(1, keepdim=True) > 1e-20
            even = visible / visible.sum(-1, keepdim=True)
            assert (maps[:, heads[site.key]] - even).abs().max() <= 1e-6, site.label
            assert (before[:, heads[site.key]] - even).abs().max() > 0.01, "it was even before"
        first, kept = sites[0], range(1, sites[0].heads - 1)
        assert torch.equal(recorded[first].maps[:, kept], plain[first].maps[:, kept])
    assert error(*outputs.values()) <= 1e-5 * outputs["eager"].abs().max()


def test_swin_hides_windows_with_a_number_that_is_no_lowest():
    """Shifted windows are told apart by -100: half of their maps are 0, and even heads look at the other half only."""
    model, batch = biased("swin")
    site = list(ht.sites(model))[1]
    uniform = ht.ablate(model, {site.key: [0]}, replacement="uniform")
    with torch.no_grad(), uniform, ht.record(model, want=("maps",)) as recorded:
        model(**batch)
    maps = recorded[site].maps[:, 0]
    assert set((1 / maps[maps > 1e-20]).round().int().tolist()) == {4, 8, 16}
    assert torch.allclose(maps.sum(-1), torch.ones(()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_masks_are_even_in_every_precision(dtype):
    lowest, bias = torch.finfo(dtype).min, torch.tensor([0.5, -3.0, 8.0, 0.0])
    hidden = torch.tensor([[False, False, True, False], [True, True, True, True]])
    mask = bias.to(dtype).expand(1, 3, 2, 4).clone().masked_fill(hidden, lowest)
    even = uniform_mask(mask, [0, 2], 3)
    assert torch.equal(even[:, 1], mask[:, 1])
    maps = even[:, [0, 2]].float().softmax(-1)
    assert torch.allclose(maps[:, :, 0], torch.tensor([1.0, 1, 0, 1]) / 3, atol=1e-6)
    assert torch.allclose(maps[:, :, 1], torch.tensor(0.25), atol=1e-6), "a query that sees nothing"
    shared = mask[:, :1]
    assert torch.equal(uniform_mask(shared, [1], 2)[:, 0], shared[:, 0])
    plain = torch.zeros(1, 1, 2, 4, dtype=dtype).masked_fill(hidden, lowest)
    assert uniform_mask(plain, [0], 3) is not None
    assert torch.equal(uniform_mask(plain, [0], 3), plain), "made for all heads alike, and left so"
    assert uniform_mask(None, [0], 3) is None
    assert uniform_mask(hidden, [0], 3) is hidden


class OwnAttention(nn.Module):
    """Of a file that is not transformers' own."""


def test_what_an_attention_of_ones_own_adds_is_found_out():
    even, uneven = torch.full((1, 2, 3, 3), 1 / 3), torch.eye(3).expand(1, 2, 3, 3) * 0.5 + 1 / 6
    _check_uniform(OwnAttention(), even, [0, 1])
    _check_uniform(OwnAttention(), torch.cat([even[:, :1], uneven[:, :1]], 1), [0])
    with pytest.raises(ValueError, match=r"OwnAttention is not uniform .* \(a bias, a sink\)"):
        _check_uniform(OwnAttention(), uneven, [1])
    with pytest.raises(ValueError, match="is not uniform"):
        _check_uniform(OwnAttention(), even / 2, [0])
