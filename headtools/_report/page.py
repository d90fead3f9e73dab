"""One self-contained HTML page: findings, the browser of heads, then sections, from ``page.html.jinja``.

Everything that comes from data is escaped, since tokens may contain markup; and the page loads nothing and runs one
script, which its Content-Security-Policy enforces even for markup that escaping might miss.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headtools.course.pictures import head_name
from headtools.course.plain import escape
from headtools.heads.scores import head_columns

if TYPE_CHECKING:
    import pandas as pd

# What templates print is escaped unless it is markup already.
TEMPLATES = Path(__file__).parent / "templates"
_TEMPLATES = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),
)
_PARTS = _TEMPLATES.get_template("parts.html.jinja").module
# The template says what they take; each returns Markup.
paragraph, every_head, curve, items = _PARTS.paragraph, _PARTS.every_head, _PARTS.curve, _PARTS.items


@dataclass(frozen=True)
class Finding:
    """A sentence that says what was found, another with what it is compared with, and the section that shows it."""

    headline: str
    detail: str
    section: str


@dataclass(frozen=True)
class Section:
    """A section of a page: its ``title``, and its ``html`` (escaped already) or the reason why it is ``missing``.

    ``name`` is the anchor that links point to; ``remedy`` a line of code with which a missing section can be measured.
    """

    name: str
    title: str
    html: str = ""
    missing: str = ""
    remedy: str = ""
    findings: Mapping[str, Finding] = field(default_factory=dict)


def page(
    title: str,
    lead: str,
    sections: Sequence[Section],
    findings: Sequence[Finding] = (),
    data: Mapping[str, Any] | None = None,
) -> str:
    """Return the page as HTML; ``lead`` is plain text below the title. Sections that are missing come last, folded.

    ``data`` is what the script draws (``heads.head_data``); without it the page has no script.

    >>> "<script" in page("<script>", "", [])
    False
    """
    style, script = ((TEMPLATES / name).read_text("utf-8") for name in ("browser.css", "browser.js"))
    return _TEMPLATES.get_template("page.html.jinja").render(
        style=Markup(style),
        script=Markup(script),
        # The page runs this script and no other, whatever the data hold.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        data=None if data is None else as_script(data),
        title=title,
        lead=lead,
        findings=findings,
        titles={part.name: part.title for part in sections},
        sections=[(part, Markup(part.html)) for part in sections if not part.missing],
        missing=[part for part in sections if part.missing],
    )


def as_script(data: Mapping[str, Any]) -> Markup:
    """Return data as JSON for a script element: no text in it can end the element or begin another.

    >>> "</script" in as_script({"token": "</script><!--"})
    False
    """
    return Markup(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"))


def table(frame: pd.DataFrame, caption: str) -> Markup:
    """Return a frame as an HTML table; floats have three decimals, more where all are small, and a dash for none.

    >>> import pandas as pd
    >>> "<td>&lt;s&gt;</td><td>0.250</td>" in table(pd.DataFrame({"token": ["<s>"], "share": [0.25]}), "shares")
    True
    """
    columns = [_column(frame.iloc[:, i].tolist()) for i in range(frame.shape[1])]
    return _PARTS.table(list(frame.columns), list(zip(*columns, strict=True)), caption)


def of_heads(frame: pd.DataFrame, columns: Sequence[str], caption: str) -> Markup:
    """Return some columns of a table of heads as an HTML table, after the names of the heads."""
    shown = frame[list(columns)].copy()
    shown.insert(0, "head", [head_name(tuple(row)) for row in frame[head_columns(frame)].itertuples(index=False)])
    return table(shown, caption)


def _column(values: Sequence[object]) -> list[str]:
    """Return a column as text: its floats with equally many decimals, no number as a dash.

    >>> _column([0.25, None, 1.0]), _column([0.0012, -0.00001]), _column(["a", 3])
    (['0.250', '–', '1.000'], ['0.00120', '-0.00001'], ['a', '3'])
    """
    floats = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    largest = max(map(abs, floats), default=0.0)
    decimals = 3 + max(0, math.floor(-math.log10(largest))) if 0 < largest < 0.1 else 3

    def cell(value: object) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        # + 0.0, since a small negative number must not become -0.000
        return f"{round(value, decimals) + 0.0:.{decimals}f}" if isinstance(value, float) else str(value)

    return [cell(value) for value in values]


def name_of(row: Mapping) -> str:
    """Write the name of the head that a row of a table is about."""
    return head_name(tuple(row[name] for name in head_columns(row)))


def number(value: float) -> str:
    """Write a number with three digits, as it would be said.

    >>> number(0.01234), number(1234.5), number(float("nan"))
    ('0.0123', '1234', 'no number')
    """
    if math.isnan(value):
        return "no number"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """Write a share as a whole number of percent.

    >>> percent(0.125)
    '12 %'
    """
    return f"{100 * share:.0f} %"


def counted(n: int, noun: str) -> str:
    """Write a number with its noun, in the plural where it needs one.

    >>> counted(1, "sentence"), counted(3, "batch")
    ('1 sentence', '3 batches')
    """
    return f"{n:,} {noun}" + ("" if n == 1 else "es" if noun.endswith("ch") else "s")
