"""Each exercise has a solution, and ``notebook_solutions`` sees what is wrong with one."""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from lesson_parts import Notebook, lessons
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_solutions import trials

TESTS = Path(__file__).resolve().parent
LESSONS = lessons(TESTS.parent / "notebooks")
STUB = "cost = ..."
RIGHT = "def cost(T, d, H):\n    return four * T * d * d + 2 * T * T * d"
WRONG = RIGHT.replace("2 *", "3 *")
CASES = {  # of the exercises of a small lesson: stub and solution, and what must come of trying them
    "right": (STUB, RIGHT, "passed"),
    "wrong": (STUB, WRONG, "failure"),
    "answered": (RIGHT, RIGHT, "failure"),
    "broken": (STUB, "cost = 1 / 0", "failure"),
}


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_each_exercise_has_a_solution_that_is_tried(path: Path):
    notebook = Notebook.read(path)
    exercises = notebook.exercises()
    assert exercises
    assert [title for _, title, _ in trials(notebook)] == [part.title for part in exercises]
    assert all(notebook.solution_code(part).strip() for part in exercises)


def small() -> nbformat.NotebookNode:
    cells = [new_code_cell("import torch\nfrom headtools import check\nfour = 4")]
    for number, (stub, solution, _) in enumerate(CASES.values(), 1):
        folded = f"<details><summary>Solution</summary>\n\n```python\ntorch.rand(1)\n{solution}\n```\n</details>"
        cells += [
            new_markdown_cell(f"### Exercise {number}"),
            new_code_cell(f"torch.manual_seed(0)\n{stub}"),
            new_code_cell('check("01.cost", cost)'),
            new_markdown_cell(folded),
            # Names, and the numbers drawn next, are as if no solution had been tried.
            new_code_cell("assert cost is ..." if stub == STUB else "cost"),
            new_code_cell("got = torch.rand(1)\ntorch.manual_seed(0)\nassert got == torch.rand(1)"),
        ]
    nb = new_notebook(cells=cells)
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nb


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, str]:
    """What comes of each cell and solution of the small lesson when nbval runs it, once."""
    folder = tmp_path_factory.mktemp("solutions")
    nbformat.write(small(), folder / "small.ipynb")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        f"--rootdir={folder}",
        "-p",
        "no:cacheprovider",
        "-p",
        "conftest",
        "--nbval-lax",
        "--nbval-current-env",
        "--junitxml=report.xml",
        folder,
    ]
    modules = os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": modules},
    )
    assert (folder / "report.xml").exists(), done.stdout + done.stderr
    cases = ElementTree.parse(folder / "report.xml").iter("testcase")
    return {case.get("name"): "passed" if len(case) == 0 else case[0].tag for case in cases}


@pytest.mark.parametrize("name", CASES)
def test_a_solution_is_tried_in_the_lesson(outcomes, name: str):
    assert outcomes[f"Solution of Exercise {[*CASES].index(name) + 1}"] == CASES[name][2]


def test_a_solution_leaves_nothing(outcomes):
    cells = [found for title, found in outcomes.items() if title.startswith("Cell")]
    assert cells == ["passed"] * (1 + 4 * len(CASES))
