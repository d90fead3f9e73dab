"""Pruned models of every architecture come back from their folder bit for bit, and say who can open it."""

import copy
import json
import re

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.organism import _read_pruned as reader
from headtools.organism._read_pruned import PRUNED_HEADS
from headtools.organism.save import how_to_open, opens_without_headtools

from ..heads.reference import some_heads
from ..heads.zoo import INTERFACE, RENAMED, error, fresh, run

CUTTABLE = tuple(name for name in (*INTERFACE, *RENAMED) if name != "deepseek_v3")
OPEN = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "phi3",
    "vit",
    "dinov2",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "granitemoe",
    "phimoe",
    "jamba",
)


def eager(model):
    """The model with eager attention in every layer, also where transformers' own setter does not come (2.4e-6)."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = "eager"
    return model


def alike(model, share=2):
    """Cut every layer alike, groups too, in place: every second head of each group."""
    ht.prune(model, {site.key: list(range(0, site.heads, share)) for site in ht.sites(model)})
    return model


@pytest.mark.full
@pytest.mark.parametrize("name", CUTTABLE)
def test_round_trip(name, tmp_path):
    model, batch = fresh(name)
    sites = list(ht.sites(model))
    heads = some_heads(sites, seed=6)
    heads[sites[-1].key] = list(range(sites[-1].heads))  # a layer without heads among them
    ht.prune(model, heads)
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert type(again) is type(model)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    assert ht.pruned(again) == ht.pruned(model)
    assert torch.equal(run(again, batch), run(eager(model), batch))
    assert [path.name for path in tmp_path.iterdir()] == ["smaller"]


@pytest.mark.full  # one of them opens in test_an_auto_class_opens_it_too
@pytest.mark.parametrize("name", OPEN)
def test_cut_alike_opens_without_headtools(name, tmp_path):
    model, batch = fresh(name)
    alike(model, share=3 if model.config.num_attention_heads == 6 else 2)
    folder = ht.save(model, tmp_path / "smaller")
    assert opens_without_headtools(folder) == (True, "")
    expected = run(eager(model), batch)
    plain = type(model).from_pretrained(folder, attn_implementation="eager")
    assert not ht.pruned(plain)
    assert error(run(plain, batch), expected) <= 1e-5 * max(1, expected.abs().max())
    assert torch.equal(run(copy.deepcopy(plain), batch), expected)  # once its weights are where torch puts its own
    again, _ = ht.load(folder)
    assert ht.pruned(again) == ht.pruned(model)
    assert torch.equal(run(again, batch), expected)
    assert again.config.num_attention_heads == model.config.num_attention_heads
    twice, _ = ht.load(ht.save(again, tmp_path / "twice"))
    assert torch.equal(run(twice, batch), expected)


def test_an_auto_class_opens_it_too(tmp_path):
    model, batch = fresh("llama")
    folder = ht.save(alike(model, share=3), tmp_path / "smaller")
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 8)
    assert model.config.num_attention_heads == 6, "the model in memory stays what it was: replay starts from it"
    plain = tf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    assert error(run(plain, batch), run(eager(model), batch)) <= 1e-5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bert", "BertConfig has no settings that give bert.encoder.layer.0.attention.self.query.weight"),
        ("gpt2", "GPT2Config has no settings"),
        ("t5", "T5Config has no settings that give .*relative_attention_bias"),
        ("marian", "MarianConfig has no settings"),
        ("encoder_decoder", "read a configuration that EncoderDecoderConfig does not hold"),
    ],
)
def test_where_transformers_alone_cannot_it_is_said(name, words, tmp_path):
    model, batch = fresh(name)
    folder = ht.save(alike(model), tmp_path / "smaller")
    opens, why = opens_without_headtools(folder)
    assert not opens
    assert re.search(words, why)
    assert torch.equal(run(ht.load(folder)[0], batch), run(eager(model), batch))


def test_layers_cut_differently_are_not_for_transformers_alone(tmp_path):
    model, _ = fresh("llama")
    ht.prune(model, {("decoder", 0): [0, 3]})
    folder = ht.save(model, tmp_path / "smaller")
    assert opens_without_headtools(folder) == (
        False,
        "its layers have different numbers of heads, and config.json can state only one",
    )
    with pytest.raises(RuntimeError, match="mismatch"):
        tf.AutoModelForCausalLM.from_pretrained(folder)


def test_sizes_that_a_configuration_refuses(tmp_path):
    """48 features in 5 heads are no whole number, and Llama's configuration minds, whatever its head_dim."""
    model, batch = fresh("llama")
    ht.prune(model, {site.key: [2] for site in ht.sites(model)})
    folder = ht.save(model, tmp_path / "smaller")
    opens, why = opens_without_headtools(folder)
    assert not opens
    assert "hidden size (48) is not a multiple of the number of attention heads (5)" in why
    assert torch.equal(run(ht.load(folder)[0], batch), run(eager(model), batch))


