"""Lessons are run the same way each time, measured, and told the same everywhere."""

import json
from pathlib import Path

import execute_notebooks
import measure_notebooks
import nbformat
import pytest
from execute_notebooks import WIDGET, normalise, run, save
from measure_notebooks import fingerprint, remember, table, tell, told, words
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

README = """\
| n | lesson | what it is about | minutes | MB |
|---|---|---|---|---|
| 00 | Begin | the first | planned | planned |
| 01 | Go on | the second | planned | planned |
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cells = [
        new_markdown_cell("# Where to begin?"),
        new_markdown_cell("9 minutes, 9 MB, 7 minutes"),
        new_code_cell("print(1)\nprint(2)"),
        new_code_cell("hold = bytearray(300_000_000)\nhold[::4096] = b'x' * len(hold[::4096])\ndel hold"),
    ]
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    nbformat.write(new_notebook(cells=cells), notebooks / "00_begin.ipynb")
    return notebooks


def test_a_run_is_measured_saved_and_told(folder: Path):
    path, file, readme = folder / "00_begin.ipynb", folder / "measured.json", folder.parent / "README.md"
    readme.write_text(README)
    file.write_text(json.dumps({"lessons": {"07_gone": {}}}))
    done = run(path)
    assert 0 < done.seconds < 60
    assert 300 < done.megabytes < 600  # the peak, though the memory was given back
    save(done.nb, path)
    remember(path, done, file)
    tell(file, readme)
    (row,) = json.loads(file.read_text())["lessons"].values()
    nb = nbformat.read(path, as_version=4)
    assert row["code"] == fingerprint(nb)
    assert nb.cells[1].source == f"{words(row)}, 7 minutes"
    assert nb.cells[2].outputs == [new_output("stream", name="stdout", text="1\n2\n")]
    page = "https://headtools.github.io/headtools/00_begin.html"
    row_told = f"| [00]({page}) | [Where to begin?](notebooks/00_begin.ipynb) | the first | 1 | {told(row)[1]} |"
    assert row_told in readme.read_text()
    assert README.splitlines()[-1] in readme.read_text()
    before = (path.read_bytes(), readme.read_text())
    tell(file, readme)
    assert (path.read_bytes(), readme.read_text()) == before


def test_memory_is_the_highest_seen_until_the_code_changes(folder: Path):
    path, file = folder / "00_begin.ipynb", folder / "measured.json"

    def told_after(megabytes: float) -> int:
        remember(path, execute_notebooks.Run(nbformat.read(path, as_version=4), 1.0, megabytes), file)
        return json.loads(file.read_text())["lessons"]["00_begin"]["megabytes"]

    assert [told_after(532.4), told_after(499.0), told_after(540.0)] == [532, 532, 540]
    nbformat.write(new_notebook(cells=[new_code_cell("x = 1")]), path)
    assert told_after(300.0) == 300


def test_an_error_in_a_cell_is_raised_and_nothing_is_saved(folder: Path, monkeypatch: pytest.MonkeyPatch):
    path = folder / "00_begin.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    monkeypatch.setattr("sys.argv", ["execute_notebooks.py", str(path)])
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute_notebooks.main()
    assert path.read_bytes() == before
    assert not (folder / "measured.json").exists()


def test_what_changes_from_run_to_run_is_left_out():
    def made(model_id: str, version: str):
        out = new_output("display_data", {WIDGET: {"model_id": model_id, "version_major": 2}, "text/plain": "a"})
        timed = {"execution": {"started": version}, "tags": ["trap"]}
        cell = new_code_cell("x", outputs=[out], id="one", metadata=timed)
        metadata = {"widgets": {model_id: 1}, "language_info": {"name": "python", "version": version}}
        return normalise(new_notebook(cells=[cell], metadata=metadata))

    nb = made("a1", "3.11.7")
    assert nb == made("b2", "3.13.0")
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.cells[0].metadata == {"tags": ["trap"]}
    nbformat.validate(nb)


def test_a_row_without_a_measurement_stays_as_it_is(folder: Path):
    assert table(README, {}, folder) == README
    assert "planned | planned |\n| 01" not in table(README, {"00_begin": {"seconds": 1, "megabytes": 1}}, folder)


@pytest.mark.parametrize(("seconds", "minutes"), [(0.4, 1), (60, 1), (60.1, 2), (125, 3)])
def test_minutes_are_rounded_up(seconds: float, minutes: int):
    assert told({"seconds": seconds, "megabytes": 401}) == (minutes, 450)


def test_the_fingerprint_sees_code_only():
    code, text = new_code_cell("x = 1"), new_markdown_cell("one")
    first = fingerprint(new_notebook(cells=[code, text]))
    text.source = "two"
    assert fingerprint(new_notebook(cells=[code, text])) == first
    code.source = "x = 2"
    assert fingerprint(new_notebook(cells=[code, text])) != first
    assert measure_notebooks.FILE.name == "measured.json"
