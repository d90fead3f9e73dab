"""The tool that puts mistakes into the code: which mistakes, whether each is noticed, and that a run goes on."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("resource", reason="needs processes that fork")

import mutate
from mutants import mutants, mutated
from mutation_tests import Baseline


def changed(source):
    """{(kind, before, after)} of a source."""
    return {(mutant.kind, mutant.before, mutant.after) for mutant in mutants(source)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a <= b", {("comparison", "a <= b", "a < b")}),
        ("x = 0 < b < c", {("comparison", "0 < b < c", "0 <= b < c"), ("comparison", "0 < b < c", "0 < b <= c")}),
        ("x = a is not None", {("comparison", "a is not None", "a is None")}),
        ("x = a not in b", {("comparison", "a not in b", "a in b")}),
        ("x = a - b", {("arithmetic", "a - b", "a + b")}),
        ("x = 'a' + b", {("text", "'a'", "'aX'")}),
        ("x = a and not b", {("and/or", "a and (not b)", "a or not b"), ("sign", "not b", "b")}),
        ("x = f(a, by=1)", {("keyword", "f(a, by=1)", "f(a)"), ("constant", "1", "2")}),
        ("x = True", {("constant", "True", "False")}),
        ("if a:\n    x.b = c", {("negated", "a", "not a"), ("deleted", "x.b = c", "pass")}),
        ("for a in b:\n    break", {("loop", "break", "continue")}),
        ("def f():\n    return a", {("return", "return a", "return None")}),
        ("def f():\n    return None", set()),
        ("raise E('words' + str(1))", {("deleted", "raise E('words' + str(1))", "pass")}),
        ("def f(a: int = 3) -> 'x':\n    '''Says 1 < 2.'''", {("constant", "3", "4")}),
        ("@g(1)\ndef f():\n    pass", set()),
        ("x = f'{a + 1}'", set()),
        ("__all__ = ['a']", set()),
    ],
)  # fmt: skip
def test_which_mistakes_there_are(source, expected):
    found = changed(source)
    assert expected <= found if len(expected) else not found
    numbers = {("constant", "0", "1"), ("constant", "1", "2"), ("constant", "2", "3")}
    assert found - expected <= numbers


def test_each_is_one_change_and_all_can_be_compiled(root):
    source = (root / "headtools/heads/gates.py").read_text("utf-8")
    plain, seen = ast.unparse(ast.parse(source)), set()
    for mutant in mutants(source):
        tree = mutated(source, mutant.number)
        compile(tree, "gates.py", "exec")
        seen.add(ast.unparse(tree))
    assert len(seen) == len(mutants(source))
    assert plain not in seen
    with pytest.raises(IndexError):
        mutated(source, len(seen))


def test_a_smaller_sample_is_the_beginning_of_a_larger_one():
    files = {"a.py": "x = 1 + 2", "b.py": "y = not z and w"}
    assert mutate.sample(files, 2, 7) == mutate.sample(files, 4, 7)[:2]
    assert len(mutate.sample(files, 0, 7)) == 5
    assert len({tuple(m.number for _, m in mutate.sample(files, 0, seed)) for seed in range(5)}) > 1


def test_tests_of_the_line_then_of_the_function_then_of_the_file():
    source = "import a\n\ndef f(x=1):\n    y = 2\n    return y\n\nz = 3\n"
    baseline = Baseline({"slow": 3.0, "quick": 1.0, "other": 2.0}, {"f.py": {4: ["slow", "quick"], 9: ["other"]}})
    by_text = {mutant.before: mutant for mutant in mutants(source)}
    assert baseline.choose("f.py", by_text["2"], 10) == (["quick", "slow"], 4.0)
    assert baseline.choose("f.py", by_text["1"], 10)[0] == ["quick", "slow"]  # the header: whoever calls the function
    assert baseline.choose("f.py", by_text["3"], 10)[0] == ["quick", "other", "slow"]
    read = Baseline(baseline.seconds, {"f.py": baseline.lines["f.py"] | {7: ["other"]}})  # the first to import it
    assert read.choose("f.py", by_text["3"], 10)[0] == ["quick", "other", "slow"]
    assert baseline.choose("f.py", by_text["2"], 2)[0] == ["quick"]
    assert baseline.choose("g.py", by_text["2"], 2)[0] == []
    named = Baseline({"test_f.py::slow": 3.0, "test_g.py::quick": 1.0},
                     {"a/f.py": {4: ["test_g.py::quick", "test_f.py::slow"]}})  # fmt: skip
    assert named.choose("a/f.py", by_text["2"], 10)[0] == ["test_f.py::slow", "test_g.py::quick"]
    named.seconds["test_g.py::quick"] = 0.5
    assert named.choose("a/f.py", by_text["2"], 10)[0] == ["test_g.py::quick", "test_f.py::slow"]


def stop():
    raise RuntimeError("a mistake")


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (lambda: 0, "passed"),
        (lambda: 1, "failed"),
        (stop, "stopped"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "stopped"),
        (lambda: time.sleep(60), "too long"),
    ],
)
def test_what_becomes_of_a_process(work, expected, tmp_path):
    assert mutate.in_child(work, 0.3, tmp_path / "log.txt") == expected


TOY = '''
"""A room of two functions, one of which nobody tests."""


def longer(a, b):
    return len(a) > len(b)


def untested(a):
    return a + 1
'''
TESTS = """
from headtools.toy.thing import longer, untested

