"""Scores on disk: what comes back, and what is refused."""

import json
import os

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertForMaskedLM, BertModel

import headtools as ht
from headtools._engine.store import fingerprint, read_tensors, write_tensors
from headtools.importance.saved_scores import origin

HOSTILE = ["<script>alert(1)</script>", '"}, "digest": "', "../../up", "values|0", "\ud800 \x00 \n", "", "é\u202e"]


def tiny(seed=0, heads=4):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 8, "vocab_size": 9}
    return BertModel(BertConfig(num_attention_heads=heads, **sizes)).eval()


def some_scores(name="importance", heads=4):
    values = {("encoder", layer): torch.randn(heads) for layer in range(2)}
    low, high = ({key: value + shift for key, value in values.items()} for shift in (-1, 1))
    return ht.HeadScores(values, name, low, high, {"kept": 0.25, "interval": "none", name: 1.0})


def same(one, other):
    assert (one.name, one.notes) == (other.name, other.notes)
    for part in ("values", "low", "high"):
        a, b = getattr(one, part), getattr(other, part)
        assert (a is None) == (b is None), part
        for key in a or {}:
            assert a[key].dtype == b[key].dtype
            assert torch.equal(a[key], b[key])
    assert list(one.values) == list(other.values)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "scores.safetensors"


def test_scores_come_back_as_they_were(path):
    scores = some_scores()
    assert ht.save_scores(scores, path) == path
    same(scores, ht.load_scores(path))
    bare = ht.HeadScores({("text", "cross", 7): torch.arange(3).double(), ("encoder", 0): torch.ones(2)[::1]})
    ht.save_scores(bare, str(path))
    same(bare, ht.load_scores(str(path)))
    assert os.listdir(path.parent) == [path.name]


def test_bounds_of_some_sites_only(path):
    values = {("encoder", layer): torch.ones(2) for layer in range(2)}
    scores = ht.HeadScores(values, "s", low={("encoder", 1): torch.zeros(2)}, high={("encoder", 1): torch.ones(2)})
    ht.save_scores(scores, path)
    assert list(ht.load_scores(path).low) == [("encoder", 1)]


def test_views_and_gradients_are_kept_by_value(path):
    both = torch.arange(8.0, requires_grad=True)
    scores = ht.HeadScores({("encoder", 0): both[::2], ("encoder", 1): both[:4]})
    ht.save_scores(scores, path)
    back = ht.load_scores(path)
    assert back.values["encoder", 0].tolist() == [0, 2, 4, 6]
    assert not back.values["encoder", 1].requires_grad


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(path, name):
    scores = ht.HeadScores({(name, "encoder", 0): torch.ones(2), ("encoder", 0): torch.zeros(2)}, name)
    ht.save_scores(scores, path, made_from={name: name})
    same(scores, ht.load_scores(path, made_from={name: name}))
    assert origin(path)["made_from"] == {name: name}
    assert os.listdir(path.parent) == [path.name]
    header = path.read_bytes()[8:].split(b"}}", 1)[0]
    assert header.isascii()
    assert "<script>" not in ht.load_scores(path).to_frame().to_html()


def test_what_made_them_is_kept_and_asked_for(path):
    model, batches = tiny(), [{"input_ids": torch.tensor([[1, 2]])}]
    made_from = {"model": model, "batches": batches, "over": "example", "sites": ("encoder",), "limit": 10, "rate": 0.5}
    ht.save_scores(some_scores(), path, made_from)
    metadata = origin(path)
    assert metadata["made_from"]["sites"] == ["encoder"]
    assert metadata["made_from"]["model"] == f"BertModel {fingerprint(model)}"
    assert metadata["versions"]["torch"] == torch.__version__
    assert set(metadata["versions"]) == {"python", "torch", "transformers", "headtools"}
    ht.load_scores(path, model, made_from)
    ht.save_scores(some_scores(), path, {"short": list(range(100)), "long": list(range(101))})
    metadata = origin(path)["made_from"]
    assert metadata["short"] == list(range(100))
    assert metadata["long"] == f"list {fingerprint(list(range(101)))}"
    ht.save_scores(some_scores(), path, made_from)
    ht.load_scores(path, made_from={"sites": ["encoder"], "limit": 10})
    for name, other in {
        "model": tiny(1),
        "batches": [{"input_ids": torch.tensor([[1, 3]])}],
        "over": "batch",
        "limit": 11,
        "missing": None,
    }.items():
        with pytest.raises(ValueError, match=f"made from {name} .*compute the scores again"):
            ht.load_scores(path, made_from={name: other})


def test_numbers_that_json_has_not_and_long_texts_are_digested(path):
    odd = {"nan": float("nan"), "long": "x" * 300, "array": np.arange(3), "keys": {1: "a"}}
    ht.save_scores(some_scores(), path, odd)
    assert all(len(value.split()[1]) == 32 for value in origin(path)["made_from"].values())
    ht.load_scores(path, made_from=odd)
    with pytest.raises(ValueError, match="made from keys"):
        ht.load_scores(path, made_from={"keys": {"2": "a"}})


