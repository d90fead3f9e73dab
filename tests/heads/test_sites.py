"""Every head of every architecture is found, counted and named rightly."""

import warnings

import pytest
import torch

import headtools as ht

from .reference import output_matrix, some_heads, untouched
from .zoo import ALL, INTERFACE, fresh, zoo_model

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
