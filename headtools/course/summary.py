"""The progress page: lesson by lesson, which exercises are passed, tried and not yet tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headtools.course.answered import VARIABLE, forget, progress_path, read
from headtools.course.exercises import all_exercises
from headtools.course.plain import escape, plain

_MARKS = {"passed": "✓", "tried": "✗", "not yet": "…"}  # as check's results
_LEFT = "text-align:left;vertical-align:top;padding:.2em .8em"


@dataclass(frozen=True, repr=False)
class Summary:
    """What the reader has answered: ``states`` has ``passed``, ``tried`` or ``not yet`` for each exercise by name.

    ``lessons``: number -> (title, address of its notebook, "" where it is not beside this one); ``note``: where this
    is kept, or why nothing is known.
    """

    states: Mapping[str, str]
    lessons: Mapping[str, tuple[str, str]]
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
        head = "".join(f'<th scope="col" style="{_LEFT}">{title}</th>' for title in ("Lesson", "Exercises"))
        html = (
            '<div style="max-width:60em;overflow-x:auto"><table style="border-collapse:collapse">'
            f'<caption style="{_LEFT};padding-left:0"><b>{escape(self.headline)}</b></caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table><p>{escape(self.note)}</p></div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}

    def _by_lesson(self) -> list[tuple[str, list[str]]]:
        return [(number, list(names)) for number, names in groupby(self.states, key=lambda name: name[:2])]

    def _row(self, number: str, names: list[str]) -> str:
        title, address = self.lessons[number]
        link = f'<a href="{escape(quote(address))}">{escape(title)}</a>' if address else escape(title)
        exercises = ", ".join(
            f'<span title="{escape(all_exercises()[name].title)}">{escape(self._mark(name))}</span>' for name in names
        )
        return (
            f'<tr><th scope="row" style="{_LEFT};font-weight:normal">{link}</th>'
            f'<td style="{_LEFT}">{exercises}</td></tr>'
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


def _lessons(numbers: set[str]) -> dict[str, tuple[str, str]]:
    """Find the title and address of each lesson whose notebook lies here, or below in a folder of lessons."""
    lessons, folders = {}, (".", "my-lessons", "notebooks")
    for number in sorted(numbers):
        candidates = [path for folder in folders for path in Path(folder).glob(f"{number}_*.ipynb")]
        path = min(candidates, key=lambda path: len(path.name), default=None)  # a copy has a longer name
        lessons[number] = (f"Lesson {number}", "") if path is None else (_question(path), path.as_posix())
    return lessons


def _question(path: Path) -> str:
    """Read the question that is a lesson's title; its file's name where there is none."""
    try:
        first = json.loads(path.read_text("utf-8"))["cells"][0]["source"]
        title = ("".join(first) if isinstance(first, list) else first).splitlines()[0].removeprefix("# ")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        title = ""
    return title.strip() or path.stem