def test_longer():
    assert longer("ab", "a") is True
    assert longer("a", "a") is False

def test_calls_only():
    untested(1)
"""


def test_a_room_from_end_to_end(root, tmp_path):
    (tmp_path / "headtools/toy").mkdir(parents=True)
    (tmp_path / "tests/toy").mkdir(parents=True)
    shutil.copytree(root / "tools", tmp_path / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n')
    (tmp_path / "headtools/__init__.py").write_text("")
    (tmp_path / "headtools/toy/__init__.py").write_text("")
    (tmp_path / "headtools/toy/thing.py").write_text(TOY)
    (tmp_path / "tests/toy/test_thing.py").write_text(TESTS)
    command = [sys.executable, "tools/mutate.py", "toy", "--sample", "0", "--json", "found.json"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    first = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert first.returncode == 0, first.stdout + first.stderr
    found = json.loads((tmp_path / "found.json").read_text("utf-8"))["toy"]
    told = {(one["before"], one["after"]) for one in found["unnoticed"]}
    assert told == {("return a + 1", "return None"), ("a + 1", "a - 1"), ("1", "2")}
    assert (found["tested"], found["noticed"], found["score"]) == (5, 2, 0.4)
    again = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1/5" not in again.stdout, "what was tested before is not tested again"
    assert "toy: 2 of 5 noticed, 40.0%" in again.stdout


def test_what_is_told_of_the_last_draw_is_what_was_kept(root):
    """Every mistake that nothing noticed is explained, and CONTRIBUTING tells the numbers of the fresh draws."""
    kept = json.loads((root / "tests/mutation.json").read_text("utf-8"))
    told = " ".join((root / "CONTRIBUTING.md").read_text("utf-8").split())
    for room in ("heads", "importance"):
        fresh = kept[room]["fresh sample"]
        assert len(fresh["unnoticed"]) == fresh["tested"] - fresh["noticed"]
        assert all(one["why"] for one in fresh["unnoticed"])
        assert round(fresh["noticed"] / fresh["tested"], 4) == fresh["score"]
        assert f"`{room}/` {fresh['noticed']} of {fresh['tested']}" in told


def test_another_copy_of_the_package_is_refused(monkeypatch, tmp_path):
    """Its tests would pass whatever the mistake."""
    (tmp_path / "headtools").mkdir()
    (tmp_path / "headtools" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)  # where main() goes; given back at the end
    monkeypatch.setattr(mutate, "ROOT", tmp_path.resolve())
    with pytest.raises(SystemExit, match="the mistakes go into"):
        mutate.main(["heads", "--state", str(tmp_path / "state")])
