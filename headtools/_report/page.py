"""One self-contained HTML page: a title, and sections with figures, tables and notes.

Requirements: everything that comes from data is escaped, since tokens may contain markup; and the page loads nothing,
which its Content-Security-Policy enforces even for markup that escaping might miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headtools._engine.store import write_bytes
from headtools.lesson.plain import escape

if TYPE_CHECKING:
    import pandas as pd

_STYLE = """
:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--soft:#5a5a5a;--line:#c9c9c9;--mark:#0072B2}
@media (prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--soft:#b5b5b5;--line:#4a4a4a;--mark:#7cc4ee}}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:60rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.7rem;line-height:1.2}h2{font-size:1.25rem;margin-top:2.4rem;border-bottom:1px solid var(--line)}
a{color:var(--mark)}nav li{display:inline;margin-right:1em}nav ul{padding:0}
figure{margin:1em 0}figcaption,.note{color:var(--soft);font-size:.92rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem}
th,td{padding:.25em .7em;border-bottom:1px solid var(--line);text-align:right}th{text-align:right}
th:first-child,td:first-child{text-align:left}caption{text-align:left;color:var(--soft);padding-bottom:.4em}
.missing{border-left:5px solid #D55E00;padding:.3em .9em}
"""


@dataclass(frozen=True)
class Section:
    """A section of a page: its ``title``, and its ``html`` (escaped already) or the reason why it is ``missing``.

    ``name`` is the anchor that links point to.
    """

    name: str
    title: str
    html: str = ""
    missing: str = ""

    def to_html(self) -> str:
        """Return the section, or the reason why there is none, as HTML."""
        content = self.html or f'<p class="missing"><b>Not measured.</b> {escape(self.missing)}</p>'
        return f'<section id="{escape(self.name)}"><h2>{escape(self.title)}</h2>{content}</section>'


def paragraph(text: str, note: bool = False) -> str:
    """Return a paragraph of plain text as HTML.

    >>> paragraph("a < b")
    '<p>a &lt; b</p>'
    """
    return f"<p{' class=note' if note else ''}>{escape(text)}</p>"


def table(frame: pd.DataFrame, caption: str) -> str:
    """Return a frame as an HTML table; floats have three decimals, everything else is escaped.

    >>> import pandas as pd
    >>> "<td>&lt;s&gt;</td><td>0.250</td>" in table(pd.DataFrame({"token": ["<s>"], "share": [0.25]}), "shares")
    True
    """
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in frame.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>"
        for row in frame.itertuples(index=False, name=None)
    )
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the page as HTML; ``lead`` is plain text below the title.

    >>> "<script" in page("<script>", "", [])
    False
    """
    links = "".join(f'<li><a href="#{escape(part.name)}">{escape(part.title)}</a></li>' for part in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        f"style-src 'unsafe-inline'\"><style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
        f'{paragraph(lead)}<nav aria-label="sections"><ul>{links}</ul></nav>'
        f"{''.join(part.to_html() for part in sections)}</main></body></html>\n"
    )


def write(text: str, path: str | Path) -> Path:
    """Write a page to a file, atomically, and return its path.

    Raises ``FileNotFoundError`` where the folder does not exist.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: make it first, mkdir -p {path.parent}")
    return write_bytes(path, text.encode("utf-8"))


def _cell(value: object) -> str:
    return escape(f"{value:.3f}" if isinstance(value, float) else value)
