"""Numbers of a lesson: the catalogue says what to expect, the run measures, and a sentence says what came out.

A caption's numbers are expressions of the catalogue, ``values = { it_fox = "A[3, 1]" }``, evaluated in the notebook's
own names, so that no cell of a lesson is filled with them. Where a run is as expected, the sentence prints the expected
numbers, the same on every machine; where it is not, it prints those of the run.

Two environment variables serve those who keep the course: under ``HEADTOOLS_STRICT`` a number that is not as expected
raises, and ``HEADTOOLS_MEASURED`` names a file to which every measured number is appended (tools/execute_notebooks.py).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any

from headtools.course.catalogue import entry
from headtools.course.plain import escape, plain
from headtools.course.predict import predicted

recorded: dict[str, dict[str, float]] = {}  # what this kernel measured, {key: numbers}
BOX = "border-left:4px solid {};padding:.15em .8em;margin:.3em 0;max-width:48em"


class NotAsExpected(AssertionError):
    """A number of the lesson was not found on this machine."""


@dataclass(frozen=True, repr=False)
class Measured:
    """A sentence of the catalogue with its numbers; ``off`` names those of this run that are not as expected.

    ``usual`` is the sentence with the expected numbers, ``origin`` where numbers come from that were not measured now.
    """

    key: str
    sentence: str
    off: tuple[str, ...] = ()
    usual: str = ""
    prediction: str = ""
    fold: str = ""
    origin: str = ""
    silent: bool = False  # no number, so no small print

    def __str__(self) -> str:
        return " ".join(filter(None, [self.sentence, self.prediction, self.off and self.check]))

    __repr__ = __str__

    @property
    def check(self) -> str:
        """The small print: where the numbers come from, and our run's where this one is another."""
        if self.off:
            ours = "; ".join(self.off) if self.fold else self.usual
            return f"That is your run. Our run: {ours}"
        return self.origin or ("" if self.silent else "Measured in this run, as expected.")

    @property
    def html(self) -> str:
        """Sentence, prediction and small print."""
        prediction = f" <b>{escape(self.prediction)}</b>" if self.prediction else ""
        small = f" <small>{escape(self.check)}</small>" if self.check else ""
        return f"{escape(self.sentence)}{prediction}{small}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self.fold:  # the sentence is Markdown, and as long as it likes
            inside = f"{plain(self.sentence).strip()}\n\n<small>{escape(self.check)}</small>"
            folded = f"<details><summary>{escape(self.fold)}</summary>\n\n{inside}\n\n</details>"
            return {"text/markdown": folded, "text/plain": plain(self)}
        style = BOX.format("#E69F00" if self.off else "#009E73")
        return {"text/html": f'<div style="{style}">{self.html}</div>', "text/plain": plain(self)}


def measured(key: str, /, **numbers: Any) -> Measured:
    """Return the sentence of a catalogue entry with what this run measured.

    key: the entry, such as ``"01.cost"``
    numbers: those of the entry's ``expect`` that its ``values`` do not compute; tensors with one element are welcome

    Within the tolerance of every number, the sentence prints the *expected* ones, so that it reads the same on every
    machine; otherwise those of this run, and ours below. Raises NameError where an expression needs what the notebook
    has not defined, ValueError when the names differ from those of the catalogue, and NotAsExpected in place of another
    run's numbers where ``HEADTOOLS_STRICT`` is set.

    >>> measured("01.mask", before=1.0, after=0.2521)
    With the causal mask the first row still sums to 1. Set to 0 after the softmax (not drawn), it would sum to 0.25.
    """
    about = entry(key)
    expect, given = about.get("expect", {}), about.get("tolerance", {})
    numbers = _evaluated(key, {n: code for n, code in about.get("values", {}).items() if n not in numbers}) | numbers
    here = {name: x.item() if hasattr(x, "item") else x for name, x in numbers.items()}
    recorded[key] = here
    log = os.environ.get("HEADTOOLS_MEASURED")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "numbers": here}) + "\n")
    if set(here) != set(expect):
        if not log:
            raise ValueError(f"{key} expects {', '.join(expect) or 'no numbers'}; got {', '.join(here) or 'none'}")
        expect = here
    caption = about.get("caption", "")
    off = []
    for name, value in here.items():
        allowed = given.get(name, unit(caption, name, expect[name]))
        # The factor forgives the rounding of |0.85 - 0.83| <= 0.02; written so that NaN is off.
        if not abs(value - expect[name]) <= allowed * (1 + 1e-9):
            within = f" to within {allowed:g}" if allowed else ""
            off.append(f"{name} is {value:.6g}, expected {expect[name]:g}{within}")
    if off and os.environ.get("HEADTOOLS_STRICT"):
        raise NotAsExpected(f"{key}: {'; '.join(off)}")
    usual = caption.format(**expect)
    sentence = caption.format(**{name: _like(value, expect[name]) for name, value in here.items()}) if off else usual
    return Measured(key, sentence, tuple(off), usual, predicted(key), about.get("fold", ""), _origin(about), not here)


def _evaluated(key: str, values: Mapping[str, str]) -> dict[str, Any]:
    """Evaluate a caption's expressions in the names of the code outside the package that asked for it."""
    if not values:
        return {}
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("headtools."):
        frame = frame.f_back
    names = {**frame.f_globals, **frame.f_locals}  # one dict, because a comprehension sees no locals of eval
    found = {}
    for name, code in values.items():
        try:
            found[name] = eval(code, names)
        except NameError as error:
            raise NameError(f"{key} needs {error.name}, which is not defined: run the cells above first") from error
    return found


def _origin(about: Mapping[str, Any]) -> str:
    """Say which shipped tables an entry's numbers, or some of them, were read from."""
    if "loaded" in about:
        return f"Loaded from {about['loaded']}."
    if "partly_loaded" in about:
        return f"Measured in this run, except for what was loaded from {about['partly_loaded']}."
    return ""


def _like(value: float, expected: float) -> float:
    """Return a whole number as an int where the catalogue has one, so that it prints without a decimal point."""
    return int(value) if isinstance(expected, int) and value == value and float(value).is_integer() else value


def unit(caption: str, name: str, value: float) -> float:
    """Return one unit of the last digit that a caption prints of a number; 0, equality, for a whole number.

    >>> unit("{a:.2f} of {b}; {c:.1%}", "a", 0.5), unit("{a:.2f} of {b}; {c:.1%}", "c", 0.25)
    (0.01, 0.001)
    """
    specs = [spec for _, field, spec, _ in Formatter().parse(caption) if field == name]
    units = [_unit(format(value, spec), value) for spec in specs or [""]]
    return min(units)


def _unit(shown: str, value: float) -> float:
    if isinstance(value, int) and "." not in shown and "e" not in shown:
        return 0
    decimals, exponent, percent = re.search(r"\d(?:\.(\d+))?(?:e([+-]\d+))?(%)?$", shown).groups()
    return float(f"1e{int(exponent or 0) - len(decimals or '') - (2 if percent else 0)}")
