"""What others write, weighed: ``ledger`` shows it with two verdicts, ``ledger_rows`` reads it back."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtools.course import measured as measured_here
from headtools.course.catalogue import lesson
from headtools.course.plain import escape, plain

if TYPE_CHECKING:
    from headtools.course.course_claims import CourseClaims

VERDICTS = {  # verdict: (colour, mark); the word is always printed beside them
    "right": ("#009E73", "✓"),
    "imprecise": ("#E69F00", "≈"),
    "wrong": ("#D55E00", "✗"),
    "contradicted": ("#CC79A7", "⇄"),
    "unverifiable": ("#777777", "?"),
}


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
            old = {name: row[name] for name in ("row", "claim", "source")}  # what ``ledger_rows`` gives
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


def ledger(number: str | None = None) -> Others | CourseClaims:
    """Show what others write on a lesson's subject, ``ledger("01")``: a table with two verdicts.

    The first verdict, *as cited*, is on what the source really says; the second, *here*, on what the lesson measured.
    Both come from the lesson's catalogue. ``ledger()`` has the claims of all lessons, with filters: ``course_claims``.

    Raises KeyError for a lesson that has no catalogue. ``ledger_rows`` reads the rows back out of a notebook.

    >>> len(ledger("01").rows) > 1
    True
    >>> len(ledger()) > len(ledger("01").rows)
    True
    """
    if number is None:
        from headtools.course.course_claims import course_claims  # which reads the verdicts from here

        return course_claims()
    about = lesson(number)
    # The numbers in its texts are those that the lesson's entries expect.
    expected = {
        name: e.get("expect") or measured_here.recorded.get(f"{number}.{name}", {})
        for name, e in about.items()
        if isinstance(e, dict)
    }
    rows = [{**row, "here": [row["here"][0], row["here"][1].format(**expected)]} for row in about.get("others", [])]
    return Others(tuple(rows))


def ledger_rows(notebook: str | Path) -> list[dict[str, str]]:
    """Read the rows of ``ledger`` out of a notebook's stored outputs, in order.

    notebook: path of an ``.ipynb`` file with outputs

    Gives one dict for each row: row, claim, source, measured, verdict. Raises ValueError for what is no notebook.
    """
    try:
        cells = json.loads(Path(notebook).read_text("utf-8"))["cells"]
        rows = []
        for output in (o for cell in cells for o in cell.get("outputs", [])):
            html = output.get("data", {}).get("text/html", "")
            html = html if isinstance(html, str) else "".join(html)
            rows += [json.loads(unescape(m)) for m in re.findall(r'data-ledger="([^"]*)"', html)]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{notebook} is no notebook that can be read ({error}): run it and save it again") from error
    return rows
