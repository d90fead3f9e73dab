"""Make a course folder in which assignments are handed out and graded with nbgrader: ``make assignments``.

    python tools/hand_out.py                                  build/course
    python tools/hand_out.py --out ../course --variant 7      other heads, layers and sentences in the tasks

``source/`` holds the notebooks with solutions and all tests, ``release/`` what learners get, ``gradebook.db`` what
each task is worth. Keep the folder to yourself. The folder must not exist, so that no grades are overwritten.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat

if TYPE_CHECKING:
    from nbgrader.apps import NbGraderAPI

ROOT = Path(__file__).resolve().parents[1]
VARIANT = re.compile(r"^VARIANT = \d+", re.M)


def with_variant(nb: nbformat.NotebookNode, variant: int) -> nbformat.NotebookNode:
    """Return a problem set with another variant, set in its locked cell.

    Raises ``ValueError`` where there is no such cell, or more than one.
    """
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and VARIANT.search(cell.source)]
    if len(cells) != 1:
        raise ValueError(f"{len(cells)} cells set VARIANT, needed one: VARIANT = 1")
    cells[0].source = VARIANT.sub(f"VARIANT = {variant}", cells[0].source)
    return nb


def grading(folder: Path, **settings: dict) -> NbGraderAPI:
    """Return nbgrader for a course folder, with its nbgrader_config.py; ``settings`` add to that, by class."""
    from nbgrader.apps import NbGraderAPI
    from traitlets.config import Config, PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(folder)).load_config()
    config.merge(Config({"CourseDirectory": {"root": str(folder)}}))
    config.merge(Config(settings))
    # nbgrader calls alembic by its name.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return NbGraderAPI(config=config)


def names(folder: Path) -> list[str]:
    """Return the names of the problem sets in a course folder, in order."""
    return sorted(path.name for path in (folder / "source").iterdir() if path.is_dir())


def make(out: Path, variant: int = 1, source: Path = ROOT / "assignments") -> NbGraderAPI:
    """Make a course folder: settings, sources with the variant put in, release versions, gradebook.

    Raises ``FileExistsError`` where there is such a folder, ``RuntimeError`` with nbgrader's words where it fails.
    """
    if out.exists():
        raise FileExistsError(f"{out} is there already, perhaps with grades: name another folder, --out FOLDER")
    out.mkdir(parents=True)
    shutil.copy(source / "nbgrader_config.py", out)
    for name in names(source):
        nb = with_variant(nbformat.read(source / "source" / name / f"{name}.ipynb", as_version=4), variant)
        (out / "source" / name).mkdir(parents=True)
        nbformat.write(nb, out / "source" / name / f"{name}.ipynb")
    api = grading(out)
    for name in names(out):
        done = api.generate_assignment(name, force=True, create=True)
        if not done["success"]:
            raise RuntimeError(f"nbgrader could not make {name}:\n{done.get('error') or done.get('log')}")
    return api


def main() -> int:
    """Make the folder and tell where it is."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=ROOT / "build" / "course")
    options.add_argument("--variant", type=int, default=1, help="changes the numbers in the tasks: 1, 2, 3, ...")
    given = options.parse_args()
    try:
        make(given.out.resolve(), given.variant)
    except FileExistsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.out.resolve()}: give out release/, put what comes back into submitted/NAME/", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
