"""A room uses the rooms before it: _engine, heads, roles, geometry, importance, sparse, organism, course, _report."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import headtools as ht

ROOMS = ("_engine", "heads", "roles", "geometry", "importance", "sparse", "organism", "course", "_report")
PACKAGE = Path(ht.__file__).parent


def used(source: str) -> Iterator[str]:
    """Modules of headtools that a file imports, anywhere in it, or reaches by ``ht.name``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "headtools":
            yield from (f"headtools.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headtools."):
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("headtools."))
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "ht" and node.attr in ht._WHERE:
            yield f"headtools.{ht._WHERE[node.attr]}"


def to_the_right(room: str, source: str) -> list[str]:
    """What a file of a room uses that lies in a room to its right."""
    return [module for module in used(source) if module.split(".")[1] in ROOMS[ROOMS.index(room) + 1 :]]


@pytest.mark.parametrize("room", ROOMS)
def test_arrows_go_to_the_right_only(room):
    found = set()
    for path in sorted((PACKAGE / room).rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        found |= {(name, module) for module in to_the_right(room, path.read_text(encoding="utf-8"))}
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "from headtools.course.figure import ledger",
        "import headtools.organism.load",
        "from headtools import course",
        "def f():\n    import headtools as ht\n    return ht.check",
    ],
)
def test_a_wrong_arrow_is_seen(line):
    assert to_the_right("sparse", line)
    assert not to_the_right("course", line)
