"""Figures that say what they show: a caption with the number, a description for who cannot see it, one house style."""

from __future__ import annotations

import base64
import io
import math
import re
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headtools.course.catalogue import entry
from headtools.course.measured import Measured, measured
from headtools.course.plain import escape, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "figure", "png", "style"]

LIMIT = 150_000  # characters of one output: a notebook with thirty of them still opens quickly
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DPI = 110  # pixels of the page for each inch of a figure; its file has twice as many, for screens that show them
IMG_STYLE = "background:#fff;max-width:100%;height:auto;border-radius:3px"


@dataclass(frozen=True, repr=False)
class Picture:
    """A drawn figure with its claim and description; displays as ``<figure>`` and, as plain text, as the claim."""

    claim: str | Measured
    alt: str
    png: bytes = field(repr=False)

    def __repr__(self) -> str:
        return str(self.claim)

    @property
    def html(self) -> str:
        """The ``<figure>`` element."""
        caption = self.claim.html if isinstance(self.claim, Measured) else escape(self.claim)
        return figure_html(self.png, alt=self.alt, caption=caption)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": plain(repr(self))}


def figure(
    fig: Figure | None, key: str | None = None, /, *, claim: str | None = None, alt: str | None = None, **numbers: Any
) -> Picture | Measured:
    """Turn a matplotlib figure into a picture with the caption and the description of a catalogue entry, and close it.

    fig: the matplotlib Figure (``ax.figure`` if you have only the axes); None where the numbers stand alone
    key: the entry, such as ``"01.weights"``, whose caption has the numbers of this run, see ``measured``
    numbers: those that the entry does not compute itself
    claim, alt: caption and description of a picture without an entry; alt is what there is to see, not the claim again

    Raises ValueError when caption or description is empty, when they are the same, when a number has no expectation,
    and when the picture is heavier than 150 kB.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import matplotlib.pyplot as plt
    >>> fig, ax = plt.subplots()
    >>> _ = ax.plot([0, 1])
    >>> figure(fig, "01.weights", it_fox=0.938, the=0.25, row=1)
    "it" gives 0.94 of its attention to "fox". Each row sums to 1, and "the", whose query is zero, gives 0.25 ...
    >>> figure(plt.figure(), claim="The line rises by 1.", alt="One straight line from bottom left to top right.")
    The line rises by 1.
    """
    if key is not None:
        about, claim = entry(key), measured(key, **numbers)
        if fig is None:
            return claim
        alt = about.get("alt")
    for name, text in (("claim", claim), ("alt", alt)):
        if not isinstance(text, (str, Measured)) or not str(text).strip():
            raise ValueError(f"figure needs {name}= as a sentence, got {text!r}")
    if _bare(str(alt)) == _bare(str(claim)):
        raise ValueError(f"alt repeats the claim; describe what there is to see instead: {str(alt)!r}")
    picture = Picture(claim, str(alt), png(fig))
    if len(picture.html) > LIMIT:
        raise ValueError(
            f"the picture takes {len(picture.html) / 1000:.0f} kB and an output may take {LIMIT // 1000}: draw fewer "
            "points or panels, use a smaller figsize, or pass rasterized=True where thousands of marks are drawn"
        )
    return picture


def png(fig: Figure, dpi: int = 2 * DPI) -> bytes:
    """Draw a matplotlib figure on white and close it.

    fig: the matplotlib Figure; gives the PNG file's bytes, at half the resolution where it would be too heavy for an
    output. Raises TypeError for anything else.
    """
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    if not isinstance(fig, Figure):
        hint = "pass ax.figure" if hasattr(fig, "figure") else "make one with fig, ax = plt.subplots()"
        raise TypeError(f"a matplotlib Figure is needed, got {type(fig).__name__}: {hint}")
    for resolution in (dpi, dpi // 2):
        file = io.BytesIO()
        with warnings.catch_warnings():
            # A script without a glyph in the font becomes a box; that is no reason to print a warning into the lesson.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
            # Without "Software" the bytes do not change with matplotlib's version number.
            meta = {"Software": None}
            fig.savefig(file, format="png", dpi=resolution, bbox_inches="tight", facecolor="white", metadata=meta)
        data = _with_palette(file.getvalue())
        if len(data) < LIMIT // 2:
            break
    plt.close(fig)
    return data


def _with_palette(data: bytes) -> bytes:
    """The same PNG with a palette of 256 colours, a third of the size, unless a colour would visibly change."""
    from PIL import Image, ImageChops  # matplotlib writes its own PNG files with it

    full = Image.open(io.BytesIO(data)).convert("RGB")
    few = full.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    off = max(high for _, high in ImageChops.difference(full, few.convert("RGB")).getextrema())
    file = io.BytesIO()
    few.save(file, format="png", optimize=True, dpi=full.info["dpi"])
    return file.getvalue() if off <= 12 else data  # of 255


def figure_html(data: bytes, *, alt: str, caption: str, highest: float = math.inf) -> str:
    """Write the ``<figure>`` of a PNG, at most ``highest`` pixels high; ``caption`` is HTML, ``alt`` is text."""
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    scale = DPI / image.info.get("dpi", (DPI,))[0]
    scale *= min(1, highest / (image.height * scale))
    width, height = (round(scale * side) for side in image.size)  # told, so that the page does not jump
    return (
        f'<figure style="margin:.4em 0"><img alt="{escape(alt)}" src="data:image/png;base64,'
        f'{base64.b64encode(data).decode()}" width="{width}" height="{height}" decoding="sync" style="{IMG_STYLE}">'
        f'<figcaption style="max-width:48em">{caption}</figcaption></figure>'
    )


def style() -> dict[str, Any]:
    """Give the house style as matplotlib settings: text of 9 points and more, cividis, Okabe-Ito with unlike dashes.

    Use it for one figure, ``with plt.rc_context(style()):``, or for a notebook, ``plt.rcParams.update(style())``.

    >>> style()["image.cmap"]
    'cividis'
    """
    from cycler import cycler

    dashes = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1))]  # so that lines differ in grey too
    return {
        "axes.prop_cycle": cycler(color=OKABE_ITO) + cycler(linestyle=dashes),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 10,
        "axes.labelsize": 10,
        "figure.facecolor": "white",
        "figure.figsize": (6.4, 3.6),
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "image.cmap": "cividis",
        "image.interpolation": "nearest",
        "legend.fontsize": 9,
        "legend.frameon": False,
        "lines.linewidth": 1.8,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
    }


def _bare(text: str) -> str:
    """A sentence without punctuation, case and the words that make an alt text look like more than its claim."""
    words = re.findall(r"\w+", text.casefold())
    return " ".join(w for w in words if w not in {"a", "figure", "image", "of", "picture", "plot", "showing", "the"})
