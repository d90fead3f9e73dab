"""Every head of every architecture is found, counted and named rightly."""

import warnings

import pytest
import torch
from torch import nn

import headtools as ht

from .reference import output_matrix, some_heads, untouched
from .zoo import ALL, INTERFACE, LEGACY, REFUSED, fresh, run, zoo_model

# By hand, from the configurations in zoo.py: (stack, kind) -> layers, heads, kv_heads, head_dim, value_dim
SMALL = (3, 4, 4, 8, 8)
GROUPED = (3, 6, 2, 8, 8)
WIDE = (3, 6, 2, 12, 12)  # head_dim x heads is not d_model
TWO = (2, 4, 4, 8, 8)
TRANSLATOR = {("", "encoder"): TWO, ("", "decoder"): TWO, ("", "cross"): TWO}
EXPECTED = {
    "bert": {("", "encoder"): SMALL},
    "roberta": {("", "encoder"): SMALL},
    "distilbert": {("", "encoder"): SMALL},
    "albert": {("", "encoder"): (1, 4, 4, 8, 8)},  # three layers share one module
    "modernbert": {("", "encoder"): SMALL},
    "electra": {("", "encoder"): SMALL},
    "bert_decoder": {("", "decoder"): SMALL},
    "gpt2": {("", "decoder"): SMALL},
    "gpt_neox": {("", "decoder"): SMALL},
    "opt": {("", "decoder"): SMALL},
    "llama": {("", "decoder"): GROUPED},
    "mistral": {("", "decoder"): GROUPED},
    "qwen2": {("", "decoder"): GROUPED},
    "qwen3": {("", "decoder"): WIDE},
    "gemma2": {("", "decoder"): WIDE},
    "gemma3": {("", "decoder"): WIDE},
    "gpt_oss": {("", "decoder"): WIDE},
    "phi3": {("", "decoder"): GROUPED},
    "bart": TRANSLATOR,
    "marian": TRANSLATOR,
    "t5": {("", "encoder"): (3, 4, 4, 6, 6), ("", "decoder"): (2, 4, 4, 6, 6), ("", "cross"): (2, 4, 4, 6, 6)},
    "whisper": TRANSLATOR,
    "vit": {("", "encoder"): SMALL},
    "clip": {("text_model", "decoder"): SMALL, ("vision_model", "encoder"): (2, 2, 2, 16, 16)},
    "deepseek_v3": {("", "decoder"): (3, 4, 4, 16, 12)},  # queries and keys are wider than values
    "encoder_decoder": {("", "encoder"): TWO, ("", "decoder"): SMALL, ("", "cross"): SMALL},
    "bloom": {("", "decoder"): SMALL},
    "gptj": {("", "decoder"): SMALL},
    "deberta_v2": {("", "encoder"): SMALL},
    "fsmt": TRANSLATOR,
}
# d_model where it is not 32
D_MODEL = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_oss", "phi3"), 48)


def test_the_table_covers_the_zoo():
    assert set(EXPECTED) == set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_heads_are_found_and_counted(name):
    model, _ = zoo_model(name)
    with warnings.catch_warnings(), untouched(model):
        warnings.simplefilter("error")
        sites = ht.sites(model)
    groups = {}
    for site in sites:
        groups.setdefault((site.stack, site.kind), []).append(site)
    shapes = {
        key: (len(group), *((s.heads, s.kv_heads, s.head_dim, s.value_dim) for s in group[:1]))
        for key, group in groups.items()
    }
    assert {key: (layers, *rest) for key, (layers, rest) in shapes.items()} == EXPECTED[name]
    for group in groups.values():
        assert [site.layer for site in group] == list(range(len(group)))
        assert len({(s.heads, s.kv_heads, s.head_dim, s.value_dim) for s in group}) == 1
    assert sites.n_heads == sum(layers * heads for layers, heads, *_ in EXPECTED[name].values())
    assert len(sites) == sum(layers for layers, *_ in EXPECTED[name].values())
    for site in sites:
        assert site.key == ((site.stack,) if site.stack else ()) + (site.kind, site.layer)
        assert model.get_submodule(site.name) is site.module
        assert any(module is site.out for module in model.modules())
        assert site.interface == (name in INTERFACE)
        assert site.original == tuple(range(site.heads))
        assert not site.empty
        assert sites[site.key] is site
        assert site.w_o.shape == (site.heads, site.value_dim, D_MODEL.get(name, 32))
        assert torch.equal(site.w_o, output_matrix(site))


