"""Which heads are meant, where a model takes its batches, and which batches no model can answer."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads._checks import check_not_compiled, check_not_offloaded, checked_inputs
from headtools.heads._devices import device_of
from headtools.heads.sites import select

from .reference import untouched
from .zoo import fresh, zoo_model


@pytest.mark.parametrize(
    "heads",
    [
        {("encoder", 0): [2, 0], ("encoder", 1): (1,)},
        [("encoder", 0, 2), ("encoder", 1, 1), ["encoder", 0, 0]],
        iter([("encoder", 0, 0), ("encoder", 0, 2), ("encoder", 1, 1)]),
        {("encoder", 0): np.array([2, 0]), ("encoder", 1): {1}},
        {("encoder", 0): range(0, 3, 2), ("encoder", 1): torch.tensor([1])},
        {("encoder", 0): [np.int64(2), 0], ("encoder", 1): [1]},
    ],
)
def test_heads_may_be_named_in_any_form(heads):
    sites = ht.sites(zoo_model("bert")[0])
    assert select(sites, heads) == {sites["encoder", 0]: [0, 2], sites["encoder", 1]: [1]}


def test_stacks_and_empty_choices():
    sites = ht.sites(zoo_model("clip")[0])
    assert select(sites, [("text_model", "decoder", 1, 3)]) == {sites["text_model", "decoder", 1]: [3]}
    assert select(sites, {}) == select(sites, []) == {}


@pytest.mark.parametrize(
    ("heads", "kind", "words"),
    [
        ([("a", "encoder", 0, 1, 2)], TypeError, "a head is named"),
        (["abc"], TypeError, r"a head is named .*got 'abc'"),
        ({("encoder", 0): b"01"}, TypeError, "must be a list"),
    ],
)
def test_what_else_is_no_head(heads, kind, words):
    with pytest.raises(kind, match=words):
        select(ht.sites(zoo_model("bert")[0]), heads)


def test_numbers_from_before_pruning():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0, 2]})
    sites = ht.sites(model)
    site = sites["encoder", 0]
    assert select(sites, {site.key: [3, 1]}, original=True) == {site: [0, 1]}
    assert select(sites, {site.key: [1]}) == {site: [1]}
    with pytest.raises(ValueError, match=r"head encoder 0\.2 is not there; the remaining heads are \[1, 3\]"):
        select(sites, {site.key: [2]}, original=True)


def test_a_compiled_part_is_named():
    check_not_compiled(nn.Linear(2, 2))
    full = nn.Sequential(nn.Linear(2, 2))
    full[0].compile(backend="eager")
    with pytest.raises(RuntimeError, match=r"^0 was compiled before"):
        check_not_compiled(full)
    with pytest.raises(RuntimeError, match=r"^the model was compiled before"):
        check_not_compiled(torch.compile(nn.Linear(2, 2), backend="eager"))


def test_offloaded_weights_are_counted():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    check_not_offloaded(model, "this")
    model[0].to("meta")
    with pytest.raises(ValueError, match=r"^this reads the model's weights, and 2 .* offloaded, such as 0\.weight"):
        check_not_offloaded(model, "this")


class Hook:
    """Stands for accelerate's hook."""

    def __init__(self, **told):
        self.__dict__.update(told)


@pytest.mark.parametrize(
    ("model", "hook", "device"),
    [
        (nn.Linear(2, 2), None, "cpu"),
        (nn.Linear(2, 2), Hook(execution_device="meta"), "cpu"),  # the weights are there, so they say it
        (nn.ReLU(), None, "cpu"),
        (nn.ReLU(), Hook(execution_device="cuda:1"), "cuda:1"),
        (nn.Linear(2, 2, device="meta"), None, "cpu"),
        (nn.Linear(2, 2, device="meta"), Hook(), "cpu"),
        (nn.Linear(2, 2, device="meta"), Hook(execution_device=None), "cpu"),
        (nn.Linear(2, 2, device="meta"), Hook(execution_device="cuda:1"), "cuda:1"),
        (nn.Linear(2, 2, device="meta"), Hook(hooks=[Hook(), Hook(execution_device="cuda:1")]), "cuda:1"),
        (nn.Sequential(nn.Linear(2, 2, device="meta")), Hook(execution_device="cuda:1"), "cuda:1"),
        (nn.Sequential(nn.Linear(2, 2, device="meta"), nn.Linear(2, 2)), Hook(execution_device="cuda:1"), "cuda:1"),
    ],
)
def test_where_a_model_takes_its_batches(model, hook, device):
    if hook is not None:
        (model[0] if isinstance(model, nn.Sequential) else model)._hf_hook = hook
    assert device_of(model) == torch.device(device)


class Echo(nn.Module):
    """Counts its calls, whatever it is given."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def forward(self, *args, **kwargs):
        self.calls["all"] += 1


ROWS = torch.tensor([[1, 1], [0, 0], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.ones(2, 3),), {"attention_mask": torch.ones(2, 3)}, None),
        ((), {"attention_mask": ROWS[[0, 2]], "decoder_attention_mask": ROWS[[2]], "labels": None}, None),
        ((), {"attention_mask": None, "other_mask": ROWS}, None),
        ((), {"attention_mask": torch.zeros(2, 1, 3, 3)}, None),  # made by hand, for those who know
        ((), {"attention_mask": torch.zeros(2)}, None),
        ((torch.ones(0, 3),), {}, r"the batch is empty: got a tensor of shape \(0, 3\)"),
        (("text", torch.ones(3, 0)), {}, r"the batch is empty: got a tensor of shape \(3, 0\)"),
        ((), {"input_ids": torch.ones(0, 3)}, r"the batch is empty"),
        ((), {"attention_mask": ROWS}, r"^attention_mask: rows \[1, 3\] are all padding.*attention_mask\.any\(1\)"),
        ((), {"attention_mask": ROWS.float()}, r"^attention_mask: rows \[1, 3\] are all padding"),
        ((), {"decoder_attention_mask": ROWS[:2].bool()}, r"^decoder_attention_mask: rows \[1\] are all padding"),
    ],
)
def test_batches_that_no_model_can_answer(args, kwargs, words):
    model = Echo()
    with untouched(model), checked_inputs(model):
        if words is None:
            model(*args, **kwargs)
        else:
            with pytest.raises(ValueError, match=words):
                model(*args, **kwargs)
    assert model.calls["all"] == (words is None)
