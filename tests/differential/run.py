"""Run combinations and say how each ended: equal, refused in words, not to be run, or a difference or a raw error."""

import contextlib
import dataclasses
import json
import re
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils import logging

import headtools

from ..heads.reference import assert_same_state, state
from .combinations import Case, Combination, draw
from .measures import MEASURES
from .naive import NotRunnable

EQUAL, REFUSED, NOT_RUN, DIFFERS, ERROR = "equal", "refused in words", "not to be run", "DIFFERS", "RAW ERROR"
PACKAGE = Path(headtools.__file__).parent
FAILURES = (DIFFERS, ERROR)
WORDS = (ValueError, TypeError, RuntimeError, KeyError, IndexError)  # what headtools refuses with
MONTE_CARLO = {"hard_concrete": 0.02}  # measures that are compared with draws


@dataclass(frozen=True)
class Outcome:
    """How a combination ended, and why."""

    combination: Combination
    end: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.end}: {self.combination}: {self.why}\n    {self.combination.command}"


def run(combination: Combination) -> Outcome:
    """Run a measure and its naive definition on one combination."""
    logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            case = Case(combination)
            runs_by_itself(case)
            ours, slow = MEASURES[combination.measure](case)
        except NotRunnable as why:
            return Outcome(combination, NOT_RUN, str(why))
        before = left_alone(case)
        try:
            found = ours()
        except Exception as error:
            outcome = refused(combination, error)
        else:
            outcome = None
        try:
            assert_same_state(before, left_alone(case))
        except AssertionError as error:
            return Outcome(combination, DIFFERS, f"the model was left changed: {error}")
        if outcome:
            return outcome
        try:
            expected = slow()
        except NotRunnable as why:
            return Outcome(combination, NOT_RUN, str(why))
        except Exception as error:
            raise AssertionError(f"the naive side failed; run it again with\n{combination.command}") from error
        return compared(combination, found, expected)


def left_alone(case: Case) -> dict:
    """Return the state of the model that every measure must give back."""
    found = state(case.model)
    if case.combination.wrapping == "compiled":
        del found["attributes"]  # torch.compile adds its own
    return found


def runs_by_itself(case: Case) -> None:
    """Raise ``NotRunnable`` where the plain model, without headtools, fails on its own batch."""
    try:
        with torch.no_grad(), case.setting():
            for batch in case.batches:
                case.model(**batch)
    except Exception as error:
        raise NotRunnable(f"the model itself raises {type(error).__name__}: {error}") from error


def refused(combination: Combination, error: Exception) -> Outcome:
    """Tell a refusal in words, raised by headtools with a message, from an error from deep inside."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place, words = Path(last.filename), f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, WORDS) and PACKAGE in place.parents and last.line.startswith("raise") and len(words) > 40:
        return Outcome(combination, REFUSED, words)
    return Outcome(combination, ERROR, f"{words} (from {place.parent.name}/{place.name}: {last.line})")


def compared(combination: Combination, found: dict, expected: dict) -> Outcome:
    """Compare numbers by name; NaN in what is expected says that nothing real stands there.

    In half precision two ways to compute the same differ by what the model itself loses by rounding: where they are
    further apart than usual, that is what the naive side in half precision differs from itself in float32.
    """
    if found.keys() != expected.keys():
        return Outcome(combination, DIFFERS, f"{sorted(found)[:4]} came for {sorted(expected)[:4]}")
    for name, numbers in expected.items():
        if found[name].shape != numbers.shape:
            shapes = f"shape {tuple(found[name].shape)}, not {tuple(numbers.shape)}"
            return Outcome(combination, DIFFERS, f"{name}: {shapes}")
    apart, where = distance(found, expected)
    allowed = tolerance(combination)
    if apart > allowed and combination.precision != "float32":
        exact = MEASURES[combination.measure](Case(dataclasses.replace(combination, precision="float32")))[1]()
        allowed = max(allowed, 3 * distance(expected, exact)[0])
    if apart > allowed:
        return Outcome(combination, DIFFERS, f"{where} (allowed: {allowed:.1%})")
    return Outcome(combination, EQUAL, f"within {apart:.1e}")


def distance(found: dict, expected: dict) -> tuple[float, str]:
    """Return how far numbers are apart at most, as a share of the largest of their name, and where that is."""
    sizes = {name: numbers.nan_to_num().abs().max().item() for name, numbers in expected.items()}
    worst = (0.0, "nowhere")
    for name, numbers in expected.items():
        ours, numbers = found[name].detach().double(), numbers.detach().double()
        there = ~numbers.isnan()
        apart = (ours - numbers)[there].abs().nan_to_num(nan=float("inf")).max().item() if there.any() else 0.0
        # What is much smaller than the rest of the same measure is known no better than the rest is rounded.
        scale = max(sizes[name], 0.05 * max(sizes.values())) + 1e-5
        worst = max(worst, (apart / scale, f"{name} by {apart:.3g} of {sizes[name]:.3g}"))
    return worst


def tolerance(combination: Combination) -> float:
    """Return how far two ways to compute the same may be apart, as a share of the largest number."""
    if combination.measure in MONTE_CARLO:
        return MONTE_CARLO[combination.measure]
    return 1e-3 if combination.precision == "float32" else 0.1


def sample(count: int, seed: int, measures: list | None = None, **given: str) -> list:
    """Draw ``count`` combinations, the measures in turn."""
    names = measures or list(MEASURES)
    return [draw(names[number % len(names)], seed + number // len(names), **given) for number in range(count)]


def summary(outcomes: list) -> str:
    """Return how many combinations ended how, the reasons of refusals with their numbers, and every failure."""
    ends = Counter(outcome.end for outcome in outcomes)
    lines = [f"{len(outcomes)} combinations: " + ", ".join(f"{n} {end}" for end, n in ends.most_common())]
    reasons = Counter((o.combination.measure, re.sub(r"\d+", "N", o.why)[:110]) for o in outcomes if o.end == REFUSED)
    lines += [f"  refused {n} x {measure}: {why}" for (measure, why), n in sorted(reasons.items())]
    failed = Counter(
        (o.end, o.combination.measure, re.sub(r"\d[\d.e-]*", "N", o.why)[:110]) for o in outcomes if o.end in FAILURES
    )
    lines += [f"  {end} {n} x {measure}: {why}" for (end, measure, why), n in sorted(failed.items())]
    return "\n".join(lines)


def write(outcomes: list, path: str | Path) -> None:
    """Write all outcomes as JSON."""
    rows = [
        dataclasses.asdict(o.combination) | {"end": o.end, "why": o.why, "command": o.combination.command}
        for o in outcomes
    ]
    ends = Counter(outcome.end for outcome in outcomes)
    with contextlib.suppress(FileExistsError):
        Path(path).parent.mkdir(parents=True)
    Path(path).write_text(json.dumps({"ends": ends, "combinations": rows}, indent=1), encoding="utf-8")
