"""Tries the exercises of a lesson in the kernel in which nbval compares the lesson, right after each check cell.

nbval runs the lesson with its untouched stubs. After the cell of a check, the stub must not have passed and the folded
solution must pass. The solution runs in a copy of the kernel's names, and random generators go on from where they
stood, so that the cells after it are compared as if nothing had happened.
"""

import ast
from collections.abc import Iterator

import pytest
from lesson_parts import Notebook, text

SECONDS = 120  # for one solution

# Sent to the kernel. A copy of the names is a new namespace: what a solution defines or imports is gone afterwards.
IN_KERNEL = """
def _try(stub, solution, solved):
    import linecache, random
    import numpy, torch
    names = dict(globals())
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        for part, code in (("stub", stub), ("solution", solution), ("check", solved)):
            file = f"<{part}>"
            linecache.cache[file] = len(code), None, code.splitlines(True), file  # for functions that read their source
            exec(compile(code, file, "exec"), names)
    finally:
        random.setstate(states[0]), numpy.random.set_state(states[1]), torch.set_rng_state(states[2])
"""


class SolutionItem(pytest.Item):
    """One exercise of a notebook that nbval runs."""

    def __init__(self, *, code: str, **named: object) -> None:
        super().__init__(**named)
        self.code = code

    def runtest(self) -> None:
        """Run the trial in the notebook's kernel; raises AssertionError with the kernel's traceback."""
        assert self.parent.kernel.is_alive(), "the kernel is dead"
        reply = self.parent.kernel.kc.execute_interactive(
            self.code,
            store_history=False,
            allow_stdin=False,
            stop_on_error=False,
            timeout=SECONDS,
            output_hook=lambda message: None,
        )["content"]
        assert reply["status"] == "ok", "\n".join(reply.get("traceback", []))

    def reportinfo(self) -> tuple[object, int, str]:
        """Where the exercise is, for pytest's reports."""
        return self.path, 0, self.name


def checked(source: str, passed: bool) -> str:
    """The code of a check cell, which now asserts that its checks passed, or that none did."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [ast.unparse(c) for c in calls if "check" in (getattr(c.func, "id", ""), getattr(c.func, "attr", ""))]
    assert calls, f"no check in {source!r}"
    lines = [f"result = {call}\nassert result.passed is {passed}, result" for call in calls]
    return "\n".join(lines)


def trials(notebook: Notebook) -> Iterator[tuple[int, str, str]]:
    """For each exercise: the place of its check among the cells, its title, and the code that tries it."""
    for part in notebook.exercises():
        source = text(notebook.nb.cells[part.check])
        pieces = checked(source, passed=False), notebook.solution_code(part), checked(source, passed=True)
        yield part.check, part.title, f"{IN_KERNEL}\ntry:\n    _try(*{pieces!r})\nfinally:\n    del _try\n"


def with_solutions(items: list[pytest.Item]) -> list[pytest.Item]:
    """The items of a run, with one more after each of nbval's cells that is the check of an exercise."""
    found, tried = [], {}
    for item in items:
        found.append(item)
        if type(item).__name__ != "IPyNbCell":
            continue
        notebook = item.parent
        if notebook not in tried:
            code_cells = [place for place, cell in enumerate(notebook.nb.cells) if cell.cell_type == "code"]
            tried[notebook] = {
                code_cells.index(place): SolutionItem.from_parent(notebook, name=f"Solution of {title}", code=code)
                for place, title, code in trials(Notebook(notebook.path, notebook.nb))
            }
        if item.cell_num in tried[notebook]:
            found.append(tried[notebook][item.cell_num])
    return found
