"""The exercises of each lesson, ``lesson_NN.py``: what is asked and how an answer is judged, never the solution."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from headtools.course.exercises.exercise import Exercise


@cache
def all_exercises() -> dict[str, Exercise]:
    """Give every exercise by name: those of all modules ``lesson_NN.py``, in order."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("lesson_"))
    return {each.name: each for name in modules for each in import_module(f"{__name__}.{name}").EXERCISES}
