"""Pruned models of every architecture come back from their folder bit for bit, whole or not at all."""

import json

import pytest
import torch
import transformers as tf

import headtools as ht
from headtools.organism._checksums import CHECKSUMS
from headtools.organism.load import PRUNED_HEADS

from ..heads.reference import some_heads
from ..heads.zoo import INTERFACE, RENAMED, fresh, run

CUTTABLE = tuple(name for name in (*INTERFACE, *RENAMED) if name != "deepseek_v3")
OFTEN = ("gpt2", "llama", "marian", "t5", "phi3", "encoder_decoder", "mixtral")  # each is built in another way


def eager(model):
    """The model with eager attention in every layer, also where transformers' own setter does not come (2.4e-6)."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_attn_implementation_internal"):
            module.config._attn_implementation_internal = "eager"
    return model


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.full) for name in CUTTABLE]
)
def test_round_trip(name, tmp_path):
    model, batch = fresh(name)
    sites = list(ht.sites(model))
    heads = some_heads(sites, seed=6)
    heads[sites[-1].key] = list(range(sites[-1].heads))  # a layer without heads among them
    ht.prune(model, heads)
    random_state = torch.get_rng_state()
    again, tokenizer = ht.load(ht.save(model, tmp_path / "deep" / "smaller"))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert type(again) is type(model)
    assert tokenizer is None
    assert not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    assert ht.pruned(again) == ht.pruned(model)
    assert torch.equal(run(again, batch), run(eager(model), batch))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["smaller"]


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


def test_nothing_pruned_with_a_tokenizer(tmp_path):
    model, tokenizer = ht.load()
    again, words = ht.load(ht.save(model, tmp_path / "same", tokenizer))
    assert ht.pruned(again) == []
    assert words("the dog slept .").input_ids == tokenizer("the dog slept .").input_ids


def test_bfloat16_and_mixed_types_keep_every_bit(tmp_path):
    model, _ = fresh("qwen3")
    model.to(torch.bfloat16)
    model.lm_head.to(torch.float32)
    ht.prune(model, {("decoder", 0): [1]})
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1 + 2**-20  # not in bfloat16
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert all(torch.equal(value.float(), again.state_dict()[key]) for key, value in model.state_dict().items())
    half, _ = ht.load(tmp_path / "smaller", dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16


@pytest.mark.parametrize("tie", [True, False])
def test_tied_and_untied_words(tie, tmp_path):
    size = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = tf.LlamaConfig(**size, intermediate_size=20, vocab_size=30, tie_word_embeddings=tie)
    model = tf.LlamaForCausalLM(config).eval()
    ht.prune(model, {("decoder", 0): [0, 2], ("decoder", 1): [1, 3]})
    again, _ = ht.load(ht.save(model, tmp_path / "smaller"))
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tie
    assert torch.equal(again.lm_head.weight, model.lm_head.weight)


def test_saved_inside_a_context(tmp_path):
    """What the context lends the model is not written; weights that it changes are, as ``edit`` promises."""
    model, batch = fresh("phi3")
    ht.prune(model, {("decoder", 0): [0]})
    with ht.record(model), ht.ablate(model, {("decoder", 1): [0]}, replacement="uniform"):
        folder = ht.save(model, tmp_path / "recorded")
    assert torch.equal(run(ht.load(folder)[0], batch), run(eager(model), batch))
    with ht.edit(model, ("decoder", 1, 2), remove=torch.eye(ht.sites(model)["decoder", 1].w_o.shape[-1])[0]):
        folder = ht.save(model, tmp_path / "edited")
        expected = run(model, batch)
    assert torch.equal(run(ht.load(folder)[0], batch), expected)


@pytest.fixture
def pruned_bert():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [1]})
    return model


def test_what_cannot_be_read_back_is_not_written(pruned_bert, tmp_path, monkeypatch):
    class Mine(tf.BertForMaskedLM):
        """A class of one's own, which load cannot find."""

    for other in (Mine(pruned_bert.config), torch.nn.Linear(1, 1), torch.nn.DataParallel(pruned_bert)):
        with pytest.raises(TypeError, match=r"expected a model class of transformers.*state_dict"):
            ht.save(other, tmp_path / "smaller")
    pruned_bert.bert.encoder.layer[2].intermediate.dense.bias = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"cannot be read back \(.*size mismatch.*nothing was written.*ht\.replay\("):
        ht.save(pruned_bert, tmp_path / "smaller")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        ht.save(ht.load()[0], tmp_path / "smaller")
    assert not [*tmp_path.iterdir()]


def test_a_folder_that_does_not_fit_is_refused(pruned_bert, tmp_path):
    folder = ht.save(pruned_bert, tmp_path / "one")
    with pytest.raises(FileExistsError, match="choose a new name"):
        ht.save(pruned_bert, folder)
    heads, weights = folder / PRUNED_HEADS, folder / "model.safetensors"
    right = heads.read_text()
    heads.write_text("[]")
    with pytest.raises(ValueError, match=r"pruned_heads\.json is not the file .*your own, delete checksums\.json"):
        ht.load(folder)
    (folder / CHECKSUMS).unlink()
    for listed in ([], [["encoder", 0, 9]], [["encoder", 0, 1], ["encoder", 0, 1]], [["nothing", 0, 1]], None):
        heads.write_text("{" if listed is None else json.dumps({"heads": listed, "ungrouped": []}))
        with pytest.raises(ValueError, match="write it again"):
            ht.load(folder)
    heads.write_text(right)
    ht.load(folder)
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="write it again"):
        ht.load(folder)
