"""Digests name content and nothing else: the same in every process, another for whatever differs."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig, BertModel

import headtools as ht
from headtools.heads.digest import digest, digest_model


def tiny(seed=0, heads=4):
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 8, "vocab_size": 9}
    return BertModel(BertConfig(num_attention_heads=heads, **sizes)).eval()


@dataclass
class Pair:
    """Two things."""

    left: object
    right: object


@dataclass
class Couple:
    """Two other things."""

    left: object
    right: object


UNLIKE = [
    None, True, 1, 1.0, "1", b"1", 0.0, -0.0, float("nan"), float("inf"), "", [], {}, set(), torch.float32, "float32",
    ["a", "b"], ["ab"], [["a"], "b"], {"a": 1}, {"a": "1"}, {1: "a"}, {"a"}, {"a", "b"}, {"a": {"b": 1}},
    Pair(1, 2), Pair(2, 1), Couple(1, 2), tiny(), tiny(1),
    torch.tensor(1), torch.tensor([1]), torch.tensor([[1]]), torch.tensor([1.0]), torch.tensor([True]),
    torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64), torch.zeros(0), torch.zeros(0, 1),
    torch.tensor([1], dtype=torch.bfloat16), torch.tensor([1j]),
    [torch.tensor([1]), torch.tensor([2])], [torch.tensor([1, 2])],
]  # fmt: skip


def test_what_differs_in_content_type_or_shape_has_another_digest():
    found = [digest(thing) for thing in UNLIKE]
    assert len(set(found)) == len(UNLIKE)
    assert all(len(name) == 64 for name in found)
    assert [digest(thing) for thing in UNLIKE] == found


def test_what_is_the_same_content_has_the_same_digest():
    rows = torch.arange(12.0).view(3, 4)
    for one, other in [
        (rows.T, rows.T.contiguous()),
        (rows[:, ::2], rows[:, ::2].clone().requires_grad_()),
        (rows, nn.Parameter(rows)),
        (rows, rows.numpy()),
        (rows.T, rows.numpy()[:, :].T),
        (np.float64(0.5), 0.5),
        (np.int64(3), 3),
        ((1, 2), [1, 2]),
        ({"b": 1, "a": 2}, {"a": 2, "b": 1}),
        ({"x", "y", "z"}, frozenset(["z", "y", "x"])),
        (torch.tensor([1 + 1j]).conj(), torch.tensor([1 - 1j])),
        (torch.ones(2, 3)._neg_view(), -torch.ones(2, 3)),
    ]:
        assert digest(one) == digest(other), (one, other)


NESTED = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8)


@settings(max_examples=50, deadline=None)
@given(NESTED, NESTED)
def test_law_digests_are_equal_where_what_is_written_out_is_equal(one, other):
    assert (digest(one) == digest(other)) == (repr(one) == repr(other))


def test_another_process_finds_the_same_digest():
    thing = {"texts": {"a", "b", "c"}, "ids": [torch.arange(3), 2.5], "nothing": None}
    code = (
        "import torch; from headtools.heads.digest import digest; "
        "print(digest({'nothing': None, 'ids': [torch.arange(3), 2.5], 'texts': {'c', 'b', 'a'}}))"
    )
    room = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(Path(ht.__file__).parents[1])}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=room, check=True)
    assert there.stdout.strip() == digest(thing)
    # a fixed one, so that a new version does not quietly forget what older ones have written
    fixed = "c2485d6ef178aadeb76fbc53593d6d45d785600ac96b755843289ce3a365b3dd"
    assert digest({"ids": torch.tensor([1, 2]), "limit": 3}) == fixed


def test_the_digest_of_a_model_is_that_of_its_weights(tmp_path):
    model = tiny()
    first = digest_model(model)
    assert digest_model(model.train()) == first == digest(tiny())
    model.save_pretrained(tmp_path)
    assert digest_model(BertModel.from_pretrained(tmp_path)) == first
    with ht.ablate(model, [("encoder", 0, 1)]):
        assert digest_model(model) == first
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[3] += 1e-6
    assert digest_model(model) != first
    model = tiny()
    ht.prune(model, [("encoder", 0, 1)])
    assert digest_model(model) != first
    model = tiny()
    name = next(name for name, _ in model.named_buffers())
    model.get_submodule(name.rpartition(".")[0]).get_buffer(name.rpartition(".")[2]).add_(1)
    assert digest_model(model) == first  # computed, and not saved with the model
    norm = nn.BatchNorm1d(2)
    before = digest_model(nn.Sequential(norm))
    norm.running_mean.add_(1)
    assert digest_model(nn.Sequential(norm)) != before


def test_models_of_other_classes_with_the_same_weights_differ():
    class Other(nn.Linear):
        pass

    one, other = nn.Linear(2, 2), Other(2, 2)
    other.load_state_dict(one.state_dict())
    assert digest_model(one) != digest_model(other)


@pytest.mark.parametrize("thing", [lambda: 0, (i for i in "ab"), object(), Pair, torch.eye(2).to_sparse()])
def test_what_has_no_content_is_refused(thing):
    with pytest.raises(TypeError, match="no content that a digest could read"):
        digest({"x": thing})


def test_a_buffer_under_two_names_is_two_names():
    def model(*names):
        made, shared = nn.Module(), torch.ones(2)
        for name in names:
            made.register_buffer(name, shared)
        return made

    assert digest_model(model("a", "b")) == digest_model(model("a", "b"))
    assert digest_model(model("a", "b")) != digest_model(model("a"))


class Angles(nn.Module):
    """Computes a buffer that it does not save."""

    def __init__(self, start, **inside):
        super().__init__()
        self.register_buffer("angles", torch.full((2,), float(start)), persistent=False)
        self.register_buffer("counts", torch.zeros(2))
        for name, module in inside.items():
            setattr(self, name, module)


def test_buffers_that_are_not_saved_do_not_count_wherever_they_are():
    first = digest_model(Angles(0, part=Angles(0)))
    assert digest_model(Angles(1, part=Angles(0))) == first
    assert digest_model(Angles(0, part=Angles(1))) == first
    other = Angles(0, part=Angles(0))
    other.part.counts += 1
    assert digest_model(other) != first
    shared = Angles(0)
    assert digest_model(Angles(0, part=shared, again=shared)) == digest_model(
        Angles(0, part=Angles(1), again=Angles(1))
    )


class Hook:
    """Stands for accelerate's hook, which holds weights until they are needed."""

    def __init__(self, **told):
        self.__dict__.update(told)


