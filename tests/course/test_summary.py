"""The progress page knows what was tried and passed, whatever happens to its file; a check never fails for it."""

import json
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from html.parser import HTMLParser
from multiprocessing import get_context
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import headtools as ht
from headtools.course import answered, summary
from headtools.course.answered import FILE, VARIABLE, keeping, read, remember
from headtools.course.exercises import all_exercises

RIGHT, WRONG = (lambda T, d, H: 4 * T * d * d + 2 * T * T * d), (lambda T, d, H: T)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A progress file that checks write to, in the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, FILE)
    return tmp_path / FILE


def state(name="01.cost"):
    return ht.check.summary().states[name]


def test_not_yet_tried_passed(file):
    assert state() == "not yet"
    ht.check("01.cost", ...)
    assert (state(), file.exists()) == ("not yet", False)  # a blank is no answer: running a lesson leaves no file
    assert not ht.check("01.cost", WRONG).note
    assert state() == "tried"
    ht.check("01.cost", RIGHT)
    assert state() == "passed"
    ht.check("01.cost", WRONG)
    assert state() == "passed"  # once passed, passed
    assert set(ht.check.summary().states) == set(all_exercises())
    assert [name for name, told in ht.check.summary().states.items() if told != "not yet"] == ["01.cost"]
    assert json.loads(file.read_text())["exercises"] == {"01.cost": "passed"}  # and nothing of the answer


def test_in_the_order_of_the_lessons(file, root):
    code = "".join(path.read_text("utf-8") for path in sorted((root / "notebooks").glob("[0-9]*.ipynb")))
    assert list(ht.check.summary().states) == list(dict.fromkeys(re.findall(r'"ht\.check\(\\"(.*?)\\"', code)))


def test_reset(file):
    ht.check("01.cost", RIGHT)
    assert set(ht.check.reset().states.values()) == {"not yet"}
    assert not file.exists()
    ht.check.reset()  # nothing to forget
    file.write_text("{")
    assert ht.check.reset().headline.startswith("0 of ")
    assert not file.exists()


def test_off_and_outside_a_notebook_nothing_is_written(file, monkeypatch):
    monkeypatch.setenv(VARIABLE, "off")
    assert not ht.check("01.cost", RIGHT).note
    assert "HEADTOOLS_PROGRESS is off" in ht.check.summary().note
    monkeypatch.delenv(VARIABLE)
    assert not keeping()  # a script
    ht.check("01.cost", RIGHT)
    assert list(file.parent.iterdir()) == []


