"""What others write, weighed: ``ledger`` shows it with two verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headtools.course import measured as measured_here
from headtools.course.catalogue import lesson, lessons
from headtools.course.plain import escape, plain

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
        numbers = dict.fromkeys(row["lesson"] for row in self.rows)  # in their order
        by_lesson = {number: [row for row in self.rows if row["lesson"] == number] for number in numbers}
        html = "".join(_table(rows) for rows in by_lesson.values())
        if len(by_lesson) > 1:  # the marks let tests leave this output out: it changes whenever a lesson's claims do
            folded = (
                f"<details><summary>Lesson {number} ({len(rows)} claims)</summary>{_table(rows)}</details>"
                for number, rows in by_lesson.items()
            )
            html = f"<!--course claims-->{''.join(folded)}<!--end of course claims-->"
        return {"text/html": html, "text/plain": plain(repr(self))}


def _table(rows: list[dict[str, Any]]) -> str:
    style = "text-align:left;vertical-align:top;padding:.4em .8em"
    heads = "".join(f'<th scope="col" style="{style}">{t}</th>' for t in ("What others write", *_PARTS.values()))
    body = ""
    for row in rows:
        cells = "".join(_verdict(*row[part], style) for part in _PARTS)
        source = f"<small>({escape(row['source'])}, row {row['row']})</small>"
        body += f'<tr><td style="{style}">{escape(row["claim"])} {source}</td>{cells}</tr>'
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;max-width:72em">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


_PARTS = {"cited": "As cited", "here": "Here"}  # part of a row: heading of its column


def _verdict(verdict: str, why: str, style: str) -> str:
    colour, mark = VERDICTS[verdict]
    return f'<td style="{style};border-left:6px solid {colour}"><b>{mark} {escape(verdict)}</b><br>{escape(why)}</td>'


def ledger(number: str | None = None) -> Others:
    """Show what others write on a lesson's subject, ``ledger("01")``: a table with two verdicts.

    The first verdict, *as cited*, is on what the source really says; the second, *here*, on what the lesson measured.
    Both come from the lesson's catalogue. ``ledger()`` has the claims of all lessons, folded by lesson.

    Raises KeyError for a lesson that has no catalogue.

    >>> len(ledger("01").rows) > 1
    True
    >>> len(ledger().rows) > 50
    True
    """
    if number is None:
        return Others(tuple(row for each in lessons() for row in ledger(each).rows))
    about = lesson(number)
    # The numbers in its texts are those that the lesson's entries expect.
    expected = {
        name: e.get("expect") or measured_here.recorded.get(f"{number}.{name}", {})
        for name, e in about.items()
        if isinstance(e, dict)
    }
    rows = [
        {**row, "lesson": number, "here": [row["here"][0], row["here"][1].format(**expected)]}
        for row in about.get("others", [])
    ]
    return Others(tuple(rows))