@pytest.mark.parametrize("way", ["alone", "among others"])
def test_weights_that_are_held_elsewhere_count_as_they_are(way):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    first, held = digest_model(model), dict(model[1].named_parameters())
    model[1].to("meta")
    hook = Hook(weights_map=held)
    model[1]._hf_hook = hook if way == "alone" else Hook(hooks=[Hook(), Hook(weights_map=None), hook])
    assert digest_model(model) == first
    with torch.no_grad():
        held["bias"] += 1
    assert digest_model(model) != first


@pytest.mark.parametrize("hook", [None, Hook(), Hook(weights_map=None), Hook(hooks=[])])
def test_weights_that_are_nowhere_are_told(hook):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1).to("meta"))
    model[1]._hf_hook = hook
    with pytest.raises(TypeError, match=r"1\.weight has no content: it is on the meta device; load the weights first"):
        digest_model(model)


class Named(nn.Module):
    """A model of two numbers."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0]))


# what stands in files, by its beginning: a new version must find the same, or every stored run is lost
FIXED = [
    (None, "a0939354a92a"), (True, "8d67ac8ab991"), (3, "5e9c175a3d67"), (2.5, "655926eb64cd"),
    (float("nan"), "0f23e197e4bf"), ("text é", "9c0289020564"), (b"ab", "92f04428856b"),
    (torch.float32, "dd7c34f5268c"), (torch.device("cpu"), "11a191db0bc7"), ([1, "a"], "d9ef0e09a041"),
    ({"a": 1, "b": [2]}, "071f8a9bc087"), ({"x", "y"}, "b60e3e789821"), (torch.tensor([[1, 2]]), "4441a2956dd8"),
    (Pair(1, 2), "36058a87921a"), (Named(), "8c981c75ee09"), ([], "0d38f2946ddd"),
]  # fmt: skip


@pytest.mark.parametrize(("thing", "start"), FIXED, ids=[start for _, start in FIXED])
def test_digests_stay_what_they_were(thing, start):
    assert digest(thing).startswith(start)


def test_one_thing_is_itself_and_several_are_a_list():
    assert digest(3) != digest([3])
    assert digest(3, 4) == digest([3, 4])
    assert digest() == digest([])
    assert digest(bytearray(b"ab")) == digest(b"ab")
    assert digest(Path("a") / "b") == digest(Path("a/b")) != digest("a/b")
    assert digest(np.ones((2, 3), order="F")) == digest(torch.ones(2, 3).double())
    assert digest(range(3)) == digest([0, 1, 2])
