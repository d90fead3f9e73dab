"""Sentences with numbers: ``claim`` checks one of ours, ``ledger`` weighs one that others made."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import unescape
from numbers import Real
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from headtools.lesson import measured as measured_here
from headtools.lesson.catalogue import lesson
from headtools.lesson.plain import escape, plain

if TYPE_CHECKING:
    from headtools.lesson.course_claims import CourseClaims

VERDICTS = {  # verdict: (colour, mark); the word is always printed beside them
    "right": ("#009E73", "✓"),
    "imprecise": ("#E69F00", "≈"),
    "wrong": ("#D55E00", "✗"),
    "contradicted": ("#CC79A7", "⇄"),
    "unverifiable": ("#777777", "?"),
}


class ClaimFailed(AssertionError):
    """A claim's number was not found on this machine."""


@dataclass(frozen=True, repr=False)
class Claim:
    """A sentence whose numbers were checked; ``str()`` of it is the sentence with the expected numbers."""

    sentence: str
    measured: tuple[float, ...]
    expected: tuple[float, ...]
    tol: tuple[float, ...]

    def __str__(self) -> str:
        return self.sentence

    __repr__ = __str__

    @property
    def check(self) -> str:
        """How closely the claim was checked, in words."""
        unlike = dict.fromkeys(f"{t:g}" for t in self.tol if t)
        return f"Checked on this machine{', to within ' if unlike else ', exactly'}{' and '.join(unlike)}."

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        html = (
            '<div style="border-left:4px solid #009E73;padding:.15em .8em;margin:.3em 0;max-width:48em">'
            f"{escape(self.sentence)} <small>{escape(self.check)}</small></div>"
        )
        return {"text/html": html, "text/plain": plain(self.sentence)}


def claim(sentence: str, measured: Any, expected: Any, tol: Any) -> Claim:
    """Check that what you measured is what the sentence says, and give the sentence back.

    The sentence has one ``{}`` for each number (``{:.2f}`` and the like work). It is filled with the *expected*
    numbers, so it reads the same on every machine. It prints nothing: end a cell with it, or hand it to ``figure``.

    sentence: text with one field per number
    measured, expected: one number, or a flat sequence of as many numbers as there are fields (tensors and arrays too)
    tol: the largest ``|measured - expected|`` allowed, in the numbers' own unit: one number, or one for each field

    Raises ClaimFailed (an AssertionError) when a number is further away than ``tol`` or is not a number at all, and
    ValueError when the sentence and the numbers do not fit together.

    >>> claim("Head {} puts {:.2f} of its attention on the previous token.", (5, 0.8312), (5, 0.83), (0, 0.01))
    Head 5 puts 0.83 of its attention on the previous token.
    >>> claim("The rows sum to {}.", 0.7, 1, 1e-6)
    Traceback (most recent call last):
    ...
    headtools.lesson.claims.ClaimFailed: not so on this machine: "The rows sum to 1."
    measured 0.7, expected 1, tol 1e-06
    """
    if not isinstance(sentence, str) or not sentence.strip():
        raise ValueError(f"a claim needs a sentence with one {{}} for each number, got {sentence!r}")
    names = [field for _, field, _, _ in Formatter().parse(sentence) if field is not None]
    if not names or any(names):
        raise ValueError(f"write every number of the sentence as {{}} or {{:.2f}}, without a name: {sentence!r}")
    numbers = {"measured": _numbers(measured, "measured"), "expected": _numbers(expected, "expected")}
    for what, found in numbers.items():
        if len(found) != len(names):
            raise ValueError(f"the sentence has {len(names)} fields but {what} has {len(found)} numbers: {sentence!r}")
    tols = _numbers(tol, "tol")
    tols = tols * len(names) if len(tols) == 1 else tols
    if len(tols) != len(names) or not all(math.isfinite(t) and t >= 0 for t in tols):
        raise ValueError(f"tol must be one finite number >= 0, or {len(names)} of them, got {tol!r}")
    if not all(math.isfinite(e) for e in numbers["expected"]):
        raise ValueError(f"expected must be finite, got {expected!r}")
    text = sentence.format(*numbers["expected"])
    for m, e, t in zip(numbers["measured"], numbers["expected"], tols, strict=True):
        # The factor forgives the rounding of |0.85 - 0.83| <= 0.02; written so that NaN fails.
        if not abs(m - e) <= t * (1 + 1e-9):
            raise ClaimFailed(f'not so on this machine: "{text}"\nmeasured {m:.6g}, expected {e:.6g}, tol {t:g}')
    return Claim(text, numbers["measured"], numbers["expected"], tols)


def _numbers(given: Any, what: str) -> tuple[Any, ...]:
    """Plain numbers out of a number, a flat sequence, a tensor or an array."""
    plain = given.tolist() if hasattr(given, "tolist") else given
    listed = list(plain) if isinstance(plain, Sequence) and not isinstance(plain, str) else [plain]
    listed = [x.item() if hasattr(x, "item") else x for x in listed]
    if not listed or not all(isinstance(x, Real) for x in listed):
        raise ValueError(f"{what} must be a number or a flat sequence of numbers, got {given!r}")
    return tuple(listed)


