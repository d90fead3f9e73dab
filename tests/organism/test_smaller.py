"""A pruned model that was saved is read back the same, and a folder that does not fit is refused."""

import json

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import headtools as ht
from headtools.organism._checksums import CHECKSUMS
from headtools.organism._read_pruned import PRUNED_HEADS

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "vocab_size": 30}
IDS = torch.arange(1, 9).view(2, 4)


def models():
    torch.manual_seed(0)
    yield ht.load()[0], {("encoder", 2): [0, 5], ("cross", 1): [3], ("decoder", 0): list(range(8))}
    yield BertForMaskedLM(BertConfig(**SMALL)).eval(), {("encoder", 0): [1, 2]}
    yield LlamaForCausalLM(LlamaConfig(**SMALL, num_key_value_heads=2)).eval(), {("decoder", 1): [0]}


@pytest.mark.parametrize("index", range(3))
def test_round_trip(index, tmp_path):
    model, heads = list(models())[index]
    ht.prune(model, heads)
    more = {"labels": IDS} if index == 0 else {}
    with torch.no_grad():
        wanted = model(input_ids=IDS, **more).logits
    folder = ht.save(model, tmp_path / "deep" / "smaller")
    again, tokenizer = ht.load(folder)
    assert tokenizer is None
    assert not again.training
    assert ht.pruned(again) == ht.pruned(model)
    with torch.no_grad():
        assert torch.allclose(again(input_ids=IDS, **more).logits, wanted, atol=1e-6)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["smaller"]


def test_with_a_tokenizer_and_nothing_cut(tmp_path):
    model, tokenizer = ht.load()
    again, words = ht.load(ht.save(model, tmp_path / "same", tokenizer))
    assert ht.pruned(again) == []
    assert words("the dog slept .").input_ids == tokenizer("the dog slept .").input_ids


def test_refusals(tmp_path):
    model, _ = list(models())[1][0], None
    ht.prune(model, {("encoder", 0): [1]})
    folder = ht.save(model, tmp_path / "one")
    with pytest.raises(FileExistsError, match="choose a new name"):
        ht.save(model, folder)
    with pytest.raises(TypeError, match="not a transformers model"):
        ht.save(torch.nn.Linear(1, 1), tmp_path / "two")
    assert not (tmp_path / "two").exists()
    (folder / PRUNED_HEADS).write_text("[]")
    with pytest.raises(ValueError, match=r"pruned_heads\.json is not the file .*your own, delete checksums\.json"):
        ht.load(folder)
    (folder / CHECKSUMS).unlink()
    for text in ("[]", '[["encoder", 0, 9]]', '[["encoder", 0, 1], ["encoder", 0, 1]]', "{", '[["nothing", 0, 1]]'):
        (folder / PRUNED_HEADS).write_text(text)
        with pytest.raises(ValueError, match="write it again"):
            ht.load(folder)
    (folder / PRUNED_HEADS).write_text(json.dumps([["encoder", 0, 1]]))
    ht.load(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    with pytest.raises(ValueError, match="write it again"):
        ht.load(folder)


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    model = list(models())[1][0]
    monkeypatch.setattr("os.replace", lambda *a: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        ht.save(model, tmp_path / "one")
    assert not [*tmp_path.iterdir()]
