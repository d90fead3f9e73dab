"""The reader's copy of the lessons has no outputs, keeps what was written in it, and gets new lessons."""

import json
from pathlib import Path

import pytest
from my_lessons import copy


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    (folder / "_static").mkdir(parents=True)
    (folder / "_static" / "head.svg").write_text("<svg/>")
    (folder / "glossary.md").write_text("old")
    (folder / "teaching.md").write_text("for lecturers")
    (folder / "measured.json").write_text("{}")
    add(folder, "00_a.ipynb")
    return folder


def add(folder: Path, name: str) -> None:
    code = {"cell_type": "code", "execution_count": 1, "outputs": [{"output_type": "stream"}], "source": "1"}
    cells = [{"cell_type": "markdown", "source": "é?"}, code]
    (folder / name).write_text(json.dumps({"cells": cells, "nbformat": 4}), "utf-8")


def test_without_outputs_and_never_overwritten(notebooks: Path, tmp_path: Path):
    mine = tmp_path / "my-lessons"
    assert copy(notebooks, mine) == ["00_a.ipynb"]
    text = (mine / "00_a.ipynb").read_text("utf-8")
    assert "é?" in text
    assert json.loads(text)["cells"][1] == {"cell_type": "code", "execution_count": None, "outputs": [], "source": "1"}
    assert "stream" in (notebooks / "00_a.ipynb").read_text()
    (mine / "00_a.ipynb").write_text("what I wrote")
    (notebooks / "glossary.md").write_text("new")
    add(notebooks, "01_b.ipynb")
    assert copy(notebooks, mine) == ["01_b.ipynb"]
    assert (mine / "00_a.ipynb").read_text() == "what I wrote"
    assert (mine / "glossary.md").read_text() == "new"
    assert sorted(path.name for path in mine.iterdir()) == ["00_a.ipynb", "01_b.ipynb", "_static", "glossary.md"]
    assert copy(notebooks, mine) == []


def test_every_link_of_the_lessons_leads_somewhere_in_the_copy(root: Path, tmp_path: Path):
    import anatomy
    from lesson_parts import Notebook, lessons

    copy(root / "notebooks", tmp_path / "my-lessons")
    for path in lessons(tmp_path / "my-lessons"):
        lost = [found for found in anatomy.RULES["links_resolve"](Notebook.read(path)) if "nowhere" in found]
        assert lost == [], path.name


def test_git_ignores_it(root: Path):
    assert "my-lessons/" in (root / ".gitignore").read_text().splitlines()
