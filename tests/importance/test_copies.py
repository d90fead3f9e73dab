"""Copies of a batch: where its examples are, and the same forms with them repeated."""

from collections import namedtuple

import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

from headtools.importance._replay.copies import ambiguous, axes_by_rows, batch_axes, check_alike, copies_of, form_of

Pair = namedtuple("Pair", "a b")
ONES = torch.ones


@pytest.mark.parametrize(
    ("one", "two", "axes"),
    [
        (ONES(3, 7), ONES(6, 7), 0),
        (ONES(3, 7), ONES(3, 14), 1),
        (ONES(3, 7), ONES(3, 7), None),
        ({"a": ONES(2), "b": None}, {"a": ONES(4), "b": None}, {"a": 0, "b": None}),
        ([ONES(2), (ONES(1, 2),)], [ONES(4), (ONES(1, 4),)], [0, [1]]),
    ],
)
def test_where_examples_are(one, two, axes):
    assert batch_axes(one, two) == axes
    doubled = copies_of(one, axes, 2)
    check_alike(doubled, two)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (ONES(3, 7), ONES(5, 7)),
        (ONES(3, 7), ONES(6, 14)),
        (ONES(3, 7), ONES(7, 8)),
        (ONES(3), None),
        (ONES(3, 7), ONES(6)),  # another number of axes
        ([ONES(3)], [ONES(6), ONES(6)]),
        ({"a": ONES(3)}, {"b": ONES(6)}),
        ({"a": ONES(3)}, {"b": ONES(6)}.values()),
    ],
)
def test_what_is_not_twice_is_refused(one, two):
    with pytest.raises(ValueError, match=r"no axis holds the examples|of another form|shorter than"):
        batch_axes(one, two)


def test_forms_are_kept_and_tensors_are_new():
    kept = torch.tensor([[1.0], [2.0]])
    for value in (Pair(kept, 3), BaseModelOutput(last_hidden_state=kept), {"a": kept}, [kept], (kept, None)):
        made = copies_of(value, batch_axes(value, copies_of(value, _rows(value), 2)), 2)
        assert type(made) is type(value)
        first = next(iter(made.values())) if isinstance(made, dict) else made[0]
        assert first.flatten().tolist() == [1, 2, 1, 2]
    same = copies_of(kept, None, 1)
    assert torch.equal(same, kept)
    assert same.data_ptr() != kept.data_ptr()


def _rows(value):
    if isinstance(value, torch.Tensor):
        return 0
    if isinstance(value, dict):
        return {name: _rows(part) for name, part in value.items()}
    return [_rows(part) for part in value] if isinstance(value, (tuple, list)) else None


def test_a_batch_is_copied_where_it_has_rows():
    batch = {"ids": torch.tensor([[1], [2]]), "scale": torch.tensor(3.0), "other": ONES(3, 2), "use_cache": False,
             "parts": (ONES(2, 1), {"x": ONES(2)})}  # fmt: skip
    made = copies_of(batch, axes_by_rows(batch, 2), 3)
    assert made["ids"].flatten().tolist() == [1, 2] * 3
    assert made["scale"].item() == 3.0
    assert made["other"].shape == (3, 2)
    assert made["use_cache"] is False
    assert made["parts"][0].shape == (6, 1)
    assert made["parts"][1]["x"].shape == (6,)


@pytest.mark.parametrize(("one", "two", "nearly_equal"), [
    (torch.tensor([1.0, 1000.0]), torch.tensor([1.9, 1000.0]), True),  # small beside the greatest
    (torch.tensor([1.0, 2.0]), torch.tensor([1.1, 2.0]), False),
    (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
    (torch.tensor([float("inf"), 1.0]), torch.tensor([float("inf"), 1.0]), True),
    (torch.tensor([-float("inf"), 1.0]), torch.tensor([-float("inf"), 1.1]), False),  # an infinity is no size
    (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.1]), False),
    (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
    (torch.tensor([1000, 1]), torch.tensor([1000, 2]), False),  # whole numbers are not rounded
    ({"a": [torch.zeros(0)]}, {"a": [torch.zeros(0)]}, True),
    ({"a": (torch.ones(1),)}, {"a": (torch.zeros(1),)}, False),
    ("x", "y", True),
])  # fmt: skip
def test_alike_but_for_rounding(one, two, nearly_equal):
    if nearly_equal:
        check_alike(one, two)
    else:
        with pytest.raises(ValueError, match="two copies of a batch"):
            check_alike(one, two)


def test_which_tensors_may_have_as_many_rows_by_chance():
    sure = {"input_ids": ONES(3, 7), "labels": ONES(3), "pixel_values": ONES(3, 3, 4, 4), "position_ids": ONES(1, 7),
            "use_cache": False, "nothing": None, "w": ONES(4), "parts": [ONES(2)]}  # fmt: skip
    assert not ambiguous(sure, 3)
    for more in ({"w": ONES(3)}, {"parts": [ONES(2), {"x": ONES(3)}]}, {"position_ids": ONES(3, 3, 7)}):
        assert ambiguous(sure | more, 3)
    assert axes_by_rows(sure | {"w": ONES(3), "parts": (ONES(3), 1)}, 3, sure=True) == {
        "input_ids": 0, "labels": 0, "pixel_values": 0, "position_ids": None, "use_cache": None, "nothing": None,
        "w": None, "parts": [None, None]}  # fmt: skip


@pytest.mark.parametrize(("one", "two", "axes", "same"), [
    (ONES(3, 7), ONES(5, 9), 0, True),
    (ONES(6, 7), ONES(10, 7), 0, True),
    (ONES(3, 7), ONES(6, 7), 0, False),
    (ONES(3, 7), ONES(5, 7, 1), 0, False),
    (ONES(1, 4, 7, 7), ONES(1, 4, 9, 9), None, True),
    (ONES(1, 4, 7, 7), ONES(5, 4, 7, 7), None, False),
    (torch.tensor(1.0), torch.tensor(2.0), None, True),
    ([ONES(3), None], [ONES(5), None], [0, None], True),
    ([ONES(3), None], [ONES(5), ONES(5)], [0, None], False),
    ({"a": ONES(3)}, {"a": ONES(5)}, {"a": 0}, True),
    ({"use_cache": True}, {"use_cache": False}, {"use_cache": None}, False),
])  # fmt: skip
def test_forms_of_two_batches(one, two, axes, same):
    assert (form_of(one, axes, 3) == form_of(two, axes, 5)) == same
