"""Copy the lessons without their outputs to a folder of the reader's own, ``my-lessons``: ``make lab``, Binder.

    python tools/my_lessons.py

A lesson that is already there is never touched, so nothing you have written is lost; delete or rename it and the next
call copies it anew. Pages and pictures that lessons refer to are brought up to date. ``notebooks`` keeps the executed
lessons. Needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_FOR_LEARNERS = ("index.md", "installing.md", "benchmarks.md", "teaching.md")  # pages of the site and for lecturers


def copy(source: Path = ROOT / "notebooks", target: Path = ROOT / "my-lessons") -> list[str]:
    """Copy what is not there yet; gives the names of the lessons copied."""
    target.mkdir(exist_ok=True)
    added = []
    lessons = sorted(source.glob("[0-9][0-9]_*.ipynb")) + sorted(source.glob("more/[0-9][0-9]_*.ipynb"))
    for path in lessons:
        name = path.relative_to(source)
        if not (target / name).exists():
            (target / name).parent.mkdir(exist_ok=True)
            write(target / name, without_outputs(path.read_text("utf-8")))
            added.append(name.as_posix())
    for path in source.glob("*.md"):
        if path.name in NOT_FOR_LEARNERS:
            continue
        write(target / path.name, path.read_text("utf-8"))
    if (source / "_static").is_dir():
        shutil.copytree(source / "_static", target / "_static", dirs_exist_ok=True)
    return added


def without_outputs(text: str) -> str:
    """Return a notebook's text as it was before it was run.

    >>> cell = {"cell_type": "code", "execution_count": 3, "outputs": [{}], "source": "1"}
    >>> json.loads(without_outputs(json.dumps({"cells": [cell]})))["cells"]
    [{'cell_type': 'code', 'execution_count': None, 'outputs': [], 'source': '1'}]
    """
    nb = json.loads(text)
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell.update(execution_count=None, outputs=[])
    return json.dumps(nb, indent=1, ensure_ascii=False) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


if __name__ == "__main__":
    for name in copy():
        print(f"my-lessons/{name}")
