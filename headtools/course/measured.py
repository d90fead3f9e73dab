"""Numbers of a lesson: the catalogue says what to expect, the run measures, and the sentence prints what was expected.

Two environment variables serve those who keep the course: under ``HEADTOOLS_STRICT`` a number that is not as expected
raises, and ``HEADTOOLS_MEASURED`` names a file to which every measured number is appended (tools/execute_notebooks.py).
"""

from __future__ import annotations

import json
import os
import re
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
    """A sentence of the catalogue with its numbers; ``off`` says which of them are not as expected."""

    key: str
    sentence: str
    off: tuple[str, ...] = ()
    prediction: str = ""
    fold: str = ""
    silent: bool = False  # no number, so no small print

    def __str__(self) -> str:
        return " ".join(filter(None, [self.sentence, self.prediction, self.off and self.check]))

    __repr__ = __str__

    @property
    def check(self) -> str:
        """The small print: what this machine measured."""
        if self.off:
            return f"Not so on this machine: {'; '.join(self.off)}."
        return "" if self.silent else "Measured on this machine as well."

    @property
    def html(self) -> str:
        """Sentence, prediction and small print."""
        prediction = f" <b>{escape(self.prediction)}</b>" if self.prediction else ""
        small = f" <b>{escape(self.check)}</b>" if self.off else f" <small>{escape(self.check)}</small>"
        return f"{escape(self.sentence)}{prediction}{'' if self.silent else small}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        if self.fold:  # the sentence is Markdown, and as long as it likes
            inside = f"{plain(self.sentence).strip()}\n\n<small>{escape(self.check)}</small>"
            folded = f"<details><summary>{escape(self.fold)}</summary>\n\n{inside}\n\n</details>"
            return {"text/markdown": folded, "text/plain": plain(self)}
        style = BOX.format("#D55E00" if self.off else "#009E73")
        return {"text/html": f'<div style="{style}">{self.html}</div>', "text/plain": plain(self)}


def measured(key: str, /, **numbers: Any) -> Measured:
    """Return the sentence of a catalogue entry after comparing its numbers with those measured here.

    key: the entry, such as ``"01.cost"``
    numbers: one for each expected number, by its name; tensors with one element are welcome

    The sentence prints the *expected* numbers, so it reads the same on every machine. A number further away than its
    tolerance is named beside it. Raises ValueError when the names differ from those of the catalogue, and
    NotAsExpected instead of showing the difference where ``HEADTOOLS_STRICT`` is set.

    >>> measured("01.mask", before=1.0, after=0.2521)
    Masked before the softmax, the first row sums to 1. Masked after it, the row sums to 0.25.
    """
    here = recorded[key] = {name: x.item() if hasattr(x, "item") else x for name, x in numbers.items()}
    about = entry(key)
    expect, given = about.get("expect", {}), about.get("tolerance", {})
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
    return Measured(key, caption.format(**expect), tuple(off), predicted(key), about.get("fold", ""), not here)


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