@pytest.mark.parametrize("first", [[0], [1, 2, 4]])
def test_keys_copied_for_each_query_and_cut_again(first, tmp_path):
    """Heads 0 and 3 cut one after the other leave copied keys, and cut at once they leave groups."""
    model, batch = fresh("llama")
    ht.prune(model, {("decoder", 1): first})
    ht.prune(model, {("decoder", 1): [2] if first == [0] else [0]})
    assert ht.sites(model)["decoder", 1].kv_heads == ht.sites(model)["decoder", 1].heads
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert torch.equal(run(again, batch), run(eager(model), batch))
    ht.prune(again, {("decoder", 1): [0]})
    twice, _ = ht.load(ht.save(again, tmp_path / "twice"))
    assert torch.equal(run(twice, batch), run(again, batch))


def test_bfloat16_and_mixed_types_keep_every_bit(tmp_path):
    model, _ = fresh("qwen3")
    model.to(torch.bfloat16)
    model.lm_head.to(torch.float32)
    ht.prune(alike(model, share=3), {("decoder", 0): [1]})
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1 + 2**-20  # not in bfloat16
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert all(torch.equal(value.float(), again.state_dict()[key]) for key, value in model.state_dict().items())
    half, _ = ht.load(tmp_path / "smaller", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("tie", [True, False])
def test_tied_and_untied_words(tie, tmp_path):
    torch.manual_seed(0)
    size = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = tf.LlamaConfig(**size, intermediate_size=20, vocab_size=30, tie_word_embeddings=tie)
    model = tf.LlamaForCausalLM(config).eval()
    ht.prune(model, {("decoder", 0): [0, 2], ("decoder", 1): [1, 3]})
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tie
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_shards_and_folders_of_earlier_versions(tmp_path):
    model, batch = fresh("mixtral")
    ht.prune(model, {("decoder", 0): [1]})
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    (tmp_path / "shards" / PRUNED_HEADS).write_text(json.dumps(ht.pruned(model)))
    again, _ = ht.load(tmp_path / "shards")
    assert torch.equal(run(again, batch), run(eager(model), batch))
    assert not opens_without_headtools(tmp_path / "shards")[0]


def test_what_does_not_come_back_is_not_written(tmp_path, monkeypatch):
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [1]})
    read = reader.read

    def damaged(*given):
        again = read(*given)
        with torch.no_grad():
            again.bert.encoder.layer[2].attention.self.value.bias[3] += 1
        return again

    monkeypatch.setattr(reader, "read", damaged)
    with pytest.raises(ValueError, match=r"bert\.encoder\.layer\.2\.attention\.self\.value\.bias differs.*replay\("):
        ht.save(model, tmp_path / "smaller")
    assert not list(tmp_path.iterdir())