def test_scores_of_other_heads_are_refused(path):
    ht.save_scores(some_scores(), path)
    ht.load_scores(path, tiny())
    ht.save_scores(some_scores(heads=2), path)
    with pytest.raises(ValueError, match=r"other heads.*BertModel.*encoder 0 with 2 heads, encoder 1 with 2"):
        ht.load_scores(path, tiny())
    ht.save_scores(ht.HeadScores({("cross", 0): torch.ones(4)}), path)
    with pytest.raises(ValueError, match=r"cross 0 with 4 heads"):
        ht.load_scores(path, tiny())


def test_no_truncation_and_no_changed_byte_goes_unseen(path):
    ht.save_scores(some_scores(), path, made_from={"limit": 10})
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 13), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"scores\.safetensors"):
            ht.load_scores(path)
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"scores\.safetensors"):
            ht.load_scores(path)
    path.write_bytes(whole)
    ht.load_scores(path)


def test_files_of_others_are_refused(path, tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        ht.load_scores(path)
    with pytest.raises(FileNotFoundError, match="a folder has that name"):
        ht.load_scores(tmp_path)
    path.parent.mkdir()
    save_file({"values|0": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="not written by headtools"):
        ht.load_scores(path)
    path.write_bytes(b"no file of tensors, but text")
    with pytest.raises(ValueError, match="not written by headtools"):
        ht.load_scores(path)


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"x": torch.ones(2)}, {}),
        ({}, {"sites": []}),
        ({"values|0": torch.ones(2)}, {"sites": [["encoder", 0], ["encoder", 1]]}),
        ({"values|0": torch.ones(2)}, {"sites": [["encoder", [0]]]}),
        ({"values|0": torch.ones(2)}, {"sites": [["encoder", "0"]]}),
        ({"values|0": torch.ones(2)}, {"sites": [[0, 0]]}),
        ({"values|0": torch.ones(2)}, {"sites": [["encoder", 0], ["encoder", 0]]}),
        ({"values|0": torch.ones(2)}, {"sites": [[]]}),
        ({"values|0": torch.ones(2)}, {"sites": 7}),
        ({"values|0": torch.ones(2, 2)}, {}),
        ({"values|0": torch.ones(2) / 0 * 0}, {}),
        ({"values|0": torch.ones(2)}, {"made_from": 3}),
        ({"values|0": torch.ones(2)}, {"notes": 3}),
        ({"values|0": torch.ones(2)}, {"notes": {"kept": [1]}}),
    ],
)
def test_whole_files_that_hold_no_scores_are_refused(path, tensors, metadata):
    good = {"scores": "s", "sites": [["encoder", 0]], "made_from": {}, "notes": {}, "versions": {}}
    write_tensors(path, {"values|0": torch.ones(2)}, good)
    ht.load_scores(path)
    write_tensors(path, tensors, good | metadata)
    with pytest.raises(ValueError, match="holds no scores of heads"):
        ht.load_scores(path)


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    ht.save_scores(some_scores(), path)
    before = path.read_bytes()
    with pytest.raises(TypeError, match="got a function; expected content"):
        ht.save_scores(some_scores(), path, made_from={"loss": lambda outputs, batch: None})
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(28, "disk full")))
    with pytest.raises(OSError, match="disk full"):
        ht.save_scores(some_scores("other"), path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]
    with pytest.raises(ValueError, match=r"got the name 'scores.pt'; expected .safetensors"):
        ht.save_scores(some_scores(), path.with_suffix(".pt"))


def test_scores_without_notes_load(path):
    model = tiny()
    ht.save_scores(some_scores(), path, {"model": model, "limit": 3})
    tensors, metadata = read_tensors(path)
    metadata["made_from"] |= {"seed": None}
    del metadata["notes"]
    write_tensors(path, tensors, metadata)
    assert ht.load_scores(path, made_from={"model": model, "limit": 3}).notes == {}
    with pytest.raises(ValueError, match="made from model"):
        ht.load_scores(path, made_from={"model": tiny(1)})
    with pytest.raises(ValueError, match="made from seed None, not 3"):
        ht.load_scores(path, made_from={"seed": 3})


def test_what_relevance_says_of_itself_comes_back(path):
    config = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    found = ht.relevance(BertForMaskedLM(config), {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])})
    ht.save_scores(found, path)
    assert set(found.notes) == {"conserved", "absorbed", "interval"}
    assert ht.load_scores(path).notes == found.notes


def test_the_header_is_json_with_everything_in_it(path):
    ht.save_scores(some_scores("a name"), path, {"limit": 3})
    size = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + size])["__metadata__"]
    assert json.loads(header["headtools"]) == origin(path)
    assert origin(path)["scores"] == "a name"
