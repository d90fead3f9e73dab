"""Even attention: maps of equal weights, what they give, and what the model is left with."""

import pytest
import torch
import transformers as tf
from torch import nn

import headtools as ht
from headtools.heads._attention import _check_uniform, uniform_mask

from .reference import some_heads, untouched
from .zoo import INTERFACE, PADDED, _spread, error, run, zoo_model

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
