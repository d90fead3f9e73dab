"""Measure minutes and memory of each lesson and write them where readers are told: ``make measure``.

    python tools/measure_notebooks.py                      all lessons and problem sets
    python tools/measure_notebooks.py notebooks/00_*.ipynb some

The numbers go to ``notebooks/measured.json``, and from there, rounded, to the box at the top of each lesson and to the
table in the README. Minutes are wall-clock from the start of the kernel to the end of the last cell, on one thread,
rounded up; megabytes are the kernel's highest memory in any run since the code changed, rounded up to the next 50. A
test compares all three places. Those of the problem sets go to ``assignments/measured.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import nbformat
from execute_notebooks import ROOT, Run, lessons, run, save
from honest_minutes import honest_minutes

FILE = ROOT / "notebooks" / "measured.json"
SETS = ROOT / "assignments" / "measured.json"
README = ROOT / "README.md"
REFERENCE = ROOT / "headtools" / "course" / "my_heads.py"
BOX = re.compile(r"\d+ minutes?, [\d,]+ MB")
WORK = re.compile(r"about \d+ minutes for reading, predictions and exercises")
PACKAGES = ("torch", "transformers", "jupyterlab")


def told(row: dict) -> tuple[int, int]:
    """Minutes and megabytes as a lesson tells them.

    >>> told({"seconds": 61.0, "megabytes": 512.3})
    (2, 550)
    """
    return max(1, math.ceil(row["seconds"] / 60)), math.ceil(row["megabytes"] / 50) * 50


def words(row: dict) -> str:
    """The text of the box.

    >>> words({"seconds": 30.0, "megabytes": 450.0})
    '1 minute, 450 MB'
    """
    minutes, megabytes = told(row)
    return f"{minutes} minute{'s' if minutes > 1 else ''}, {megabytes} MB"


def work(nb: nbformat.NotebookNode, row: dict) -> str:
    """The text of the box on how long a lesson takes, see ``honest_minutes``."""
    return f"about {honest_minutes(nb, row['seconds'])} minutes for reading, predictions and exercises"


def fingerprint(nb: nbformat.NotebookNode) -> str:
    """A checksum of a notebook's code, to see whether it was changed since it was measured."""
    code = "\0".join(cell.source for cell in nb.cells if cell.cell_type == "code")
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def problem_sets(folder: Path = SETS.parent) -> list[Path]:
    """The problem sets, in order: each is a notebook in a folder of its name, as nbgrader wants it."""
    return sorted(path for path in folder.glob("source/*/*.ipynb") if path.stem == path.parent.name)


def notebook_of(file: Path, name: str) -> Path:
    """Where the notebook lies that has a row in a measured.json: beside it, or as a problem set below it."""
    below = file.parent / "source" / name / f"{name}.ipynb"
    return below if below.exists() else file.with_name(f"{name}.ipynb")


def remember(path: Path, done: Run, file: Path = FILE) -> None:
    """Write one lesson's numbers into measured.json; rows of lessons that are gone are dropped."""
    kept = json.loads(file.read_text("utf-8"))["lessons"] if file.exists() else {}
    kept = {name: row for name, row in kept.items() if notebook_of(file, name).exists()}
    code, megabytes, before = fingerprint(done.nb), round(done.megabytes), kept.get(path.stem, {})
    if before.get("code") == code:
        megabytes = max(megabytes, before["megabytes"])  # the highest seen, or noise would change the text each time
    kept[path.stem] = {"seconds": round(done.seconds, 1), "megabytes": megabytes, "code": code}
    content = {
        "how": "make measure: wall-clock seconds of a whole run on one thread, highest memory of the kernel",
        "python": ".".join(map(str, sys.version_info[:2])),
        "versions": {name: version(name).split("+")[0] for name in PACKAGES},
        "lessons": dict(sorted(kept.items())),
    }
    part = file.with_name(file.name + ".part")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, file)


def tell(file: Path = FILE, readme: Path = README) -> None:
    """Write the numbers of measured.json into the lessons' boxes and the README's table."""
    rows = json.loads(file.read_text("utf-8"))["lessons"]
    for name, row in rows.items():
        path = notebook_of(file, name)
        nb = nbformat.read(path, as_version=4)
        changed = False
        for cell in nb.cells[:3]:
            if cell.cell_type == "markdown" and BOX.search(cell.source):
                new = WORK.sub(work(nb, row), BOX.sub(words(row), cell.source, count=1))
                changed, cell.source = changed or new != cell.source, new
        if changed:
            save(nb, path)
    if readme.exists():
        text = readme.read_text("utf-8")
        new = table(text, rows, file.parent)
        if new != text:
            readme.write_text(new, encoding="utf-8")


def table(text: str, rows: dict, folder: Path) -> str:
    """The README's text with its table of lessons brought up to date.

    A row is ``| 00 | title | what it is about | minutes | MB |``; the number leads to the lesson's page on the site,
    the title to the notebook. The third column is written by hand and kept.
    """
    site = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Homepage"]
    lines = []
    for line in text.splitlines(keepends=True):
        row = re.match(r"\| \[?(\d\d)\S* \| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", line.rstrip("\n"))
        path = next((p for p in lessons(folder) if row and p.name.startswith(f"{row[1]}_")), None)
        if row and path and path.stem in rows:
            title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
            title = re.sub(r"^# (\d\d · )?", "", title)
            minutes, megabytes = told(rows[path.stem])
            links = f"[{row[1]}]({site}{path.stem}.html) | [{title}](notebooks/{path.name})"
            line = f"| {links} | {row[3]} | {minutes} | {megabytes} |\n"
        lines.append(line)
    return "".join(lines)


def main() -> None:
    """Measure the notebooks named on the command line, or all of them, and tell the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path)
    for path in parser.parse_args().notebooks or [*lessons(), *problem_sets()]:
        graded = path.resolve() in problem_sets()
        results = path.with_suffix(".json")  # of the project, which measures only where there is no such file
        library = path.with_name(REFERENCE.name)  # the learner's, which is graded with a problem set
        if graded:
            results.unlink(missing_ok=True)
            library.write_text(REFERENCE.read_text("utf-8"), "utf-8")
        try:
            done = run(path)
        finally:
            if graded:
                results.unlink(missing_ok=True)
                library.unlink()
        remember(path, done, SETS if graded else FILE)
        print(f"{path.name}: {done.seconds:.0f} s, {done.megabytes:.0f} MB", file=sys.stderr)
    for file in (FILE, SETS):
        tell(file)


if __name__ == "__main__":
    main()