@pytest.mark.parametrize("name", [name for name in INTERFACE if name != "deepseek_v3"])
def test_queries_keys_and_values_have_a_row_for_every_feature(name):
    model, _ = zoo_model(name)
    for site in ht.sites(model):
        assert site.q.weight().shape[:2] == (site.heads, site.head_dim)
        assert site.k.weight().shape[:2] == (site.kv_heads, site.head_dim)
        assert site.v.weight().shape[:2] == (site.kv_heads, site.value_dim)
        fused = {}
        for part in (site.q, site.k, site.v):
            fused.setdefault(id(part.module), []).append(part.rows.flatten())
            bias = part.bias()
            assert bias is None or bias.shape == part.rows.shape
        for rows in fused.values():
            assert len(torch.cat(rows).unique()) == len(torch.cat(rows)), "two heads share a row"


@pytest.mark.parametrize("name", [name for name in INTERFACE if name != "deepseek_v3"])
def test_the_rows_are_those_of_the_head(name):
    """Zero a head's value rows: that head's output is what vanishes, and no other's."""
    model, batch = fresh(name)
    for site in ht.sites(model):
        head = site.kv_heads - 1
        fraction = site.heads // site.kv_heads
        rows = site.v.rows[head]
        with torch.no_grad():
            weight = site.v.module.weight
            kept = weight.clone()
            if site.v.transposed:
                weight[:, rows] = 0
            else:
                weight[rows] = 0
            bias = getattr(site.v.module, "bias", None)
            kept_bias = None if bias is None else bias.clone()
            if bias is not None:
                bias[rows] = 0
            with ht.record(model, want="z", only=[site.key]) as r:
                run(model, batch)
            weight.copy_(kept)
            if bias is not None:
                bias.copy_(kept_bias)
        size = r[site.key].z.abs().amax((0, 1, 3))
        silent = range(head * fraction, (head + 1) * fraction)
        assert all((size[h] == 0) == (h in silent) for h in range(site.heads)), f"{site.label}: {size}"


def test_latent_attention_has_no_rows():
    for site in ht.sites(zoo_model("deepseek_v3")[0]):
        assert site.latent
        assert (site.q, site.k, site.v) == (None, None, None)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_a_kind_gives_its_sites(kind):
    sites = ht.sites(zoo_model("t5")[0])
    some = sites[kind]
    assert {site.kind for site in some} == {kind}
    assert some[kind, 1] is sites[kind, 1]
    assert some.n_heads == 4 * len(some)


def siglip():
    """A text and an image encoder, both of which see everything: two stacks of one kind."""
    from transformers import SiglipConfig, SiglipModel

    size = {"hidden_size": 16, "intermediate_size": 16}
    text = size | {"num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 9}
    vision = size | {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    return SiglipModel(SiglipConfig(text_config=text, vision_config=vision))


def test_stacks_are_part_of_the_key():
    sites = ht.sites(siglip())
    assert sites["vision_model", "encoder", 1].heads == 2
    assert len(sites["text_model"]) == 3
    with pytest.raises(KeyError, match=r"2 sites.*stack.*text_model"):
        sites["encoder", 0]
    # layer 2 exists in one stack alone, so nothing needs to be said
    assert sites["encoder", 2].stack == "text_model"


def test_a_causal_mask_made_by_the_owner_makes_a_decoder():
    """CLIP's attention modules say that they are not causal; the text model around them makes the mask."""
    sites = ht.sites(zoo_model("clip")[0])
    assert sites["text_model"].kinds == {"decoder": 12}
    assert sites["vision_model"].kinds == {"encoder": 4}
    model, batch = zoo_model("clip")
    with ht.record(model, want="maps") as r:
        run(model, batch)
    assert r["decoder", 1].maps.triu(1).abs().max() == 0
    assert r["encoder", 1].maps.triu(1).abs().max() > 0


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("nonsense", r"nonsense.*encoder 0\.\.1, decoder 0\.\.1, cross 0\.\.1"),
        (("nonsense", 0), r"nonsense.*encoder 0\.\.1"),
        (("encoder", 2), r"encoder', 2.*encoder 0\.\.1.*from 0"),
        (("encoder", -1), r"encoder 0\.\.1"),
        (3, r"encoder 0\.\.1"),
        (("encoder", "1"), r"encoder 0\.\.1"),
    ],
)
def test_a_wrong_key_is_answered_with_what_there_is(key, words):
    sites = ht.sites(zoo_model("marian")[0])
    with pytest.raises(KeyError, match=words):
        sites[key]


