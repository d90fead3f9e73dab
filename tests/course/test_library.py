"""What passes its check becomes a function of the learner's own library: readable, runnable, never lost."""

import ast
import inspect
import linecache
import sys
import types
from pathlib import Path

import pytest
import torch

import headtools as ht
from headtools.course.exercises import all_exercises
from headtools.course.exercises.exercise import Exercise
from headtools.course.library import FILE, HEADER, builds, my_heads, own, peeks, source_of, store

RIGHT = """
import torch
from contextlib import contextmanager
import headtools as ht

OFF = 0

def pick(model, key):
    return ht.sites(model)[key]

@contextmanager
def switch_off(model, heads):
    hooks = []
    for key, numbers in heads.items():
        site = pick(model, key)

        def without(module, args, site=site, numbers=numbers):
            z = site.split(args[0]).clone()        # (B, T, H, W)
            z[:, :, numbers] = OFF
            return (site.join(z),)

        hooks.append(site.out.register_forward_pre_hook(without))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A learner's folder, in which checks are kept."""
    monkeypatch.setenv("HEADTOOLS_PROGRESS", str(tmp_path / "my-progress.json"))
    return tmp_path


def cell(source, **names):
    """Run a cell of a notebook, whose text Python can find; return the notebook's names."""
    place = f"<cell {len(linecache.cache)}>"
    linecache.cache[place] = len(source), None, source.splitlines(True), place
    namespace = {"__name__": "__main__", **names}
    exec(compile(source, place, "exec"), namespace)
    return namespace


def test_what_passes_is_kept_with_what_it_needs_and_used(folder):
    assert my_heads().switch_off.__module__ == "headtools.course.my_heads"
    result = ht.check("00.switch_off", cell(RIGHT)["switch_off"])
    assert (result.passed, result.note) == (True, f"switch_off is in your {FILE}.")
    text = (folder / FILE).read_text()
    assert text.startswith(HEADER)
    assert [ast.unparse(n) for n in ast.parse(text).body[1:4]] == [
        "import headtools as ht",
        "from contextlib import contextmanager",
        "OFF = 0",
    ]  # torch is not used
    assert "# 00.switch_off, checked (" in text
    assert "# (B, T, H, W)" in text
    assert ht.check("00.switch_off", my_heads().switch_off).passed
    assert inspect.unwrap(my_heads().switch_off).__globals__["pick"]
    assert repr(my_heads()).startswith("1 function is yours: switch_off (the lessons build ")
    # the file is a module of its own
    assert _import(folder / FILE).switch_off


def _import(file):
    module = types.ModuleType("own")
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


def test_a_better_version_replaces_it_and_a_hand_edited_one_stays(folder):
    ht.check("00.switch_off", cell(RIGHT)["switch_off"])
    better = RIGHT.replace("without(", "silence(").replace("(without)", "(silence)")
    assert ht.check("00.switch_off", cell(better)["switch_off"]).note == f"switch_off is in your {FILE}."
    text = (folder / FILE).read_text()
    assert "silence" in text
    assert "without" not in text
    assert text.count("def switch_off") == text.count("def pick") == text.count("00.switch_off") == 1
    (folder / FILE).write_text(text.replace("silence(", "mute(").replace("(silence)", "(mute)") + "\n\nMINE = 1\n")
    result = ht.check("00.switch_off", cell(RIGHT)["switch_off"])
    assert result.passed
    assert "edited by hand, and it stays" in result.note
    assert "mute" in (folder / FILE).read_text()
    assert my_heads().switch_off is not None
    assert "MINE = 1" in (folder / FILE).read_text()


def test_a_file_that_does_not_run_is_told_and_left_alone(folder):
    ht.check("00.switch_off", cell(RIGHT)["switch_off"])
    broken = (folder / FILE).read_text() + "\nx = no_such_name\n"
    (folder / FILE).write_text(broken)
    with pytest.warns(UserWarning, match=r"my_heads.py stops in line \d+ with NameError"):
        assert my_heads().switch_off.__module__ == "headtools.course.my_heads"
    (folder / FILE).write_text("def (\n")
    with pytest.warns(UserWarning, match="SyntaxError"):
        assert "0 functions are yours" in repr(my_heads())
    assert "cannot be read, line 1" in ht.check("00.switch_off", cell(RIGHT)["switch_off"]).note
    assert (folder / FILE).read_text() == "def (\n"


def test_a_variable_of_the_notebook_keeps_it_out(folder):
    source = RIGHT.replace("for key,", "print(end=str(model_of_mine)[:0])\n    for key,", 1)
    result = ht.check("00.switch_off", cell(source, model_of_mine=torch.nn.Linear(1, 1))["switch_off"])
    assert result.passed
    assert "uses model_of_mine, Linear of this notebook: make it an argument" in result.note
    assert not (folder / FILE).exists()


def test_a_helper_that_is_a_function_of_the_course_is_checked_itself(folder):
    wrong = "def split_heads(z, n_heads):\n    return z.unflatten(-1, (-1, n_heads))\n"
    two = {
        "01.split": all_exercises()["01.split"],
        "01.after": Exercise("01.after", "", lambda answer: None, builds="after"),
    }
    source = wrong + "def after(z):\n    return split_heads(z, 2)\n"
    with pytest.MonkeyPatch.context() as patch:
        for module in ("library", "check", "summary"):
            patch.setattr(f"headtools.course.{module}.all_exercises", lambda: two)
        note = ht.check("01.after", cell(source)["after"]).note
        assert note == f"It is not in {FILE}, because your split_heads has not passed 01.split: check that one first."
        assert not (folder / FILE).exists()
        right = source.replace("(-1, n_heads)", "(n_heads, -1)).transpose(1, 2")
        assert ht.check("01.after", cell(right)["after"]).note == f"after is in your {FILE}."
        assert "# 01.split, checked (" in (folder / FILE).read_text()


