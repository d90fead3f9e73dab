"""Which heads are meant, where a model takes its batches, and which batches no model can answer."""

import numpy as np
import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads._devices import device_of
from headtools.heads.sites import select

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


def test_numbers_from_before_pruning():
    model, _ = fresh("bert")
    ht.prune(model, {("encoder", 0): [0, 2]})
    sites = ht.sites(model)
    site = sites["encoder", 0]
    assert select(sites, {site.key: [3, 1]}, original=True) == {site: [0, 1]}
    assert select(sites, {site.key: [1]}) == {site: [1]}
    with pytest.raises(ValueError, match=r"head encoder 0\.2 is not there; the remaining heads are \[1, 3\]"):
        select(sites, {site.key: [2]}, original=True)


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