def test_the_representation_is_a_table():
    text = repr(ht.sites(zoo_model("clip")[0]))
    lines = text.splitlines()
    assert lines[0].split() == ["site", "heads", "kv", "head_dim", "module"]
    assert len(lines) == 7
    assert lines[1].split() == ["text_model", "decoder", "0", "4", "4", "8", "text_model.encoder.layers.0.self_attn"]
    assert lines[-1] == "5 sites, 16 heads"
    column = lines[0].index("module")
    assert all(line[column - 1] == " " != line[column] for line in lines[1:-1]), "the columns are not aligned"


def test_the_table_shows_the_width_of_queries():
    row = repr(ht.sites(zoo_model("deepseek_v3")[0])).splitlines()[1].split()
    assert row[:5] == ["decoder", "0", "4", "4", "16"]


def mamba():
    from transformers import MambaConfig, MambaModel

    return MambaModel(
        MambaConfig(vocab_size=9, hidden_size=16, num_hidden_layers=2, state_size=4, intermediate_size=32)
    )


@pytest.mark.parametrize(
    "build",
    [lambda: nn.Linear(4, 4), lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), mamba],
    ids=["linear", "perceptron", "mamba"],
)
def test_a_model_without_attention_is_an_error(build):
    model = build().eval()
    for use in (ht.sites, ht.pruned):
        with untouched(model), pytest.raises(ValueError, match=r"no attention.*pass"):
            use(model)
    for context in (ht.record(model), ht.ablate(model, {("encoder", 0): [0]}), ht.gates(model, {})):
        with untouched(model), pytest.raises(ValueError, match=r"no attention"), context:
            pass
    with untouched(model), pytest.raises(ValueError, match=r"no attention"):
        ht.prune(model, {("encoder", 0): [0]})


def test_torch_multihead_attention_is_refused_in_words():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 16, batch_first=True), 2)
    with pytest.raises(ValueError, match=r"MultiheadAttention.*output projection"):
        ht.sites(model)


@pytest.mark.parametrize("name", REFUSED)
def test_attention_of_bare_tensors_is_refused_in_words(name):
    model, _ = zoo_model(name)
    with untouched(model), pytest.raises(ValueError, match=r"XLNetRelativeAttention.*bare tensors"):
        ht.sites(model)


@pytest.mark.parametrize("value", [None, "bert", {"encoder": 1}, torch.ones(2)])
def test_what_is_no_model_is_a_type_error(value):
    with pytest.raises(TypeError, match=r"needs a torch model, got"):
        ht.sites(value)


def test_heads_are_counted_from_the_weights_not_the_configuration():
    model, _ = fresh("llama")
    model.config.num_attention_heads = 99
    assert ht.sites(model)["decoder", 0].heads == 6
    ht.prune(model, some_heads(ht.sites(model)))
    assert {site.heads for site in ht.sites(model)} == {3}


def test_a_home_made_model_of_linear_modules_is_understood():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.num_heads = 4
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(16, 16) for _ in range(4))

        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (4, 4)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
            z = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.out_proj(z.transpose(1, 2).flatten(-2))

    model, x = nn.Sequential(Attention(), Attention()), torch.randn(2, 3, 16)
    sites = ht.sites(model)
    assert [site.heads for site in sites] == [4, 4]
    with torch.no_grad():
        plain = model(x)
        with ht.ablate(model, {sites.all[1].key: [0, 1, 2, 3]}):
            silent = model(x)
    assert not torch.equal(silent, plain)
    assert torch.allclose(silent, model[1].out_proj.bias.expand_as(silent))


def test_attention_without_an_output_is_told_and_left_out():
    class Attention(nn.Module):
        def __init__(self, *more):
            super().__init__()
            self.num_heads = 2
            for name in ("q_proj", "k_proj", "v_proj", *more):
                setattr(self, name, nn.Linear(4, 4))

        def forward(self, x):
            return x

    with pytest.warns(UserWarning, match=r"does not understand 1 attention modules: 1 \(Attention\)"):
        sites = ht.sites(nn.Sequential(Attention("out_proj"), Attention()))
    assert [site.name for site in sites] == ["0"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ht.sites(nn.Sequential(Attention("out_proj"), Attention("out_proj")))


def test_older_models_are_marked():
    for name in LEGACY:
        assert not any(site.interface for site in ht.sites(zoo_model(name)[0]))