def test_names_of_the_hub_that_do_not_lead_back_give_way_to_the_models_own(tmp_path, monkeypatch):
    """Some conversions count on the sizes that the configuration tells, which are no longer the model's."""
    model, batch = fresh("mixtral")
    ht.prune(model, {("decoder", 0): [1]})
    write = tf.PreTrainedModel.save_pretrained

    def refuse(self, folder, save_original_format=True, **more):
        if save_original_format:
            raise RuntimeError("shape '[6, 8]' is invalid for input of size 40")
        return write(self, folder, save_original_format=False, **more)

    monkeypatch.setattr(tf.PreTrainedModel, "save_pretrained", refuse)
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert torch.equal(run(again, batch), run(eager(model), batch))


def test_a_class_that_transformers_does_not_know(tmp_path):
    class Mine(tf.BertForMaskedLM):
        """A class of one's own, which load cannot find."""

    model = Mine(fresh("bert")[0].config).eval()
    ht.prune(model, {("encoder", 0): [1]})
    with pytest.raises(ValueError, match=r"Mine cannot be read back .*nothing was written.*state_dict"):
        ht.save(model, tmp_path / "smaller")
    assert not list(tmp_path.iterdir())


def test_wrapped_and_compiled_models(tmp_path):
    model, batch = fresh("bert")
    ht.prune(model, {("encoder", 0): [1]})
    with pytest.raises(TypeError, match=r"DataParallel is a wrapper .*write save\(model\.module"):
        ht.save(torch.nn.DataParallel(model), tmp_path / "wrapped")
    again, _ = ht.load(ht.save(torch.compile(model, backend="eager"), tmp_path / "compiled"))
    assert torch.equal(run(again, batch), run(eager(model), batch))


def test_saved_inside_a_context(tmp_path):
    """What the context lends the model is not written; weights that it changes are, as ``edit`` promises."""
    model, batch = fresh("phi3")
    ht.prune(model, {("decoder", 0): [0]})
    with ht.record(model), ht.ablate(model, {("decoder", 1): [0]}, replacement="uniform"):
        folder = ht.save(model, tmp_path / "recorded")
    assert torch.equal(run(ht.load(folder)[0], batch), run(eager(model), batch))
    with ht.edit(model, ("decoder", 1, 2), drop_top=1):
        folder = ht.save(model, tmp_path / "edited")
        expected = run(model, batch)
    assert torch.equal(run(ht.load(folder)[0], batch), expected)


def test_how_to_open_it_is_said(tmp_path):
    model, _ = fresh("llama")
    instructions = how_to_open(ht.save(alike(model, share=3), tmp_path / "alike"))
    assert instructions.startswith("open it with headtools.load(")
    assert instructions.endswith("or with from_pretrained, without headtools")
    ht.prune(model, {("decoder", 0): [0]})
    instructions = how_to_open(ht.save(model, tmp_path / "other"))
    assert re.search(r"\); transformers alone cannot: its layers have different numbers of heads", instructions)


def test_what_differs_is_named():
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)
    assert reader.first_difference(two, two) is None
    assert reader.first_difference(one, torch.nn.Linear(3, 2)) == "weight has shape (2, 3) instead of (2, 2)"
    two.weight = one.weight
    assert reader.first_difference(one, two) == "bias is missing"
    assert reader.first_difference(two, one) == "bias is unexpected"
    with torch.no_grad():
        one.weight[0, 0] = float("nan")
    assert reader.first_difference(one, copy.deepcopy(one)) is None, "NaN is NaN"


def test_a_build_that_differs_is_named():
    model, _ = fresh("llama")
    other = copy.deepcopy(model)
    assert reader.same_build(model, other) is None
    other.model.layers[1].self_attn.scaling = 0.5
    assert reader.same_build(model, other).startswith("model.layers.1.self_attn.scaling is 0.5 instead of 0.35")
    other = copy.deepcopy(model)
    other.model.rotary_emb.inv_freq[0] += 1
    assert reader.same_build(model, other) == "model.rotary_emb.inv_freq differs"
    assert "instead of" in reader.same_build(model, model.model)
