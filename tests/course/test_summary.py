"""The progress page knows what was tried and passed, whatever happens to its file; a check never fails for it."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

import headtools as ht
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
    """A lesson's own exercises, then those of its appendices."""
    found = [*(root / "notebooks").glob("[0-9]*.ipynb"), *(root / "notebooks" / "more").glob("[0-9]*.ipynb")]
    found.sort(key=lambda path: (path.name[:2], path.parent.name == "more", path.name))
    code = "".join(path.read_text("utf-8") for path in found)
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
    "cut off": b'{"exercises": {"01.cost": "pa',
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "another state": b'{"exercises": {"01.cost": "<b>done"}}',
    "too deep": b"[" * 100_000,
}


@pytest.mark.parametrize("content", NO_FILE_OF_OURS.values(), ids=NO_FILE_OF_OURS)
def test_a_file_that_is_something_else_is_told_and_kept(file, content):
    file.write_bytes(content)
    result = ht.check("01.cost", RIGHT)
    assert result.passed
    message = "my-progress.json is not as headtools wrote it; start a new one with ht.check.reset()."
    assert message in repr(result)
    assert message in ht.check.summary().note
    assert file.read_bytes() == content
    ht.check.reset()
    assert not ht.check("01.cost", RIGHT).note
    assert state() == "passed"


def test_a_file_that_cannot_be_written_is_told_without_its_path(file):
    file.mkdir()
    result = ht.check("01.cost", RIGHT)
    assert result.passed
    assert "Set HEADTOOLS_PROGRESS to a file" in result.note
    assert result.note in re.sub(r"<.*?>", "", result._repr_mimebundle_()["text/html"])
    assert str(file.parent) not in result.note + ht.check.summary().note
    assert ht.check.summary().note.startswith("What you have answered is not known. my-progress.json: ")


def test_written_whole_or_not_at_all(file, monkeypatch):
    ht.check("01.cost", WRONG)
    before = file.read_bytes()
    for owner, step in ((os, "replace"), (Path, "write_bytes")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, step, lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            assert "o space left on device" in ht.check("01.cost", RIGHT).note
        assert file.read_bytes() == before
        assert [path.name for path in file.parent.iterdir()] == [FILE]


def test_kernels_that_write_at_once_lose_nothing_for_long(file):
    """What another kernel's file lacks, the kernel that wrote it adds again; what others passed stays passed."""
    remember("01.cost", "passed", file)
    file.write_text('{"exercises": {"99.future": "passed", "01.sum": "passed"}}')  # of a kernel that had read it before
    remember("01.sum", "tried", file)
    remember("01.softmax", "tried", file)
    assert read(file) == {"01.cost": "passed", "01.softmax": "tried", "01.sum": "passed", "99.future": "passed"}
    assert "99.future" not in ht.check.summary().states
    file.unlink()
    remember("01.mask", "tried", file)
    assert read(file) == {"01.mask": "tried"}


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
    sources = [[f"# {title}\n", "\n", "> Box"], "### Exercise 1 · Count # & sum", 'ht.check("00.count", count)']
    return json.dumps({"cells": [{"source": source} for source in sources]})


def test_when_all_is_passed_nothing_is_next(file):
    assert "Next: 00.count, " in ht.check.summary()._repr_mimebundle_()["text/html"]
    for name in all_exercises():
        remember(name, "passed", file)
    assert "That is all of them." in ht.check.summary()._repr_mimebundle_()["text/html"]


def test_the_page_names_and_links_lessons_and_escapes(file):
    Path("00_start here#1.ipynb").write_text(lesson("00 · Is <script>1</script> & a head?"))
    Path("00_start here#1-Copy1.ipynb").write_text(lesson("A copy"))
    Path("01_broken.ipynb").write_text("{")
    ht.check("01.cost", RIGHT), ht.check("00.count", {})
    shown = ht.check.summary()
    table = Table(shown._repr_mimebundle_()["text/html"])
    assert "script" not in table.tags
    exercise = "Exercise-1-%C2%B7-Count-%23-%26-sum"
    assert table.links == [f"00_start%20here%231.ipynb#{exercise}", "00_start%20here%231.ipynb", "01_broken.ipynb"]
    assert table.rows[1] == ["00 · Is <script>1</script> & a head?", "0 of 3", "✗ count ○ switch_off ○ accuracy"]
    assert table.rows[2][1] == f"1 of {sum(name.startswith('01') for name in all_exercises())}"
    assert "✓ cost" in table.rows[2][2]
    assert [row[0] for row in table.rows[1:4]] == [table.rows[1][0], "01_broken", "Lesson 02"]
    assert len(table.rows) == 14  # a line for each lesson: it fits a screen
    assert 'title="count the multiplications: passed"' in shown._repr_mimebundle_()["text/html"]
    text = repr(shown)
    assert text.splitlines()[0] == f"1 of {len(all_exercises())} exercises passed, 1 tried."
    assert re.search(r"^    .*✓ 01\.cost passed\b", text, re.M)
    assert "00 · Is <script>1</script> & a head?" in text.splitlines()
    assert text == repr(ht.check.summary())


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
