"""Drawings as SVG: cells, lines and text that stay sharp at any size, with what there is to see in words.

A drawing becomes part of a page (``inline``), whose style sheet colours it, so that it follows light and dark; or a
file of its own (``document``) with a white ground, a title and a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from headtools._engine.store import write_bytes
from headtools.course.plain import escape

STYLE = (
    "text{font-family:system-ui,sans-serif;font-size:12px;fill:#1a1a1a}.soft{fill:#5a5a5a}.small{font-size:10.5px}"
    ".strong{font-weight:600}.mark{fill:#0072B2}.ground{fill:#0072B2;fill-opacity:.06}.rule{stroke:#8a8a8a;fill:none}"
)
LETTER = 6.4  # width of a letter of 12 pixels, on average
_NO_XML = dict.fromkeys((0xFFFE, 0xFFFF), 0xFFFD)


class Drawing:
    """SVG elements, added one after another; lengths are in pixels, text is escaped."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "mark",
        *,
        opacity: float | None = None,
        fill: str = "",
        tip: str = "",
    ) -> None:
        """Add a rectangle of a class of the style sheet, or of a colour; ``tip`` shows when it is pointed at."""
        style = f'style="fill:{fill}"' if fill else f'class="{kind}"'
        shade = "" if opacity is None else f' fill-opacity="{_short(opacity)}"'
        end = f"><title>{_text(tip)}</title></rect>" if tip else "/>"
        self._parts.append(
            f'<rect x="{_short(x)}" y="{_short(y)}" width="{_short(width)}" height="{_short(height)}" '
            f"{style}{shade}{end}"
        )

    def text(
        self,
        x: float,
        y: float,
        text: object,
        kind: str = "",
        *,
        anchor: str = "start",
        turned: bool = False,
        fill: str = "",
    ) -> None:
        """Add a line of text; ``turned`` lets it run upwards."""
        turn = f' transform="rotate(-90 {_short(x)} {_short(y)})"' if turned else ""
        style = f' class="{kind}"' if kind else ""
        colour = f' style="fill:{fill}"' if fill else ""
        align = "" if anchor == "start" else f' text-anchor="{anchor}"'
        self._parts.append(f'<text x="{_short(x)}" y="{_short(y)}"{style}{colour}{align}{turn}>{_text(text)}</text>')

    def path(self, d: str, kind: str = "", *, opacity: float | None = None, style: str = "") -> None:
        """Add a path."""
        attributes = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "")
        shade = "" if opacity is None else f' fill-opacity="{_short(opacity)}"'
        self._parts.append(f'<path d="{d}"{attributes}{shade}/>')

    def line(self, points: Iterable[tuple[float, float]], kind: str = "rule") -> None:
        """Add straight lines from point to point."""
        self.path("M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points), kind)

    def inline(self, alt: str) -> str:
        """Return the drawing as a part of a page; ``alt`` is what there is to see."""
        return f'<svg {self._size} role="img" aria-label="{_text(alt)}">{"".join(self._parts)}</svg>'

    def document(self, title: str, alt: str) -> str:
        """Return the drawing as a file, on white.

        >>> Drawing(9, 9).document("A <b>", "Nothing.").count("A &lt;b&gt;")
        1
        """
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {self._size} role="img" aria-labelledby="title desc">'
            f'<title id="title">{_text(title)}</title><desc id="desc">{_text(alt)}</desc><style>{STYLE}</style>'
            f'<rect width="100%" height="100%" style="fill:#fff"/>{"".join(self._parts)}</svg>\n'
        )

    @property
    def _size(self) -> str:
        width, height = _short(self.width), _short(self.height)
        return f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'


def cells(
    drawing: Drawing,
    table: np.ndarray,
    x: float,
    y: float,
    size: float,
    top: float,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    low: float = 0.0,
) -> None:
    """Add a table of numbers from ``low`` to ``top`` as squares, the stronger the larger the number.

    Where rows and columns have names and are few, each square tells its number when it is pointed at. Others are
    drawn in sixteen steps, those of a row that are equal as one piece, which keeps large maps small.
    """
    n_rows, n_columns = table.shape
    drawing.rect(x, y, n_columns * size, n_rows * size, "ground")
    share = np.clip((table - low) / ((top - low) or 1.0), 0, 1)
    if rows is not None and columns is not None and table.size <= 1024:
        for i, j in np.argwhere(share >= 0.005):
            drawing.rect(
                x + j * size,
                y + i * size,
                size,
                size,
                opacity=round(float(share[i, j]), 2),
                tip=f"{rows[i]} → {columns[j]}: {table[i, j]:.2f}",
            )
        return
    steps = np.ceil(share * 16).astype(int)
    for step in range(1, 17):
        pieces = []
        for i in range(n_rows):
            same = np.flatnonzero(np.diff(np.concatenate([[0], steps[i] == step, [0]])))
            for first, last in same.reshape(-1, 2):
                width = (last - first) * size
                pieces.append(
                    f"M{_short(x + first * size)} {_short(y + i * size)}h{_short(width)}v{_short(size)}"
                    f"h{_short(-width)}z"
                )
        if pieces:
            drawing.path("".join(pieces), "mark", opacity=step / 16)


def shortened(text: object, max_letters: int = 14) -> str:
    """Return a text of no more than ``max_letters`` letters.

    >>> shortened("incomprehensibilities", 8)
    'incompr…'
    """
    text = str(text)
    return text if len(text) <= max_letters else text[: max_letters - 1] + "…"


def described(svg: str, title: str, alt: str) -> str:
    """Return an SVG file of another program with a title and a description as its first elements.

    >>> described('<?xml version="1.0"?><svg width="9"><g/></svg>', "T", "a < b")
    '<?xml version="1.0"?><svg width="9" role="img"><title>T</title><desc>a &lt; b</desc><g/></svg>'
    """
    start = svg.index("<svg")
    end = svg.index(">", start)
    labels = f"<title>{_text(title)}</title><desc>{_text(alt)}</desc>"
    return f'{svg[:end]} role="img">{labels}{svg[end + 1 :]}'


def write_svg(path: str | Path, text: str) -> Path:
    """Write an SVG file, whole or not at all.

    Raises ``ValueError`` for another ending, ``FileNotFoundError`` where the folder does not exist.
    """
    path = Path(path)
    if path.suffix != ".svg":
        raise ValueError(f"got {path.name!r}; expected a name that ends in .svg: write {path.stem + '.svg'!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: make it first, mkdir -p {path.parent}")
    return write_bytes(path, text.encode("utf-8"))


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".") if number % 1 else str(int(number))


def _text(text: object) -> str:
    return escape(str(text).translate(_NO_XML))
