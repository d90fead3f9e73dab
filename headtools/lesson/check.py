"""Exercises that explain: ``check`` tries your answer and gives one hint."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from headtools.lesson import exercises
from headtools.lesson.exercises.exercise import Exercise, Hint, NotTried
from headtools.lesson.plain import escape, plain

_LOOK = {  # status: (colour, mark)
    "right": ("#009E73", "✓"),
    "not yet": ("#D55E00", "✗"),
    "not tried yet": ("#777777", "…"),
}


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What came of a check: ``status`` is ``right``, ``not yet`` or ``not tried yet``; ``hint`` says where to look."""

    name: str
    title: str
    status: str
    hint: str

    @property
    def passed(self) -> bool:
        """Whether the answer is right."""
        return self.status == "right"

    def __repr__(self) -> str:
        return f"{self.name} ({self.title}): {self.status}" + (f"\n{self.hint}" if self.hint else "")

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        colour, mark = _LOOK[self.status]
        hint = f'<div style="white-space:pre-wrap">{escape(self.hint)}</div>' if self.hint else ""
        html = (
            f'<div role="status" style="border-left:8px solid {colour};padding:.3em .9em;max-width:48em">'
            f"<b>{mark} {escape(self.status.capitalize())}</b> · {escape(self.name)}, {escape(self.title)}{hint}</div>"
        )
        return {"text/html": html, "text/plain": plain(repr(self))}


def check(name: str, answer: Any) -> CheckResult:
    """Try your answer to an exercise; any correct method is right, a wrong one gets one hint, a blank is no failure.

    name: the exercise, such as ``"01.softmax"``
    answer: what the exercise asks for, most often a function; tensors, arrays and lists are equally welcome

    Never raises for a wrong answer, not even when the answer itself does. Raises KeyError for an unknown exercise.

    >>> check("01.cost", ...)
    01.cost (count the multiplications): not tried yet
    Write your answer where the dots are, run its cell, then run this one again.
    >>> check("01.cost", lambda T, d, H: 4 * T * d * d + 2 * T * T * d).passed
    True
    """
    known = all_exercises()
    if name not in known:
        raise KeyError(f"there is no exercise {name!r}; there are {', '.join(known)}")
    exercise = known[name]
    try:
        if answer is None or answer is ...:
            raise NotTried
        hint = exercise.judge(answer)
        status, hint = ("not yet", hint) if hint else ("right", "")
    except NotTried:
        status, hint = "not tried yet", "Write your answer where the dots are, run its cell, then run this one again."
    except Hint as found:
        status, hint = "not yet", str(found)
    except Exception as error:
        # The judge could not make sense of the answer; the learner should read why, not a traceback of our code.
        status, hint = "not yet", f"The answer could not be read: {type(error).__name__}: {error}"
    return CheckResult(name, exercise.title, status, hint)


@cache
def all_exercises() -> dict[str, Exercise]:
    """Give every exercise by name: those of all modules ``exercises/lesson_NN.py``, in order."""
    modules = sorted(m.name for m in pkgutil.iter_modules(exercises.__path__) if m.name.startswith("lesson_"))
    found = {}
    for module in modules:
        for exercise in import_module(f"{exercises.__name__}.{module}").EXERCISES:
            if not exercise.name.startswith(module.removeprefix("lesson_") + ".") or exercise.name in found:
                raise ValueError(f"{module} holds an exercise named {exercise.name!r}")
            found[exercise.name] = exercise
    return found
