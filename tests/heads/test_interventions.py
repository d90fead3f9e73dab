"""Contexts that do not nest, that share objects, that several threads enter, and copies made inside them."""

import contextlib
import copy
import io
import pickle
import re
import threading

import pytest
import torch
from torch import nn

import headtools as ht
from headtools.heads import _hooks as hooks
from headtools.heads._attention import EAGER
from headtools.importance._inputs import evaluating

from .reference import assert_same_state, state, untouched
from .zoo import fresh, run, zoo_model

HEADS = {("encoder", 0): [0, 2]}


@pytest.fixture(autouse=True)
def nothing_stays_open():
    """No account of any object may outlive the contexts of a test."""
    before = set(hooks._OPEN)  # of other tests' open contexts
    yield
    assert set(hooks._OPEN) <= before


def implementation(model):
    return model.config._attn_implementation


def crossed(*contexts):
    """Enters contexts one after the other, and leaves them in the same order."""
    stacks = [contextlib.ExitStack() for _ in contexts]
    for stack, context in zip(stacks, contexts, strict=True):
        stack.enter_context(context)
    return stacks


def contexts_of(model, batch):
    with ht.record(model, want="z") as source:
        run(model, batch)
    return {
        "gates()": ht.gates(model, {("encoder", 0): torch.zeros(4)}),
        "ablate()": ht.ablate(model, HEADS),
        "ablate() ": ht.ablate(model, HEADS, replacement="uniform"),
        "record()": ht.record(model),
        "record() ": ht.record(model, want="q"),
        "patch()": ht.patch(model, HEADS, source),
        "a measurement": evaluating(model),
    }


NAMES = ("gates()", "ablate()", "ablate() ", "record()", "record() ", "patch()", "a measurement")


def test_two_models_that_share_a_configuration():
    """What the second model found in it when it entered was what the first had put there, and stayed for good."""
    one, batch = fresh("bert")
    two = type(one)(one.config).eval()
    before = implementation(one)
    first, second = crossed(ht.record(one), ht.record(two))
    run(one, batch)
    first.close()
    assert implementation(one) == EAGER  # still wanted by the second
    run(two, batch)
    second.close()
    assert implementation(one) == before


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_contexts_that_end_in_any_order(order):
    model, batch = fresh("bert")
    plain, before = run(model, batch), state(model)
    contexts = (
        ht.ablate(model, {("encoder", 0): [0, 1]}, replacement="uniform"),
        ht.record(model),
        ht.ablate(model, {("encoder", 0): [1, 3]}, replacement="uniform"),
    )
    stacks = crossed(*contexts)
    for number in order:
        stacks[number].close()
        if number != order[-1]:
            remaining = [n for n in (0, 2) if n in order[order.index(number) + 1 :]]
            heads = sorted({head for n in remaining for head in ((0, 1), (), (1, 3))[n]})
            with ht.ablate(model, {("encoder", 0): heads}, replacement="uniform"):
                expected = run(model, batch)
            assert torch.equal(run(model, batch), expected), f"after {number} of {order}"
    assert_same_state(before, state(model))
    assert torch.equal(run(model, batch), plain)


@pytest.mark.filterwarnings("ignore:.*changes nothing until it is entered")  # one of several is entered
@pytest.mark.parametrize("name", NAMES)
def test_a_copy_made_inside_a_context_is_refused(name):
    model, batch = fresh("bert")
    with untouched(model):
        with contexts_of(model, batch)[name]:
            words = rf"cannot be copied or pickled inside {re.escape(name.strip())}.*before or after"
            for copying in (
                lambda: copy.deepcopy(model),
                lambda: copy.copy(model),
                lambda: copy.deepcopy(nn.Sequential(model.bert.encoder)),
                lambda: pickle.dumps(model),
                lambda: pickle.dumps(model.bert.encoder.layer[0].attention),
                lambda: torch.save(model, io.BytesIO()),
            ):
                with pytest.raises(RuntimeError, match=words):
                    copying()
            torch.save(model.state_dict(), io.BytesIO())  # weights are what they are
        assert torch.equal(run(copy.deepcopy(model), batch), run(model, batch))
        assert torch.equal(run(pickle.loads(pickle.dumps(model)), batch), run(model, batch))


def test_pruning_inside_a_context_is_refused():
    model, batch = fresh("bert")
    for change in (
        lambda: ht.prune(model, {("encoder", 1): [0]}),
        lambda: ht.refit(model, {("encoder", 1): [0]}, batch),
        lambda: ht.merge(model, [[("encoder", 1, 0), ("encoder", 1, 1)]], batch),
    ):
        with untouched(model), ht.ablate(model, HEADS), pytest.raises(RuntimeError, match=r"ablate\(\) is open.*end"):
            change()


def in_thread(function):
    """What a function raised, or returned, in a thread of its own called 'second'."""
    found = []

    def work():
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, name="second")
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.filterwarnings("ignore:.*changes nothing until it is entered")  # one of several is entered
@pytest.mark.parametrize("name", NAMES)
def test_a_second_thread_is_refused(name):
    model, batch = fresh("bert")
    labelled = batch | {"labels": batch["input_ids"]}
    expected = ht.gradient(model, labelled).flat()
    with untouched(model), contexts_of(model, batch)[name] as _:
        for second in (
            lambda: ht.gradient(model, labelled),
            lambda: ht.ablate(model, HEADS).__enter__(),
            lambda: ht.record(model).__enter__(),
            lambda: ht.ablate(model.bert, HEADS, replacement="uniform").__enter__(),
        ):
            error = in_thread(second)
            assert isinstance(error, RuntimeError), error
            assert "'second'" in str(error)
            assert f"is inside {name.strip()}" in str(error)
            assert f"in thread {threading.current_thread().name!r}" in str(error)
            assert "Lock" in str(error)
    assert torch.equal(in_thread(lambda: ht.gradient(model, labelled)).flat(), expected)


def test_a_model_may_run_in_another_thread_inside_a_context():
    """As ``generate`` does with a streamer: what is off is off there, too."""
    model, batch = zoo_model("bert")
    with ht.ablate(model, HEADS), torch.no_grad():
        inside = run(model, batch)
        assert torch.equal(in_thread(lambda: run(model, batch)), inside)


@pytest.mark.parametrize("by", ["uniform", "record"])
def test_another_attention_set_inside_a_context(by):
    """Even attention that was quietly not computed, and maps that never came."""
    model, batch = fresh("bert")
    context = ht.record(model) if by == "record" else ht.ablate(model, HEADS, replacement="uniform")
    with untouched(model), context:
        model.set_attn_implementation("eager")
        with pytest.raises(RuntimeError, match=r"set to 'eager' inside.*before entering"):
            run(model, batch)


def test_a_record_of_two_runs_at_once_is_refused():
    """Maps of one thread's batch came with the outputs of the other's."""
    model, batch = fresh("bert")
    site = ht.sites(model)["encoder", 0]

    def run_between(_module, _args):  # between the maps and the outputs of this thread's batch
        if threading.current_thread().name != "second":
            in_thread(lambda: run(model, batch))

    handle = site.out.register_forward_pre_hook(run_between)
    with untouched(model), pytest.raises(RuntimeError, match="two threads ran encoder 0"), ht.record(model):
        run(model, batch)
    handle.remove()
