"""One self-contained HTML page: findings, then sections with figures, tables and notes, from ``page.html.jinja``.

Requirements: everything that comes from data is escaped, since tokens may contain markup; and the page loads nothing,
which its Content-Security-Policy enforces even for markup that escaping might miss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from headtools._engine.store import write_bytes
from headtools.course.plain import escape

if TYPE_CHECKING:
    import pandas as pd


# What templates print is escaped unless it is markup already.
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: value if isinstance(value, Markup) else Markup(escape(value)),
)
_PARTS = _TEMPLATES.get_template("parts.html.jinja").module
# The template says what they take; each returns Markup.
paragraph, figure, side_by_side, items = _PARTS.paragraph, _PARTS.figure, _PARTS.side_by_side, _PARTS.items


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


def table(frame: pd.DataFrame, caption: str) -> Markup:
    """Return a frame as an HTML table; floats have three decimals, more where all are small, and a dash for none.

    >>> import pandas as pd
    >>> "<td>&lt;s&gt;</td><td>0.250</td>" in table(pd.DataFrame({"token": ["<s>"], "share": [0.25]}), "shares")
    True
    """
    columns = [_column(frame.iloc[:, i].tolist()) for i in range(frame.shape[1])]
    return _PARTS.table(list(frame.columns), list(zip(*columns, strict=True)), caption)


def page(title: str, lead: str, sections: Sequence[Section], findings: Sequence[Finding] = ()) -> str:
    """Return the page as HTML; ``lead`` is plain text below the title. Sections that are missing come last, folded.

    >>> "<script" in page("<script>", "", [])
    False
    """
    return _TEMPLATES.get_template("page.html.jinja").render(
        title=title,
        lead=lead,
        findings=findings,
        titles={part.name: part.title for part in sections},
        sections=[(part, Markup(part.html)) for part in sections if not part.missing],
        missing=[part for part in sections if part.missing],
    )


def write(text: str, path: str | Path) -> Path:
    """Write a page to a file, atomically, and return its path.

    Raises ``FileNotFoundError`` where the folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: make it first, mkdir -p {path.parent}")
    return write_bytes(path, text.encode("utf-8"))


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
