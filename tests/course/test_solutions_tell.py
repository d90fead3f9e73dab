"""Numbers that a lesson's solution tells, where no cell of the lesson counts them, because the reader is to count."""

import pytest

import headtools as ht
from headtools.organism.evaluate import token_accuracy


def test_which_head_dies():
    """Lesson 03, exercise 4: what five heads cost, on the 100 sentences that its ``accuracy`` reads."""
    model, _ = ht.load()
    test = ht.corpus("organism", "test", limit=100)
    whole = token_accuracy(model, test)
    cost = {}
    for name in ("4.3", "2.5", "5.7", "5.0", "3.4"):
        layer, head = map(int, name.split("."))
        with ht.ablate(model, [("encoder", layer, head)]):
            cost[name] = whole - token_accuracy(model, test)
    costs = {"4.3": 0.019, "2.5": 0.006, "5.7": 0.002, "5.0": 0.002, "3.4": 0}
    assert {name: each.mean().item() for name, each in cost.items()} == pytest.approx(costs, abs=6e-4)
    assert all(ht.bootstrap(cost[name])[0] > 0 for name in ("2.5", "5.7", "5.0"))  # as a hint of the exercise says
    assert [end.item() for end in ht.bootstrap(cost["4.3"])] == pytest.approx([0.012, 0.026], abs=0.0015)
