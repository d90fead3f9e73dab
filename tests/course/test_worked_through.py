"""The course worked through once: the folded solutions of all lessons, in order, make a library of one's own."""

import ast
import linecache
import re
from contextlib import suppress
from pathlib import Path

import pytest
from lesson_parts import Notebook, lessons

import headtools as ht
from headtools.course import library
from headtools.course.exercises import all_exercises

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
APPENDICES = [path for path in sorted((NOTEBOOKS / "more").glob("*.ipynb")) if Notebook.read(path).exercises()]


def run(source: str, name: str, names: dict) -> None:
    """Run source as a cell whose text Python knows."""
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    exec(compile(source, name, "exec"), names)


def define(source: str, name: str, names: dict) -> None:
    """Run what a cell imports and defines; nothing of what it measures, and no stub."""
    for place, node in enumerate(ast.parse(source).body):
        is_stub = any(isinstance(n, ast.Expr) and ast.unparse(n) == "..." for n in ast.walk(node))
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef) and not is_stub:
            with suppress(NameError):  # a default value that was measured: no tool of a function that is built
                run(ast.unparse(node), f"{name} {place}", names)


@pytest.mark.full  # a minute
def test_the_folded_solutions_make_a_library_that_reports(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADTOOLS_PROGRESS", str(tmp_path / "my-progress.json"))
    wrong = []
    for path in [*lessons(NOTEBOOKS), *APPENDICES]:
        notebook, names = Notebook.read(path), {"__name__": "__main__", "ht": ht, "mine": ht.my_heads()}
        parts = {notebook.nb.cells[part.check].source: part for part in notebook.exercises()}
        for number, cell in enumerate(notebook.nb.cells):
            if cell.cell_type != "code":
                continue
            part = parts.get(cell.source)
            if part is None:
                define(cell.source, f"<{path.stem} {number}>", names)
                continue
            exercise, answer = re.match(r'ht\.check\("(.+?)", (\w+)\)', cell.source).groups()
            if not all_exercises()[exercise].builds:
                continue
            run(notebook.solution_code(part), f"<{path.stem} {number}>", names)
            result = ht.check(exercise, names[answer])
            kept = library._learners(library.library_path())[0]
            if not result.passed or not hasattr(kept, all_exercises()[exercise].builds):
                wrong.append((exercise, result))
    assert wrong == []
    assert "course's; write yours" not in repr(ht.my_heads())
