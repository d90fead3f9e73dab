"""Sentences side by side: which words change when a head is switched off."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from headtools.course.figure import style
from headtools.course.plain import plain, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["changed_words", "compare_words"]

WIDTH = 74  # characters of a line of words


def changed_words(before: Sequence[str], after: Sequence[str]) -> list[bool]:
    """Tell for each word of ``after`` whether it is new or moved, by the longest common runs of words.

    >>> changed_words(["a", "b", "c"], ["a", "x", "c"])
    [False, True, False]
    """
    same = [False] * len(after)
    for block in SequenceMatcher(None, list(before), list(after), autojunk=False).get_matching_blocks():
        same[block.b : block.b + block.size] = [True] * block.size
    return [not s for s in same]


def compare_words(rows: Sequence[tuple[str, Sequence[str]]]) -> Figure:
    """Draw sentences under one another; words of later rows that are not in the first are framed and bold.

    rows: (name, words) each, the first one being what the others are compared with; long rows are wrapped

    Raises ValueError when a row has no words.
    """
    from matplotlib import pyplot as plt

    if not rows or any(not words for _, words in rows):
        raise ValueError(f"every row needs a name and words, got {[name for name, words in rows if not words]}")
    lines = []
    for i, (name, words) in enumerate(rows):
        marks = [False] * len(words) if i == 0 else changed_words(rows[0][1], words)
        lines += [(name if j == 0 else "", line) for j, line in enumerate(_wrapped(words, marks))]
    with plt.rc_context(style()):
        fig, ax = plt.subplots(figsize=(8.6, 0.42 * len(lines) + 0.15))
        ax.set(xlim=(0, WIDTH + 18), ylim=(len(lines) - 0.4, -0.6))
        ax.set_axis_off()
        for y, (name, line) in enumerate(lines):
            ax.text(0, y, _shown(name, 18), va="center", fontsize=10, color="#444444", parse_math=False)
            _line(ax, y, line)
    return fig


def _wrapped(words: Sequence[str], marks: Sequence[bool]) -> list[list[tuple[str, bool]]]:
    lines, width = [[]], 0
    for word, mark in zip(map(_shown, words), marks, strict=True):
        if width + len(word) + 1 > WIDTH and lines[-1]:
            lines.append([])
            width = 0
        lines[-1].append((word, bool(mark)))
        width += len(word) + 1
    return lines


def _shown(text: str, max_letters: int = WIDTH) -> str:
    """Return a word as it can be drawn, cut where it would not fit the line."""
    return shortened(plain(text).translate({ord(end): " " for end in "\n\r\t"}), max_letters)


def _line(ax: Axes, y: float, line: Sequence[tuple[str, bool]]) -> None:
    x = 18.0
    for word, mark in line:
        frame = {"boxstyle": "square,pad=0.12", "facecolor": "#FFE3CC", "edgecolor": "#D55E00"} if mark else None
        ax.text(
            x,
            y,
            word,
            va="center",
            fontsize=10,
            family="monospace",
            weight="bold" if mark else "normal",
            bbox=frame,
            parse_math=False,
        )
        x += len(word) + 1
