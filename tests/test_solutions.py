"""In every lesson the untouched stub does not pass its check, and the folded solution does."""

import ast
import builtins
from pathlib import Path

import nbformat
import pytest
from lesson_parts import Notebook, lessons, text
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

LESSONS = lessons(Path(__file__).resolve().parents[1] / "notebooks")


def checked(source: str, passed: bool) -> str:
    """The code of a check cell, which now asserts that its checks passed, or that none did."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [ast.unparse(c) for c in calls if "check" in (getattr(c.func, "id", ""), getattr(c.func, "attr", ""))]
    assert calls, f"no check in {source!r}"
    lines = [f"result = {call}\nassert result.passed is {passed}, result" for call in calls]
    return "\n".join(lines)


def bound(tree: ast.AST) -> set[str]:
    """Names that a piece of code binds or changes: assigned, defined, imported, or written into (``x[0] = 1``)."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return found


def used(tree: ast.AST) -> set[str]:
    """Names that a piece of code reads."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names - set(dir(builtins))


def trial(notebook: Notebook, whole: bool) -> nbformat.NotebookNode:
    """A notebook that tries every stub and every solution; without ``whole``, only the cells these depend on."""
    steps: list[tuple[str, bool]] = []  # code, whether it is what we are here for
    parts = {part.check: part for part in notebook.exercises()}
    stubs = {part.stub for part in parts.values()}
    for place, cell in enumerate(notebook.nb.cells):
        if place in parts:
            steps.append((checked(text(cell), passed=False), True))
            steps.append((notebook.solution_code(parts[place]), True))
            steps.append((checked(text(cell), passed=True), True))
        elif cell.cell_type == "code":
            steps.append((text(cell), place in stubs))
    kept, needed = [], set()
    for source, wanted in reversed(steps):
        tree = ast.parse(source)
        if whole or wanted or bound(tree) & needed:
            kept.insert(0, new_code_cell(source))
            needed |= used(tree)
    return new_notebook(cells=kept)


def try_solutions(notebook: Notebook) -> None:
    """Run the trial; raises CellExecutionError when a stub passes or a solution does not."""
    resources = {"metadata": {"path": str(notebook.path.parent)}}
    try:
        NotebookClient(trial(notebook, whole=False), timeout=120, resources=resources).execute()
    except CellExecutionError:
        # Perhaps a cell was needed for what it does, not for a name: only the whole lesson can tell.
        NotebookClient(trial(notebook, whole=True), timeout=120, resources=resources).execute()


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_solutions_pass_and_stubs_do_not(path: Path):
    notebook = Notebook.read(path)
    assert all(notebook.solution_code(part) for part in notebook.exercises())
    try_solutions(notebook)


def small(folder: Path, stub: str, solution: str) -> Notebook:
    cells = [
        new_code_cell("from headtools import check"),
        new_code_cell("unused = 1 / 0"),  # left out, because no exercise needs it
        new_code_cell("four = 4"),
        new_markdown_cell("### Exercise 1"),
        new_code_cell(stub),
        new_code_cell('check("01.cost", cost)'),
        new_markdown_cell(f"<details><summary>Solution</summary>\n\n```python\n{solution}\n```\n</details>"),
    ]
    return Notebook(folder / "00_small.ipynb", new_notebook(cells=cells))


RIGHT = "def cost(T, d, H):\n    return four * T * d * d + 2 * T * T * d"


def test_a_right_solution_passes_without_the_rest_of_the_lesson(tmp_path: Path):
    try_solutions(small(tmp_path, "cost = ...", RIGHT))


WRONG = RIGHT.replace("2 *", "3 *")


@pytest.mark.parametrize(("stub", "solution"), [("cost = ...", WRONG), (RIGHT, RIGHT)], ids=["wrong", "answered"])
def test_a_wrong_solution_and_an_answered_stub_are_told(tmp_path: Path, stub: str, solution: str):
    notebook = small(tmp_path, stub, solution)
    del notebook.nb.cells[1]
    with pytest.raises(CellExecutionError, match="AssertionError"):
        try_solutions(notebook)
