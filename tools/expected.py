"""The numbers that the lessons' catalogues expect, compared with those of a run, and written anew for review."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from headtools.course import catalogue
from headtools.course.measured import unit

FOLDER = Path(catalogue.__file__).parent


def measured_in(log: Path) -> dict[str, dict[str, float]]:
    """Return what a run measured, {key: {name: number}}, from the file that HEADTOOLS_MEASURED named."""
    lines = log.read_text("utf-8").splitlines() if log.exists() else []
    return {row["key"]: row["numbers"] for row in map(json.loads, lines)}


def differences(measured: dict[str, dict[str, float]]) -> tuple[dict[str, dict[str, float]], list[str], bool]:
    """Return the expectations that should change, each change as a line to read, and whether any is out of tolerance.

    A number within its tolerance that prints differently changes too, so that lessons print what is measured.
    """
    changed, lines, off = {}, [], False
    for key, numbers in measured.items():
        about = catalogue.entry(key)
        old, caption = about.get("expect", {}), about.get("caption", "")
        new = {}
        for name, value in numbers.items():
            before = old.get(name)
            step = unit(caption, name, value if before is None else before)
            most = about.get("tolerance", {}).get(name, step)
            near = before is not None and abs(value - before) <= most * (1 + 1e-9)
            rounded = round(value) if step == 0 else _rounded(value, step)
            new[name] = before if near and (most < step or abs(rounded - before) < step / 2) else rounded
            off |= not near
        if new != old:
            changed[key] = new
            lines += [
                f"{key} {name}: {old.get(name, 'nothing')} -> {new.get(name, 'nothing')}"
                for name in [*new, *(old.keys() - new)]
                if old.get(name) != new.get(name)
            ]
    return changed, lines, off


def write(changed: dict[str, dict[str, float]], folder: Path = FOLDER) -> None:
    """Write new expectations into the catalogues; every other line stays as it is."""
    for key, numbers in changed.items():
        number, _, name = key.partition(".")
        file = folder / f"{number}.toml"
        file.write_text(replaced(file.read_text("utf-8"), name, numbers), encoding="utf-8")


def replaced(text: str, name: str, numbers: dict[str, float]) -> str:
    """Return a catalogue's text with one entry's ``expect`` line replaced or added.

    >>> print(replaced("[a]\\nalt = 'x'\\n\\n[b]\\n", "a", {"n": 3}), end="")
    [a]
    alt = 'x'
    expect = { n = 3 }
    <BLANKLINE>
    [b]
    """
    line = f"expect = {{ {', '.join(f'{n} = {value!r}' for n, value in numbers.items())} }}"
    head, found, rest = text.partition(f"[{name}]\n")
    if not found:
        raise ValueError(f"the catalogue has no entry [{name}]")
    end = re.search(r"\n*(?=^\[|\Z)", rest, re.M).start()
    section, rest = rest[:end], rest[end:]
    section, count = re.subn(r"^expect = .*$", lambda match: line, section, flags=re.M)
    return head + found + (section if count else f"{section}\n{line}") + rest


def _rounded(value: float, step: float) -> float:
    digits = round(-math.log10(step))
    return round(value, digits) if digits > 0 else float(round(value, digits))