def test_helpers_that_call_each_other_are_kept_both(folder):
    source = RIGHT.replace("return ht.sites", "return other(model, key) if key is None else ht.sites")
    source += "\ndef other(model, key):\n    return pick(model, key)\n"
    assert ht.check("00.switch_off", cell(source)["switch_off"]).note == f"switch_off is in your {FILE}."
    text = (folder / FILE).read_text()
    assert text.count("def pick") == text.count("def other") == 1


def test_an_answer_that_cannot_be_kept_is_still_right(folder, monkeypatch):
    def fails(*_):
        raise RuntimeError("no text")

    monkeypatch.setattr("headtools.course.check.store", fails)
    result = ht.check("00.switch_off", cell(RIGHT)["switch_off"])
    assert (result.passed, result.note) == (True, f"It is not in {FILE}: RuntimeError: no text")


def test_another_name_is_told(folder):
    source = RIGHT.replace("def switch_off", "def off")
    assert "Name it switch_off" in ht.check("00.switch_off", cell(source)["off"]).note


def test_nothing_is_kept_outside_a_notebook(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADTOOLS_PROGRESS", raising=False)
    assert ht.check("00.switch_off", cell(RIGHT)["switch_off"]).note == ""
    assert list(tmp_path.iterdir()) == []


# --- for graders ------------------------------------------------------------------------------------------------------


def test_a_grader_gets_the_learners_own_function(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADTOOLS_PROGRESS", "elsewhere/my-progress.json")  # the grader's own, who is a learner too
    Path(FILE).write_text(RIGHT)
    assert own("switch_off").__wrapped__.__code__.co_filename == FILE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no switch_off in my_heads.py beside this notebook: lesson 00 builds it"),
        ("def pick(): ...", "there is no switch_off in my_heads.py"),
        ("import torch\n1 / 0", "stops in line 2 with ZeroDivisionError"),
        ("def switch_off(", "stops in line 1 with SyntaxError"),
        ("from headtools import gates as switch_off", "imports switch_off, and it is to be written there"),
        (RIGHT.replace("    hooks = []", "    hooks = [ht.gates(model)]"), "ht.gates is right, and it is the one"),
    ],
)
def test_a_grader_is_told_why_there_is_none(tmp_path, monkeypatch, recwarn, text, said):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path(FILE).write_text(text)
    with pytest.raises(LookupError, match=said):
        own("switch_off")


def test_a_library_may_hold_dataclasses(folder):
    """They ask for their module by its name, which is the learner's while it runs and what it was before afterwards."""
    (folder / FILE).write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Sites:\n    width: int\n\n\ndef switch_off():\n    return Sites(8).width\n"
    )
    assert my_heads().switch_off() == 8
    assert "my_heads" not in sys.modules


def test_functions_come_in_the_order_of_the_course(folder, monkeypatch):
    three = {
        name: Exercise(name, "", lambda answer: None, builds=name.partition(".")[2])
        for name in ("01.early", "02.middle", "03.late")
    }
    for module in ("library", "check", "summary"):
        monkeypatch.setattr(f"headtools.course.{module}.all_exercises", lambda: three)
    for name in ("03.late", "01.early", "02.middle"):
        word = name.partition(".")[2]
        assert store(three[name], cell(f"def {word}(x):\n    return x")[word])
    body = ast.parse((folder / FILE).read_text()).body
    assert [node.name for node in body[1:]] == ["early", "middle", "late"]


def test_a_class_and_an_indented_function_are_found():
    names = cell("class A:\n    def f(self):\n        return 1\n\nif True:\n    def g(x):\n        return x\n")
    assert source_of(names["A"]) == "class A:\n    def f(self):\n        return 1"
    assert source_of(names["g"]) == "def g(x):\n    return x"
    static = cell("class B:\n    @staticmethod\n    def h(x):\n        return x\n")["B"]
    assert source_of(static) == "class B:\n    @staticmethod\n    def h(x):\n        return x"
    assert source_of(3) is None
    assert source_of(len) is None


def test_peeking_is_seen_by_any_name():
    one = all_exercises()["00.switch_off"]
    for source in (
        "import headtools\ndef f(m, h):\n    return headtools.ablate(m, h)",
        "from headtools import ablate as off\ndef f(m, h):\n    return off(m, h)",
        "import headtools as ht\nmine = ht.my_heads()\ndef f(m, h):\n    return mine.switch_off(m, h)",
    ):
        assert "about to write" in peeks(one, cell(source)["f"])
    assert peeks(one, cell("def f(m, h):\n    return m.ablate(h)")["f"]) == ""


def test_an_unknown_function_lists_those_there_are():
    with pytest.raises(AttributeError, match="the course builds no 'gradients'; it builds switch_off"):
        _ = my_heads().gradients
    assert "switch_off" in dir(my_heads())


def test_every_function_that_is_built_is_in_the_reference():
    reference = sys.modules[my_heads().switch_off.__module__]
    assert [name for name in builds() if not hasattr(reference, name)] == []
    assert Path(reference.__file__).name == FILE
