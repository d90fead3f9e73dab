"""Put marks into the sheet of a learning platform: what Canvas or Moodle exports, filled in, to be imported there.

    python tools/grade_sheet.py exported.csv grades.csv > filled.csv

``exported.csv`` is the gradebook as the platform exports it, ``grades.csv`` is written by ``nbgrader export``. Learners
are matched by any column that holds the name under which they handed in: Canvas has ``SIS Login ID``, Moodle
``Username``, ``ID number`` and ``Email address`` (the part before the @ will do). A problem set goes into the one
column whose title has its name, ``Problem set 1 (4711)`` or ``Assignment: ps1_mathematics (Real)``. All else stays as
it is, so that the platform knows its own file.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

LEARNER = {"sis login id", "sis user id", "id", "username", "id number", "email address", "email"}


def points(grades: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Return {(problem set, learner): points} of rows of nbgrader's file; what was not handed in is left out."""
    return {(row["assignment"], row["student_id"]): row["score"] for row in grades if row["timestamp"]}


def column(name: str, titles: list[str]) -> int | None:
    """Return the number of the column of a problem set, None where the sheet has none.

    Raises ``ValueError`` where it has two.

    >>> column("ps1_mathematics", ["Student", "ID", "Problem Set 1 (4711)", "Problem set 10 (4712)"])
    2
    """
    number = re.match(r"ps(\d+)_", name)
    spelled = rf"{re.escape(name)}|problem[ _]set[ _]0*{number[1]}(?!\d)" if number else re.escape(name)
    found = [at for at, title in enumerate(titles) if re.search(spelled, title, re.I)]
    if len(found) > 1:
        raise ValueError(
            f"{name} fits {len(found)} columns: {', '.join(titles[at] for at in found)}. Leave one of them"
        )
    return found[0] if found else None


def filled(sheet: str, marks: Mapping[tuple[str, str], str]) -> tuple[str, list[str]]:
    """Return the text of a sheet with the marks in it, and a sentence on each mark that found no place.

    Raises ``ValueError`` where no column says who a learner is, or where two learners have one name.

    >>> sheet = "Student,SIS Login ID,Problem set 1 (7)\\nLovelace,ada,\\n"
    >>> text, left = filled(sheet, {("ps1_mathematics", "ada"): "19"})
    >>> print(text, left)
    Student,SIS Login ID,Problem set 1 (7)
    Lovelace,ada,19
     []
    """
    titles, *rows = csv.reader(io.StringIO(sheet.lstrip("\ufeff")))
    who = [at for at, title in enumerate(titles) if title.strip().lower() in LEARNER]
    if not who:
        raise ValueError(
            f"no column says who a learner is; it has {', '.join(titles)}, needed one of {sorted(LEARNER)}"
        )
    rows = [row + [""] * (len(titles) - len(row)) for row in rows]  # spreadsheets leave empty ends out
    known: dict[str, int] = {}
    for number, row in enumerate(rows):
        for name in {row[at].strip().lower() for at in who} - {""}:
            for spelled in {name, name.split("@")[0]}:
                if known.setdefault(spelled, number) != number:
                    raise ValueError(f"two rows of the sheet are {spelled!r}")
    places = {name: column(name, titles) for name in dict.fromkeys(name for name, _ in marks)}
    left = [f"{name}: the sheet has no column for it" for name, at in places.items() if at is None]
    for (name, learner), worth in marks.items():
        number = known.get(learner.lower())
        if number is None:
            left.append(f"{learner}: nobody in the sheet has this name; {name} has {worth} points")
        elif (at := places[name]) is not None:
            rows[number][at] = worth
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([titles, *rows])
    return written.getvalue(), left


def main() -> int:
    """Write the filled sheet; say what found no place, and leave a status that tells."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("sheet", type=Path, help="what the platform exported")
    options.add_argument("grades", type=Path, help="what nbgrader exported")
    given = options.parse_args()
    try:
        marks = points(csv.DictReader(io.StringIO(given.grades.read_text("utf-8"))))
        text, left = filled(given.sheet.read_text("utf-8"), marks)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(text, end="")
    print(f"marks: {len(marks)}; without a place: {len(left)}", *left, sep="\n", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
