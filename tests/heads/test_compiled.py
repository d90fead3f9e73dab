"""Compiled models are refused; code compiled elsewhere runs as plain Python inside a context, and as before after."""

import pytest
import torch

import headtools as ht

from .reference import untouched
from .zoo import error, fresh, run

HEADS = {("encoder", 2): [0, 1]}


@pytest.fixture(autouse=True)
def forgetting():
    """Nothing that one test compiled is there in the next."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("way", ["function", "method", "part"])
def test_a_compiled_model_is_refused(way):
    model, _ = fresh("bert")
    if way == "method":
        model.compile(backend="eager")
    elif way == "part":
        model.bert.encoder.layer[0] = torch.compile(model.bert.encoder.layer[0], backend="eager")
    given = torch.compile(model, backend="eager") if way == "function" else model
    for call in (
        lambda: ht.gates(given, {("encoder", 0): torch.ones(4)}).__enter__(),
        lambda: ht.ablate(given, HEADS).__enter__(),
        lambda: ht.record(given).__enter__(),
        lambda: ht.prune(given, HEADS),
    ):
        with untouched(model), pytest.raises(RuntimeError, match=r"was compiled before.*uncompiled model"):
            call()


def test_a_model_compiled_inside_a_context_is_refused():
    model, batch = fresh("bert")
    with ht.ablate(model, HEADS):
        model.compile(backend="eager")
        with pytest.raises(RuntimeError, match="was compiled before"):
            run(model, batch)


@pytest.mark.parametrize("when", ["before", "inside"])
def test_a_wrapper_compiled_elsewhere_misses_no_hook(when):
    """Its code has no hooks, or has those of a context that ended: inside a context none of it is used."""
    model, batch = fresh("bert")
    compiled, plain = torch.compile(model, backend="eager"), run(model, batch)
    if when == "before":
        assert error(run(compiled, batch), plain) == 0
    with ht.ablate(model, HEADS):
        expected = run(model, batch)
        assert error(expected, plain) > 0.1
        assert error(run(compiled, batch), expected) == 0
    assert error(run(compiled, batch), plain) == 0
    with ht.ablate(model, HEADS):
        assert error(run(compiled, batch), expected) == 0
