"""The progress page: lesson by lesson, which exercises are passed, tried and not yet tried."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headtools.course.answered import VARIABLE, forget, progress_path, read
from headtools.course.exercises import all_exercises
from headtools.course.plain import escape, plain

_MARKS = {"passed": "✓", "tried": "✗", "not yet": "○"}
_COLOURS = {"passed": "#009E73", "tried": "#D55E00", "not yet": "#999"}  # as check's results
_CHIP = "display:inline-block;border:1px solid {};border-radius:1em;padding:0 .6em;margin:.1em 0;white-space:nowrap"
_CHECKED = re.compile(r"""^ht\.check\(["']([\w.]+)""", re.M)
_LEFT = "text-align:left;vertical-align:top;padding:.2em .8em"


@dataclass(frozen=True, repr=False)
class Summary:
    """What the reader has answered: ``states`` has ``passed``, ``tried`` or ``not yet`` for each exercise by name.

    ``lessons``: number -> (title, address of its notebook, "" where it is not beside this one, and where in it each
    exercise is); ``note``: where this is kept, or why nothing is known.
    """

    states: Mapping[str, str]
    lessons: Mapping[str, tuple[str, str, Mapping[str, str]]]
    note: str

    @property
    def headline(self) -> str:
        """How many exercises are passed and tried, as a sentence."""
        passed, tried = (sum(state == counted for state in self.states.values()) for counted in ("passed", "tried"))
        return f"{passed} of {len(self.states)} exercises passed, {tried} tried."

    def __repr__(self) -> str:
        lines = [self.headline]
        for number, names in self._by_lesson():
            lines += [self.lessons[number][0], f"    {', '.join(self._mark(name) for name in names)}"]
        return "\n".join([*lines, self.note])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        rows = "".join(self._row(number, names) for number, names in self._by_lesson())
        head = "".join(f'<th scope="col" style="{_LEFT}">{title}</th>' for title in ("Lesson", "Passed", "Exercises"))
        html = (
            '<div style="max-width:64em;overflow-x:auto"><table style="border-collapse:collapse">'
            f'<caption style="{_LEFT};padding-left:0"><b>{escape(self.headline)}</b> {self._next()}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{escape(self.note)}</p></div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}

    def _by_lesson(self) -> list[tuple[str, list[str]]]:
        return [(number, list(names)) for number, names in groupby(self.states, key=lambda name: name[:2])]

    def _next(self) -> str:
        """A link to the first exercise that is not passed."""
        name = next((name for name, state in self.states.items() if state != "passed"), None)
        if name is None:
            return "That is all of them."
        _, address, places = self.lessons[name[:2]]
        return f"Next: {_link(f'{name}, {all_exercises()[name].title}', address, places.get(name, ''))}"

    def _row(self, number: str, names: list[str]) -> str:
        title, address, _ = self.lessons[number]
        passed = sum(self.states[name] == "passed" for name in names)
        chips = " ".join(
            f'<span title="{escape(all_exercises()[name].title)}: {self.states[name]}" '
            f'style="{_CHIP.format(_COLOURS[self.states[name]])}">{_MARKS[self.states[name]]} {escape(name[3:])}</span>'
            for name in names
        )
        return (
            f'<tr><th scope="row" style="{_LEFT};font-weight:normal">{_link(title, address)}</th>'
            f'<td style="{_LEFT};white-space:nowrap">{passed} of {len(names)}</td><td style="{_LEFT}">{chips}</td></tr>'
        )

    def _mark(self, name: str) -> str:
        return f"{_MARKS[self.states[name]]} {name} {self.states[name]}"


def summary() -> Summary:
    """Show which exercises you have passed and tried, lesson by lesson, with links to the lessons beside this one.

    Reads ``my-progress.json`` in the working folder, which checks in a notebook write; a blank answer is not kept, and
    nothing of what you wrote is. The environment variable ``HEADTOOLS_PROGRESS`` names another file, or is ``off``.
    Never raises: where the file cannot be read, ``note`` says why and what to do.

    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> from headtools.course.check import check
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with patch.dict(os.environ, {"HEADTOOLS_PROGRESS": folder + "/my-progress.json"}):
    ...         tried = check("01.cost", lambda T, d, H: T)
    ...         found = check.summary()
    >>> found.states["01.cost"], found.states["01.sum"]
    ('tried', 'not yet')
    """
    file, recorded = progress_path(), {}
    if file is None:
        note = f"Nothing is kept, because {VARIABLE} is off."
    else:
        note = f"Kept in {file.name}, without your answers. ht.check.reset() starts again."
        try:
            recorded = read(file)
        except (OSError, ValueError) as error:
            note = f"What you have answered is not known. {explained(error, file)}"
    states = {name: recorded.get(name, "not yet") for name in all_exercises()}
    return Summary(states, _lessons({name[:2] for name in states}), note)


def reset() -> Summary:
    """Forget which exercises were tried and passed, and show the empty list.

    Raises OSError where the file may not be deleted.

    >>> import os
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {"HEADTOOLS_PROGRESS": "off"}):
    ...     set(reset().states.values())
    {'not yet'}
    """
    file = progress_path()
    if file is not None:
        forget(file)
    return summary()


def explained(error: Exception, file: Path) -> str:
    """Say what went wrong with the file and what to do, without the path, which a notebook should not tell."""
    if not isinstance(error, OSError):
        return f"{error}."
    why = error.strerror or str(error)
    return f"{file.name}: {why}. Set {VARIABLE} to a file that can be read and written, or to off."


def _link(text: str, address: str, place: str = "") -> str:
    """Write a link to a place in a notebook, text alone where there is no notebook."""
    to = f"{quote(address)}{'#' if place else ''}{quote(place)}"
    # underlined: in a sentence a colour alone does not tell a link to everybody
    return f'<a style="text-decoration:underline" href="{escape(to)}">{escape(text)}</a>' if address else escape(text)


def _lessons(numbers: set[str]) -> dict[str, tuple[str, str, dict[str, str]]]:
    """Find title, address and exercises of each lesson whose notebook lies here, or below in a folder of lessons."""
    lessons, folders = {}, (".", "my-lessons", "notebooks")
    for number in sorted(numbers):
        candidates = [path for folder in folders for path in Path(folder).glob(f"{number}_*.ipynb")]
        path = min(candidates, key=lambda path: len(path.name), default=None)  # a copy has a longer name
        lessons[number] = (f"Lesson {number}", "", {}) if path is None else _contents(path)
    return lessons


def _contents(path: Path) -> tuple[str, str, dict[str, str]]:
    """Read a lesson's question, its file's name where there is none, and the heading above the check of each exercise.

    JupyterLab addresses a heading by its words with hyphens between them.
    """
    places: dict[str, str] = {}
    try:
        sources = ["".join(cell["source"]) for cell in json.loads(path.read_text("utf-8"))["cells"]]
        title, place = sources[0].splitlines()[0].removeprefix("# ").strip(), ""
        for source in sources:
            place = re.findall(r"^#+ (Exercise .*)", source, re.M)[-1:] or place
            places |= {name: place[0].strip().replace(" ", "-") for name in _CHECKED.findall(source) if place}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        title = ""
    return title or path.stem, path.as_posix(), places