@dataclass(frozen=True, repr=False)
class Ledger:
    """One row of the claims ledger."""

    row: str
    claim: str
    source: str
    measured: str
    verdict: str

    def __repr__(self) -> str:
        said = f"Claim {self.row} ({self.source}): {self.claim}"
        return f"{said}\nMeasured here: {self.measured}\nVerdict: {self.verdict}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        colour, mark = VERDICTS[self.verdict]
        html = (
            f'<div data-ledger="{escape(json.dumps(asdict(self), ensure_ascii=False))}" '
            f'style="border:1px solid {colour};border-left:8px solid {colour};padding:.4em .9em;max-width:48em">'
            f"<div><b>Claims ledger {escape(self.row)}</b> · verdict: <b>{mark} {escape(self.verdict)}</b></div>"
            f"<div><b>The claim.</b> {escape(self.claim)} <small>({escape(self.source)})</small></div>"
            f"<div><b>Measured here.</b> {escape(self.measured)}</div></div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}


@dataclass(frozen=True, repr=False)
class Others:
    """What others write on a lesson's subject, each with two verdicts: on the source (cited), and found here."""

    rows: tuple[dict[str, Any], ...]

    def __repr__(self) -> str:
        lines = []
        for row in self.rows:
            lines.append(f"{row['claim']} ({row['source']}, row {row['row']})")
            lines += [f"    {name}: {row[part][0]}. {row[part][1]}" for part, name in _PARTS.items()]
        return "\n".join(lines)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        style = "text-align:left;vertical-align:top;padding:.4em .8em"
        heads = "".join(f'<th scope="col" style="{style}">{t}</th>' for t in ("What others write", *_PARTS.values()))
        body = ""
        for row in self.rows:
            old = {name: row[name] for name in ("row", "claim", "source")}  # as ``ledger_rows`` reads it
            old |= {"measured": row["here"][1], "verdict": row["here"][0]}
            cells = "".join(_verdict(*row[part], style) for part in _PARTS)
            body += (
                f'<tr data-ledger="{escape(json.dumps(old, ensure_ascii=False))}"><td style="{style}">'
                f"{escape(row['claim'])} <small>({escape(row['source'])}, row {row['row']})</small></td>{cells}</tr>"
            )
        html = (
            '<div style="overflow-x:auto"><table style="border-collapse:collapse;max-width:72em">'
            f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}


_PARTS = {"cited": "As cited", "here": "Here"}  # part of a row: heading of its column


def _verdict(verdict: str, why: str, style: str) -> str:
    colour, mark = VERDICTS[verdict]
    return f'<td style="{style};border-left:6px solid {colour}"><b>{mark} {escape(verdict)}</b><br>{escape(why)}</td>'


def _others(number: str) -> Others:
    """Read a lesson's list from its catalogue; its numbers are those that the lesson's entries expect."""
    about = lesson(number)
    expected = {name: e.get("expect") or measured_here.found.get(f"{number}.{name}", {})
                for name, e in about.items() if isinstance(e, dict)}  # fmt: skip
    rows = [{**row, "here": [row["here"][0], row["here"][1].format(**expected)]} for row in about.get("others", [])]
    return Others(tuple(rows))


def ledger(
    row: str | None = None,
    *,
    claim: str | None = None,
    source: str | None = None,
    measured: str | Claim | None = None,
    verdict: str | None = None,
) -> Ledger | Others | CourseClaims:
    """Show what others write on a lesson's subject, ``ledger("01")``: a table with two verdicts.

    Without a number it has the claims of all lessons, with filters (``course_claims``). In a lesson's table, the first
    verdict, *as cited*, is on what the source really says; the second, *here*, on what the lesson measured. Both come
    from the catalogue. With ``claim`` and the rest it boxes one claim instead: what they say, what you measured, and
    the verdict.

    row: the claim's number in the ledger, such as ``"3.1"`` or ``"E1"``
    claim: what is claimed, in our own words
    source: where it was made
    measured: what this lesson measured, a sentence or a ``claim(...)``
    verdict: right, imprecise, wrong, contradicted (by another source) or unverifiable

    Raises ValueError for an empty part, a row that is no number and an unknown verdict. ``ledger_rows`` reads the boxes
    back out of a notebook.

    >>> len(ledger("01").rows) > 1
    True
    >>> ledger("3.1", claim="More heads cost more.", source="a course page",
    ...        measured="1 head and 8 heads need the same multiplications.", verdict="wrong")
    Claim 3.1 (a course page): More heads cost more.
    Measured here: 1 head and 8 heads need the same multiplications.
    Verdict: wrong
    """
    if (claim, source, measured, verdict) == (None,) * 4:
        if row is None:
            from headtools.lesson.course_claims import course_claims  # which reads the verdicts from here

            return course_claims()
        return _others(row)
    if not re.fullmatch(r"[A-Z]?\d+(\.\d+[a-z]?)?", str(row)):
        raise ValueError(f"row must be a number of the ledger such as '3.1' or 'E1', got {row!r}")
    if verdict not in VERDICTS:
        raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {verdict!r}")
    parts = {"claim": claim, "source": source, "measured": str(measured) if isinstance(measured, Claim) else measured}
    for name, text in parts.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"ledger row {row}: {name} must be a sentence, got {text!r}")
    return Ledger(row=str(row), verdict=verdict, **parts)


def ledger_rows(notebook: str | Path) -> list[dict[str, str]]:
    """Read the ledger boxes out of a notebook's stored outputs, in order.

    notebook: path of an ``.ipynb`` file with outputs

    Gives one dict for each box: row, claim, source, measured, verdict. Raises ValueError for what is no notebook.
    """
    try:
        cells = json.loads(Path(notebook).read_text("utf-8"))["cells"]
        found = []
        for output in (o for cell in cells for o in cell.get("outputs", [])):
            html = output.get("data", {}).get("text/html", "")
            html = html if isinstance(html, str) else "".join(html)
            found += [json.loads(unescape(m)) for m in re.findall(r'data-ledger="([^"]*)"', html)]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{notebook} is no notebook that can be read ({error}): run it and save it again") from error
    return found
