"""Course, organism, report and command line are guests: shown the door, they leave a core whose tests pass."""

import re
import shutil
import subprocess
import sys

import pytest

CORE = ("_engine", "heads", "roles", "geometry", "importance", "sparse")
GUESTS = ("course", "organism", "_report", "cli.py")
# what a test file of the core says when it needs a guest
NEEDS_A_GUEST = re.compile(
    r'headtools\.(course|organism|_report|cli)|ht\.(load|check|report)\(|"organism2?"|recipes|bench'
)
LISTS = re.compile(r"\b(ht\.__all__|_WHERE)\b")  # ... or that it goes through all public names


def without(root, folder, guests):
    """A copy of the package without some guests."""
    ignored = shutil.ignore_patterns("__pycache__", *guests)
    shutil.copytree(root / "headtools", folder / "headtools", ignore=ignored)
    return folder


# An editable installation finds the checkout's guests even where the copy has none.
ONLY_THE_COPY = "import sys\nsys.meta_path = [f for f in sys.meta_path if 'editable' not in f'{f!r}'.lower()]\n"


def run(folder, *arguments):
    (folder / "sitecustomize.py").write_text(ONLY_THE_COPY, encoding="utf-8")  # Python runs it before all else
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


IMPORT_THE_CORE = f"""
import importlib, pkgutil, headtools
assert headtools.__file__.startswith({{folder!r}}), headtools.__file__
for room in {CORE}:
    package = importlib.import_module("headtools." + room)
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
for name, place in headtools._WHERE.items():
    if place.split(".")[0] in {CORE}:
        getattr(headtools, name)
"""


def test_no_module_of_the_core_misses_a_guest(root, tmp_path):
    folder = without(root, tmp_path, GUESTS)
    done = run(folder, "-c", IMPORT_THE_CORE.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.weekly)])  # files
def test_the_tests_of_the_core_pass_without_guests(root, tmp_path, one_in):
    folder = without(root, tmp_path, GUESTS)
    shutil.copytree(
        root / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "course", "organism")
    )
    shutil.copytree(root / "tools", folder / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", folder)
    chosen = []
    for room in CORE[1:]:
        for path in sorted((root / "tests" / room).glob("test_*.py")):
            text = path.read_text("utf-8")
            if not NEEDS_A_GUEST.search(text) and not LISTS.search(text):
                chosen.append(path.relative_to(root).as_posix())
    assert len(chosen) >= 30, "nearly all tests of the core need a guest"
    options = ["-q", "-p", "no:nbval", "-p", "no:cacheprovider", "-m", "not slow and not full and not weekly"]
    done = run(folder, "-m", "pytest", *options, *chosen[::one_in])
    assert done.returncode == 0, done.stdout[-3000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 500 / one_in, done.stdout[-300:]
