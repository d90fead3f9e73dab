"""What an exercise is, and what judges share: calling the learner's function, comparing, showing a small input."""

from __future__ import annotations

import dis
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exercise:
    """One exercise: ``judge(answer)`` returns None for a right answer, else one hint (or raises Hint, NotTried).

    ``builds`` is the name of the function of the learner's library that is written here, ``instead`` what of the
    package does the same, and so may not be called.
    """

    name: str
    title: str
    judge: Callable[[Any], str | None]
    builds: str = ""
    instead: tuple[str, ...] = ()


class Hint(Exception):
    """Raised while judging: the answer is wrong, and this is what to look at."""


class NotTried(Exception):
    """Raised while judging: there is no answer yet."""


def call(answer: Any, **given: Any) -> Any:
    """Call the learner's function with copies of the arguments.

    Raises NotTried for a function without a body, for dots and for NotImplementedError, and Hint when it cannot be
    called, returns nothing or raises anything else, with the message and the input.
    """
    if not callable(answer):
        raise Hint(f"A function is asked for, this is {article(answer)}. Pass its name, without brackets after it.")
    try:
        result = answer(*(g.clone() if isinstance(g, torch.Tensor) else g for g in given.values()))
    except NotImplementedError:
        raise NotTried from None
    except Exception as error:
        raise Hint(f"Your function stopped with {type(error).__name__}: {error}\nfor {show(given)}") from error
    if result is ... or (result is None and _empty(answer)):
        raise NotTried
    if result is None:
        raise Hint("Your function returned nothing (None). Does every way through it end with return?")
    return result


def _empty(answer: Any) -> bool:
    """Whether a function does nothing but return a constant, as the dots of an exercise do."""
    if not hasattr(answer, "__code__"):
        return False
    nothing = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE", "COPY_FREE_VARS", "CACHE"}
    return all(step.opname in nothing for step in dis.get_instructions(answer))


def tensor(
    result: Any,
    shape: tuple[int, ...],
    meaning: str,
    given: Mapping[str, Any],
    mistakes: Mapping[tuple[int, ...], str] | None = None,
) -> torch.Tensor:
    """Read a result (tensor, array, nested lists) as float64 of the given shape; raises Hint for anything else.

    meaning: the shape in words, such as ``(query, key)``; mistakes: hints for tensors of other shapes
    """
    known = (mistakes or {}).get(tuple(getattr(result, "shape", (None,))))
    if known:
        raise Hint(known)
    try:
        values = torch.as_tensor(result).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        shaped = meaning if meaning.startswith("like") else f"of shape {meaning}"
        raise Hint(f"A tensor {shaped} is asked for, this is {article(result)}.") from None
    if tuple(values.shape) != shape:
        raise Hint(f"The shape is {tuple(values.shape)}, it should be {meaning} = {shape}\nfor {show(given)}")
    return values


def several(result: Any, n: int, what: str) -> list:
    """Read n results; raises Hint, which says ``what`` is asked for, for anything else."""
    if not isinstance(result, tuple | list) or len(result) != n:
        counted = {2: "Two", 3: "Three"}[n]
        raise Hint(f"{counted} things are asked for, {what}; this is {article(result)}.")
    return list(result)


def number(result: Any) -> float:
    """Read a result as one number; raises Hint for anything else, a number in quotes included."""
    if isinstance(result, str):
        quotes = ": leave out the quotes" if result.strip().lstrip("+-").replace(".", "", 1).isdigit() else ""
        raise Hint(f"A number is asked for, this is a str, {result!r}{quotes}.")
    try:
        return float(result.detach() if isinstance(result, torch.Tensor) else result)
    except (TypeError, ValueError, RuntimeError):
        raise Hint(f"A number is asked for, this is {article(result)}.") from None


def same(a: torch.Tensor, b: torch.Tensor, tol: float = 1e-4) -> bool:
    """Whether two tensors agree to ``tol``, relative to the larger of 1 and their size; NaN agrees with nothing."""
    a, b = a.double(), b.double()
    return a.shape == b.shape and bool(((a - b).abs() <= tol * b.abs().clamp(min=1)).all())


def expect(
    got: torch.Tensor, want: torch.Tensor, mistakes: Mapping[str, torch.Tensor], rule: str, given: Mapping[str, Any]
) -> None:
    """Raise the hint of the known mistake whose result was got, or else ``rule``; nothing when it is right."""
    if not same(got, want):
        hint = next((hint for hint, wrong in mistakes.items() if same(got, wrong)), rule)
        raise Hint(f"{hint}\nSee it for {show(given)}")


def expect_number(
    result: Any,
    want: float | Tensor,
    mistakes: Mapping[str, float],
    rule: str,
    given: Mapping[str, Any],
    form: str = ".4g",
    **tolerance: float,
) -> None:
    """Raise as ``expect`` does, for one number; ``tolerance`` goes to ``math.isclose``."""
    got, tolerance = number(result), {"rel_tol": 1e-4, "abs_tol": 1e-6, **tolerance}
    if not math.isclose(got, want, **tolerance):
        hint = next((hint for hint, wrong in mistakes.items() if math.isclose(got, wrong, **tolerance)), rule)
        raise Hint(f"{hint}\nSee it for {show(given)}, where you say {got:{form}}.")


def show(values: Mapping[str, Any]) -> str:
    """Write an input out, small tensors in full, others by shape; tensors on lines of their own."""
    shown = [f"{name} = {_shown(value)}" for name, value in values.items()]
    if any(isinstance(value, torch.Tensor) for value in values.values()):
        return "".join(f"\n    {line}" for line in shown)
    return ", ".join(shown)


def article(value: Any) -> str:
    """Name a value's type with its article, or None."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


SHOWN = 300  # characters of an input that a message writes out


def _shown(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        text = repr(value) if isinstance(value, (int, float, str, dict, list, tuple, set)) else article(value)
        return text if len(text) <= SHOWN else f"{article(value)}, too long to show"
    if value.numel() > 24:
        return f"a tensor of shape {tuple(value.shape)}"
    rounded = value.tolist() if value.dtype is torch.bool else value.double().round(decimals=2).tolist()
    return str(rounded).replace(".0,", ",").replace(".0]", "]")
