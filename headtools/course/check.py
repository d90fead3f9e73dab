"""Exercises that explain: ``check`` tries your answer and gives one hint."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from headtools.course.answered import keeping, progress_path, remember, shell
from headtools.course.catalogue import lesson
from headtools.course.exercises import all_exercises
from headtools.course.exercises.exercise import Exercise, Hint, NotTried
from headtools.course.library import FILE, peeks, store
from headtools.course.plain import escape, plain
from headtools.course.summary import explained, reset, summary

_LOOK = {  # status: (colour, mark)
    "right": ("#009E73", "✓"),
    "not yet": ("#D55E00", "✗"),
    "not tried yet": ("#777777", "…"),
}


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What came of a check: ``status`` is ``right``, ``not yet`` or ``not tried yet``; ``hint`` says where to look.

    ``note`` is empty unless the result could not be added to the progress page, or an older version was judged.
    """

    name: str
    title: str
    status: str
    hint: str
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether the answer is right."""
        return self.status == "right"

    def __repr__(self) -> str:
        return "\n".join(filter(None, [f"{self.name} ({self.title}): {self.status}", self.hint, self.note]))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        colour, mark = _LOOK[self.status]
        hint = f'<div style="white-space:pre-wrap">{escape(self.hint)}</div>' if self.hint else ""
        if self.status == "not yet" and hints_of(self.name):
            hint += f'<div><small>Stuck? <code>ht.check.hint("{self.name}")</code> gives a hint.</small></div>'
        hint += f"<div><small>{escape(self.note)}</small></div>" if self.note else ""
        html = (
            f'<div role="status" style="border-left:8px solid {colour};padding:.3em .9em;max-width:48em">'
            f"<b>{mark} {escape(self.status.capitalize())}</b> · {escape(self.name)}, {escape(self.title)}{hint}</div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}


def check(name: str, answer: Any) -> CheckResult:
    """Try your answer to an exercise; any correct method is right, a wrong one gets one hint, a blank is no failure.

    name: the exercise, such as ``"01.softmax"``
    answer: what the exercise asks for, most often a function; tensors, arrays and lists are equally welcome

    A function of your library that passes goes into ``my_heads.py``, see ``my_heads``. Never raises for a wrong answer,
    not even when the answer itself does. Raises KeyError for an unknown exercise.
    ``check.hint(name)`` gives a hint, then the next. In a notebook, ``check.summary()`` shows what you have passed and
    tried, and ``check.reset()`` starts again.

    >>> check("01.cost", ...)
    01.cost (count the multiplications): not tried yet
    Write your answer where the dots are, run its cell, then run this one again.
    >>> check("01.cost", lambda T, d, H: 4 * T * d * d + 2 * T * T * d).passed
    True
    """
    exercise = _exercise(name)
    try:
        if answer is None or answer is ...:
            raise NotTried
        hint = peeks(exercise, answer) or exercise.judge(answer)
        status, hint = ("not yet", hint) if hint else ("right", "")
    except NotTried:
        status, hint = "not tried yet", "Write your answer where the dots are, run its cell, then run this one again."
    except Hint as found:
        status, hint = "not yet", str(found)
    except Exception as error:
        # The judge could not make sense of the answer; the learner should read why, not a traceback of our code.
        status, hint = "not yet", f"The answer could not be read: {type(error).__name__}: {error}"
    return CheckResult(
        name, exercise.title, status, hint, " ".join(filter(None, [_keep(exercise, status, answer), _older(answer)]))
    )


def hint(name: str) -> HintShown:
    """Give the next of an exercise's hints, from a nudge to nearly the answer; after the last one, the last again.

    name: the exercise, such as ``"01.softmax"``

    Raises KeyError for an unknown exercise. The hints stand in the lesson's catalogue, under ``[hints]``.

    >>> hint("01.cost")
    Hint 1 of 3: Write down the shape of every matrix product in the layer, from X to the output.
    """
    hints = hints_of(_exercise(name).name)
    if not hints:
        return HintShown("There are no hints for this exercise: the check says what is wrong with an answer.")
    given = _hinted[name] = min(_hinted.get(name, 0) + 1, len(hints))
    return HintShown(f"Hint {given} of {len(hints)}: {hints[given - 1]}")


class HintShown(str):
    """A hint; displays as text without quotes."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        box = "border-left:8px solid #E69F00;padding:.3em .9em;max-width:48em"
        return {"text/html": f'<div role="status" style="{box}">{escape(self)}</div>', "text/plain": plain(self)}


def hints_of(name: str) -> list[str]:
    """Return the hints of an exercise, from its lesson's catalogue; none where there is no catalogue yet."""
    try:
        return lesson(name[:2]).get("hints", {}).get(name.partition(".")[2], [])
    except KeyError:
        return []


_hinted: dict[str, int] = {}  # how many hints this kernel has given for each exercise

# What a reader finds beside ``check`` without another name to learn.
check.hint = hint
check.summary = summary
check.reset = reset


def _exercise(name: str) -> Exercise:
    exercises = all_exercises()
    if name not in exercises:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(exercises)}")
    return exercises[name]


def _older(answer: Any) -> str:
    """Say so when a notebook's latest version of a function did not run to its end, so that an older one was judged."""
    name = getattr(answer, "__name__", "")
    if shell() is None or not name.isidentifier():
        return ""
    cells = dict(enumerate(shell().history_manager.input_hist_raw))
    defined = [n for n, cell in cells.items() if re.search(rf"^def {name}\b", cell, re.M)]
    try:
        source = inspect.getsource(answer).strip()
    except (OSError, TypeError):
        return ""
    ran = [n for n in defined if f"{source}\n" in f"{cells[n]}\n"]
    if not ran or ran[-1] == defined[-1]:
        return ""
    return (
        f"This is the version of {name} that cell [{ran[-1]}] defined. Cell [{defined[-1]}], which you ran later, "
        "stopped with an error and defined nothing: mend it and run it again."
    )


def _keep(exercise: Exercise, status: str, answer: Any) -> str:
    """Add the result to the progress page and the library; returns what came of it, because no check may fail for that.

    A blank is no answer, so running a lesson as it is leaves no file.
    """
    if status == "not tried yet" or not keeping():
        return ""
    try:
        remember(exercise.name, "passed" if status == "right" else "tried", progress_path())
    except (OSError, ValueError) as error:
        return f"This result is not on your progress page. {explained(error, progress_path())}"
    try:
        return store(exercise, answer) if status == "right" else ""
    except Exception as error:  # the text of an answer may be anything
        return f"It is not in {FILE}: {type(error).__name__}: {error}"
