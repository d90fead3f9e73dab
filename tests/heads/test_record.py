"""Maps, queries, keys, values and outputs as recorded, against the model's own."""

import pytest
import torch

import headtools as ht

from .reference import assert_same_state, state
from .zoo import BUILDERS, INTERFACE, PADDED, error, fresh, run, valid, zoo_model

SIDES = ("right", "left")
CLOSE = 1e-5
SINKS = ("gpt_oss",)  # part of the attention goes to a sink that is no token


def own_maps(name, batch):
    """The maps the model itself gives in eager attention: {site.key: (B, H, T, S)}."""
    model, _ = fresh(name)
    for module in model.modules():
        if hasattr(module, "config"):  # one by one: set_attn_implementation misses the parts of EncoderDecoderModel
            module.config._attn_implementation = "eager"
    with torch.no_grad():
        output = model(**batch, output_attentions=True)
    if name == "clip":
        text, image = output.text_model_output.attentions, output.vision_model_output.attentions
        maps = {("text_model", "decoder", i): m for i, m in enumerate(text)}
        return maps | {("vision_model", "encoder", i): m for i, m in enumerate(image)}
    kinds = {"encoder_attentions": "encoder", "decoder_attentions": "decoder", "cross_attentions": "cross"}
    kinds["attentions"] = ht.sites(model).all[0].kind
    maps = {}
    for entry, kind in kinds.items():
        for layer, each in enumerate(output.get(entry) or ()):
            maps[(kind, 0 if name == "albert" else layer)] = each  # ALBERT's last call stays
    return maps


def real_queries(name, site, maps, batch):
    """The rows of a map whose query is a real token: (n, H, S)."""
    rows = maps.transpose(1, 2)
    mask = batch.get("attention_mask")
    masked = BUILDERS[name][1] in ("text", "causal") or site.stack == "text_model"
    if masked or (BUILDERS[name][1] == "seq2seq" and site.kind == "encoder"):
        return rows[mask.bool()]
    return rows.flatten(0, 1)


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in PADDED if name in INTERFACE])
def test_maps_are_the_models_own(name, side):
    model, batch = zoo_model(name, side)
    plain, before = run(model, batch), state(model)
    with ht.record(model) as r:
        inside = run(model, batch)
    assert_same_state(before, state(model))
    assert torch.equal(run(model, batch), plain)
    assert error(valid(name, inside, batch), valid(name, plain, batch)) <= CLOSE * max(1, plain.abs().max())
    expected = own_maps(name, batch)
    sites = ht.sites(model)
    assert set(expected) == {site.key for site in sites} == set(r)
    for site in sites:
        maps = r[site.key].maps
        assert maps.dtype == torch.float32
        assert maps.shape[1] == site.heads
        own = real_queries(name, site, expected[site.key], batch)
        mine = real_queries(name, site, maps, batch)
        assert error(mine, own) <= CLOSE
        sums = mine.sum(-1)
        if name in SINKS:
            assert (sums > 0).all()
            assert (sums < 1).all()
        else:
            assert error(sums, torch.ones_like(sums)) <= CLOSE


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma3", "marian", "t5", "clip"])
def test_output_attentions_works_inside_the_context(name):
    model, batch = zoo_model(name)
    with ht.record(model, want="maps") as r, torch.no_grad():
        output = model(**batch, output_attentions=True)
    parts = [output.text_model_output, output.vision_model_output] if name == "clip" else [output]
    given = [each for part in parts for key in part for each in (part[key] if key.endswith("attentions") else ())]
    assert len(given) == len(r)
    for site in r:
        assert any(each.shape == r[site].maps.shape and torch.equal(each, r[site].maps) for each in given)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_maps_are_float32_under_autocast(name):
    model, batch = zoo_model(name)
    with torch.autocast("cpu", dtype=torch.bfloat16), ht.record(model) as r:
        run(model, batch)
    for site in ht.sites(model):
        maps = real_queries(name, site, r[site.key].maps, batch)
        assert maps.dtype == torch.float32
        assert error(maps.sum(-1), torch.ones(maps.shape[:-1])) <= 0.02
        assert torch.isfinite(r[site.key].z).all()


@pytest.mark.parametrize("name", ["opt", "llama", "qwen3"])
def test_double_precision_and_padding_on_the_left_give_no_nan(name):
    """The softmax is taken in float32, where float64's lowest number, the mask's, is -inf."""
    model, batch = fresh(name, "left")
    model.double()
    plain = run(model, batch)
    with ht.record(model) as r:
        inside = run(model, batch)
    assert error(valid(name, inside, batch), valid(name, plain, batch)) <= CLOSE
    for key in r:
        assert error(r[key].maps.sum(-1), torch.ones(r[key].maps.shape[:-1])) <= CLOSE
