"""What stands in a lesson beside its code, one file for each: ``01.toml`` and so on.

An entry is found by a short key, ``"01.weights"``, and has any of::

    [weights]
    predict = "Which token receives most of the attention of 'it'?"
    caption = "'it' gives {fox:.2f} of its attention to 'fox'; its row sums to {total}."
    alt = "A map of four queries by four keys. The column of 'fox' is bright."
    values = { fox = "A[3, 1]", total = "A[3].sum()" }   # computed in the notebook's own names
    expect = { fox = 0.94, total = 1 }
    tolerance = { total = 1e-6 }    # left out: one unit of the last printed digit; whole numbers must be equal
    loaded = "the translator's shipped tables"   # or partly_loaded: what no run of the lesson measures

What others write is a list of its own. ``here`` may print expected numbers of any entry of the lesson::

    [[others]]
    row = "3.1"
    claim = "Several heads cost more than one large head."
    source = "a course page"
    cited = ["wrong", "Vaswani et al. (2017, section 3.2.2) write the opposite."]
    here = ["wrong", "{cost[one]:,} multiplications with one head, {cost[eight]:,} with eight."]

The sample report of an investigation is an entry whose caption is Markdown and folded under a heading::

    [investigation]
    fold = "A sample report"
    caption = "**Question.** ... **Result.** {n} of 48 heads ..."
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def lesson(number: str) -> dict[str, Any]:
    """Return the catalogue of one lesson, such as ``lesson("01")``. Raises KeyError where there is none."""
    file = files(__name__) / f"{number}.toml"
    if not file.is_file():
        raise KeyError(f"lesson {number!r} has no catalogue; there are {', '.join(lessons())}")
    return tomllib.loads(file.read_text("utf-8"))


def lessons() -> list[str]:
    """Return the numbers of all lessons that have a catalogue."""
    return sorted(f.name[:2] for f in files(__name__).iterdir() if f.name.endswith(".toml"))


def entry(key: str) -> dict[str, Any]:
    """Return one entry, such as ``entry("01.weights")``. Raises KeyError for a key that is not there."""
    number, _, name = key.partition(".")
    entries = {n: e for n, e in lesson(number).items() if isinstance(e, dict)}
    if name not in entries:
        raise KeyError(f"lesson {number} has no entry {name!r}; it has {', '.join(entries)}")
    return entries[name]
