"""Maps, queries, keys, values and outputs as recorded, against the model's own."""

import pytest
import torch

import headtools as ht

from .reference import assert_same_state, bias_of, open_gates, some_heads, state, watch
from .zoo import BUILDERS, INTERFACE, LEGACY, MECHANISMS, PADDED, error, fresh, run, valid, zoo_model

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


@pytest.mark.parametrize(("name", "side"), [(name, side) for name, side in PADDED if name in INTERFACE])
def test_no_real_query_looks_at_padding_or_ahead(name, side):
    model, batch = zoo_model(name, side)
    with ht.record(model, want="maps") as r:
        run(model, batch)
    for site in ht.sites(model):
        maps = r[site.key].maps
        if site.kind == "decoder":
            assert maps.triu(1).abs().max() == 0 or name == "bert_decoder" or side == "left"
            rows = real_queries(name, site, maps.triu(1), batch)
            assert rows.abs().max() == 0
        mask = batch.get("attention_mask")
        if mask is not None and mask.shape[1] == maps.shape[-1] and site.stack != "vision_model":
            padding = maps * (1 - mask)[:, None, None, :]
            if site.kind == "cross":
                assert padding.abs().max() == 0
            elif BUILDERS[name][1] != "seq2seq" or site.kind == "encoder":
                assert real_queries(name, site, padding, batch).abs().max() == 0


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name in INTERFACE])
def test_outputs_are_maps_times_values(name):
    model, batch = zoo_model(name)
    with ht.record(model, want=("maps", "z", "q", "k", "v")) as r:
        run(model, batch)
    for site in ht.sites(model):
        recorded = r[site.key]
        groups = recorded.maps.shape[1] // recorded.v.shape[1]
        z = torch.einsum("bhts,bhsv->bthv", recorded.maps, recorded.v.repeat_interleave(groups, 1))
        assert error(recorded.z, z) <= CLOSE
        assert recorded.q.shape[1] == site.heads
        assert recorded.q.shape[-1] == recorded.k.shape[-1] == site.head_dim
        assert recorded.v.shape[-1] == site.value_dim
        assert recorded.k.shape[1] == recorded.v.shape[1] == site.kv_heads


@pytest.mark.parametrize("name", ["bert", "distilbert", "electra", "vit", "bart", "whisper"])
def test_maps_are_the_softmax_of_queries_and_keys(name):
    model, batch = zoo_model(name)
    with ht.record(model, want=("maps", "q", "k")) as r:
        run(model, batch)
    site = ht.sites(model).all[0]
    recorded = r[site.key]
    scale = 1 if name == "whisper" else site.head_dim**-0.5  # Whisper scales its queries before
    scores = recorded.q @ recorded.k.transpose(-1, -2) * scale
    if "attention_mask" in batch:
        scores = scores.masked_fill(batch["attention_mask"][:, None, None, :] == 0, float("-inf"))
    assert error(recorded.maps, scores.softmax(-1)) <= CLOSE


@pytest.mark.parametrize("name", MECHANISMS)
def test_recording_outputs_alone_changes_no_bit(name):
    model, batch = zoo_model(name)
    plain, before = run(model, batch), state(model)
    sites = ht.sites(model)
    with watch(sites) as recorded, ht.record(model, want="z") as r:
        assert state(model)["attention"] == before["attention"], "the kernel was switched"
        inside = run(model, batch)
    assert torch.equal(inside, plain)
    assert_same_state(before, state(model))
    for site in sites:
        z = r[site.key].z
        assert z.shape[-2:] == (site.heads, site.value_dim)
        assert torch.equal(z.flatten(-2), recorded[site.key][-1][0])


@pytest.mark.parametrize("name", [name for name in MECHANISMS if name in INTERFACE])
def test_queries_keys_and_values_need_no_other_kernel(name):
    model, batch = zoo_model(name)
    plain = run(model, batch)
    with ht.record(model, want=("q", "k", "v")) as r:
        inside = run(model, batch)
    assert torch.equal(inside, plain)
    with ht.record(model, want=("maps", "q", "k", "v")) as repeated:
        run(model, batch)
    for key in r:
        for part in ("q", "k", "v"):
            assert error(getattr(r[key], part)[0, :, 0], getattr(repeated[key], part)[0, :, 0]) <= CLOSE * 10


@pytest.mark.parametrize(("name", "side"), PADDED)
def test_contributions_add_up_to_the_attention_output(name, side):
    model, batch = zoo_model(name, side)
    sites = ht.sites(model)
    with watch(sites) as recorded, ht.record(model, want="z") as r:
        run(model, batch)
    for site in sites:
        each = ht.contributions(site, r[site.key].z)
        output = recorded[site.key][-1][1]
        assert each.shape == (*r[site.key].z.shape[:-1], output.shape[-1])
        total = each.sum(-2) + bias_of(site.out)
        assert error(total, output) <= CLOSE * max(1, output.abs().max())


def test_contributions_say_what_they_need():
    model, batch = zoo_model("bert")
    site = ht.sites(model)["encoder", 0]
    with ht.record(model, want="z") as r:
        run(model, batch)
    with pytest.raises(ValueError, match=r"\(B, T, 4, 8\)"):
        ht.contributions(site, r[site.key].z.flatten(-2))


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


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_bfloat16_model_gives_float32_maps(name):
    model, batch = fresh(name)
    model.to(torch.bfloat16)
    with ht.record(model) as r:
        run(model, batch)
    assert all(r[key].maps.dtype == torch.float32 for key in r)


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


def test_a_single_token_looks_at_itself():
    model, _ = zoo_model("gpt2")
    with ht.record(model) as r:
        run(model, {"input_ids": torch.tensor([[5]])})
    assert torch.equal(r["decoder", 0].maps, torch.ones(1, 4, 1, 1))


@pytest.mark.parametrize("name", LEGACY)
def test_older_models_give_outputs_but_say_why_not_maps(name):
    model, batch = zoo_model(name)
    before = state(model)
    for want in ("maps", "q", "k", "v"):
        with pytest.raises(ValueError, match=r"output_attentions=True"), ht.record(model, want=want):
            pass
    assert_same_state(before, state(model))
    with ht.record(model, want="z") as r:
        run(model, batch)
    assert len(r) == len(ht.sites(model))


def test_a_pruned_model_records_the_heads_that_are_left():
    model, batch = fresh("marian")
    heads = some_heads(ht.sites(model))
    with ht.gates(model, open_gates(ht.sites(model), heads)), ht.record(model) as full:
        run(model, batch)
    ht.prune(model, heads)
    with ht.record(model) as r:
        run(model, batch)
    for key, removed in heads.items():
        remaining = [head for head in range(4) if head not in removed]
        assert error(r[key].maps, full[key].maps[:, remaining]) <= CLOSE
        assert error(r[key].z, full[key].z[:, :, remaining]) <= CLOSE
