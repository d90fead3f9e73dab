"""Claims pass only when every number is where the sentence says, and read the same on every machine."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headtools.lesson.claims import VERDICTS, ClaimFailed, claim, ledger, ledger_rows

finite = st.floats(-1e6, 1e6)


@given(expected=finite, tol=st.floats(0, 100), off=st.floats(-300, 300))
def test_passes_exactly_within_the_tolerance(expected, tol, off):
    measured = expected + off
    near, far = abs(measured - expected) <= tol, abs(measured - expected) > tol * 1.00001
    if near:
        assert str(claim("It is {:.3f}.", measured, expected, tol)) == f"It is {expected:.3f}."
    elif far:
        with pytest.raises(ClaimFailed):
            claim("It is {:.3f}.", measured, expected, tol)


@pytest.mark.parametrize("measured", [float("nan"), float("inf"), torch.tensor(float("nan")), np.float32("nan")])
def test_what_is_no_number_never_passes(measured):
    with pytest.raises(ClaimFailed, match="expected 1, tol 1e\\+09"):
        claim("It is {}.", measured, 1, 1e9)


def test_the_text_has_the_expected_numbers():
    made = claim("Heads {} of {} hold {:.1%}.", torch.tensor([3.0, 48.0, 0.0625]), [3, 48, 0.06], (0, 0, 0.01))
    assert str(made) == repr(made) == "Heads 3 of 48 hold 6.0%."
    bundle = made._repr_mimebundle_()
    assert bundle["text/plain"] == str(made)
    assert "to within 0.01." in bundle["text/html"]
    assert claim("It is {}.", torch.tensor(2), 2, 0).check == "Checked on this machine, exactly."


def test_rounding_of_a_difference_is_forgiven():
    assert claim("{}", 0.85, 0.83, 0.02)  # 0.85 - 0.83 is 0.020000000000000018
    with pytest.raises(ClaimFailed):
        claim("{}", 0.8501, 0.83, 0.02)


def test_a_failure_says_everything():
    with pytest.raises(ClaimFailed, match='"Head 5 holds 0\\.83\\."\nmeasured 0\\.5, expected 0\\.83, tol 0\\.01'):
        claim("Head {} holds {:.2f}.", (5, 0.5), (5, 0.83), (0, 0.01))
    assert issubclass(ClaimFailed, AssertionError)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("No number.", 1, 1, 0), "without a name"),
        (("{x}", 1, 1, 0), "without a name"),
        (("", 1, 1, 0), "needs a sentence"),
        (("{} {}", 1, (1, 2), 0), "2 fields but measured has 1"),
        (("{}", 1, (1, 2), 0), "1 fields but expected has 2"),
        (("{}", 1, 1, -1), "tol must be"),
        (("{}", 1, 1, float("inf")), "tol must be"),
        (("{}", 1, 1, float("nan")), "tol must be"),
        (("{} {}", (1, 2), (1, 2), (0, 0, 0)), "tol must be"),
        (("{}", 1, float("nan"), 0), "expected must be finite"),
        (("{}", "1", 1, 0), "measured must be a number"),
        (("{}", [[1]], 1, 0), "flat sequence"),
        (("{}", [], 1, 0), "measured must be a number"),
    ],
)
def test_bad_input(arguments, says):
    with pytest.raises(ValueError, match=says):
        claim(*arguments)


def test_hostile_text_is_escaped():
    text = '</div><script>alert(1)</script>"'
    made = claim(text.replace("1", "{}"), 1, 1, 0)
    box = ledger("3.1", claim=text, source=text, measured=made, verdict="wrong")
    for html in (made._repr_mimebundle_()["text/html"], box._repr_mimebundle_()["text/html"]):
        assert "<script" not in html
        assert "&lt;script&gt;" in html


def test_ledger_rows_come_back_from_a_notebook(tmp_path):
    rows = [
        {"row": row, "claim": f'<b>"{verdict}"</b> & é', "source": "s", "measured": "m", "verdict": verdict}
        for row, verdict in zip(("3.1", "0.14", "2.10a", "E1", "3.6"), VERDICTS, strict=True)
    ]
    made = [ledger(**row)._repr_mimebundle_()["text/html"] for row in rows]
    outputs = [
        {"data": {"text/html": html if i % 2 else html.splitlines(keepends=True)}} for i, html in enumerate(made)
    ]
    cells = [{"cell_type": "markdown"}, {"outputs": [{"name": "stdout"}, *outputs[:2]]}, {"outputs": outputs[2:]}]
    path = tmp_path / "a.ipynb"
    path.write_text(json.dumps({"cells": cells}), "utf-8")
    assert ledger_rows(path) == rows


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"verdict": "true"}, "verdict must be one of right"),
        ({"row": "three"}, "row must be"),
        ({"claim": " "}, "claim must be a sentence"),
        ({"measured": None}, "measured must be a sentence"),
    ],
)
def test_bad_ledger_rows(change, says):
    good = {"row": "3.1", "claim": "c", "source": "s", "measured": "m", "verdict": "right"}
    with pytest.raises(ValueError, match=says):
        ledger(**(good | change))