NO_FILE_OF_OURS = {
    "empty": b"",
    "cut off": b'{"exercises": {"01.cost": "pa',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "a number": b"3",
    "without exercises": b"{}",
    "exercises in a list": b'{"exercises": ["01.cost"]}',
    "another state": b'{"exercises": {"01.cost": "<b>done"}}',
    "a list for a state": b'{"exercises": {"01.cost": []}}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", NO_FILE_OF_OURS.values(), ids=NO_FILE_OF_OURS)
def test_a_file_that_is_something_else_is_told_and_kept(file, content):
    file.write_bytes(content)
    result = ht.check("01.cost", RIGHT)
    assert result.passed
    message = r"[.] my-progress\.json is not as headtools wrote it \(.+\); start a new one with ht\.check\.reset\(\)\."
    for shown in (repr(result), ht.check.summary().note):
        assert re.search(message, shown), shown
        assert str(file.parent) not in shown
    assert file.read_bytes() == content
    assert "<b>done" not in ht.check.summary()._repr_mimebundle_()["text/html"]
    ht.check.reset()
    assert not ht.check("01.cost", RIGHT).note
    assert state() == "passed"


def test_a_folder_in_its_place(file):
    file.mkdir()
    assert "Set HEADTOOLS_PROGRESS to a file" in ht.check("01.cost", RIGHT).note
    assert "is a directory" in ht.check.summary().note
    with pytest.raises(OSError, match=r"It cannot be deleted\. my-progress\.json: is a directory"):
        ht.check.reset()


def test_a_read_only_file_is_not_replaced(file):
    ht.check("01.cost", WRONG)
    file.chmod(0o444)
    before = file.read_bytes()
    result = ht.check("01.cost", RIGHT)
    assert result.passed
    assert "the file is read-only. Set HEADTOOLS_PROGRESS" in result.note
    assert result.note in re.sub(r"<.*?>", "", result._repr_mimebundle_()["text/html"])
    assert (file.read_bytes(), state()) == (before, "tried")


def test_a_folder_that_is_not_there(file, monkeypatch):
    monkeypatch.setenv(VARIABLE, "nowhere/p.json")
    assert "no such file or directory" in ht.check("01.cost", RIGHT).note
    assert state() == "not yet"


def test_written_whole_or_not_at_all(file, monkeypatch):
    ht.check("01.cost", WRONG)
    before = file.read_bytes()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    for owner, step in ((os, "replace"), (Path, "write_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, full)
            assert "no space left on device" in ht.check("01.cost", RIGHT).note
        assert file.read_bytes() == before
        assert {path.name for path in file.parent.iterdir()} == {FILE, f".{FILE}.lock"}


def test_a_link_stays_a_link_and_others_entries_stay(file):
    target = file.with_name("elsewhere.json")
    target.write_text('{"exercises": {"99.future": "passed"}}')
    file.symlink_to(target)
    ht.check("01.cost", RIGHT)
    assert file.is_symlink()
    assert read(target) == {"01.cost": "passed", "99.future": "passed"}
    assert "99.future" not in ht.check.summary().states


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_kernels_that_write_at_once_lose_nothing(file):
    names = [f"01.{number}" for number in range(160)]
    with ProcessPoolExecutor(4, mp_context=get_context("fork")) as pool:
        assert list(pool.map(remember, names, ["tried"] * len(names), [file] * len(names))) == [None] * len(names)
    assert sorted(read(file)) == sorted(names)


def test_a_kernel_that_hangs_does_not_hang_the_others(file, monkeypatch):
    real = answered._locked
    monkeypatch.setattr(answered, "_locked", lambda file: real(file, seconds=0.1))
    with real(file):
        result = ht.check("01.cost", RIGHT)
    assert result.passed
    assert "another kernel is still writing it. Run the cell again." in result.note
    assert not ht.check("01.cost", RIGHT).note


# --- the page ---------------------------------------------------------------------------------------------------------


class Table(HTMLParser):
    """The rows of a page's table as lists of texts, its links, and its elements."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.links, self.tags = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def lesson(title):
    return json.dumps({"cells": [{"cell_type": "markdown", "source": [f"# {title}\n", "\n", "> Box"]}]})


def test_the_page_names_and_links_lessons_and_escapes(file):
    Path("00_start here#1.ipynb").write_text(lesson("00 · Is <script>1</script> & a head?"))
    Path("00_start here#1-Copy1.ipynb").write_text(lesson("A copy"))
    Path("01_broken.ipynb").write_text("{")
    ht.check("01.cost", RIGHT), ht.check("00.count", {})
    shown = ht.check.summary()
    table = Table(shown._repr_mimebundle_()["text/html"])
    assert "script" not in table.tags
    assert table.links == ["00_start%20here%231.ipynb", "01_broken.ipynb"]
    assert table.rows[1] == ["00 · Is <script>1</script> & a head?", "✗ 00.count tried, … 00.ablate not yet"]
    assert "✓ 01.cost passed" in table.rows[2][1]
    assert [row[0] for row in table.rows[1:4]] == [table.rows[1][0], "01_broken", "Lesson 02"]
    assert len(table.rows) == 13  # a line for each lesson: it fits a screen
    assert 'title="count the multiplications"' in shown._repr_mimebundle_()["text/html"]
    text = repr(shown)
    assert text.splitlines()[0] == f"1 of {len(all_exercises())} exercises passed, 1 tried."
    assert re.search(r"^    .*✓ 01\.cost passed$", text, re.M)
    assert "00 · Is <script>1</script> & a head?" in text.splitlines()
    assert text == repr(ht.check.summary())


def test_from_the_folder_above_the_lessons(file):
    Path("notebooks").mkdir()
    Path("notebooks", "03_x.ipynb").write_text(lesson("03 · X?"))
    assert summary.summary().lessons["03"] == ("03 · X?", "notebooks/03_x.ipynb")


@pytest.mark.full  # a kernel of its own
def test_in_a_kernel_a_lesson_keeps_its_answers(tmp_path):
    code = [
        "import headtools as ht",
        "ht.check('01.cost', ...)",
        "ht.check('01.cost', lambda T, d, H: T)",
        "ht.check.summary()",
    ]
    nb = new_notebook(cells=[new_code_cell(source) for source in code])
    where = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(nb, timeout=300, startup_timeout=300, kernel_name="python3", resources=where)
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with client.setup_kernel(env=env):
        for place, cell in enumerate(nb.cells):
            client.execute_cell(cell, place)
            assert (tmp_path / FILE).exists() == (place >= 2)
    assert re.search(r"✗ 01\.cost tried", nb.cells[-1].outputs[0]["data"]["text/plain"])
    assert "1 tried" in nb.cells[-1].outputs[0]["data"]["text/html"]
