"""`make lab` and `make test` do what the README says, first and again, here and where something is missing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LOCKS = ("requirements.lock", "requirements-course.lock")
FAKE_PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
if [ "$1" = "-c" ]; then echo "a version"; fi
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
"""


@pytest.fixture
def bench(root: Path, tmp_path: Path):
    """A copy of what `make` reads, in a folder with a space, and a Python that only writes down what it is asked."""
    folder = tmp_path / "a folder"
    shutil.copytree(root / "tools", folder / "tools")
    for name in ("Makefile", "pyproject.toml", "constraints.txt", *LOCKS):
        shutil.copy(root / name, folder / name)
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3"
    fake.write_text(FAKE_PYTHON.format(log=tmp_path / "log"))
    fake.chmod(0o755)

    def run(*command: str, path: str = f"{tmp_path / 'bin'}:/usr/bin:/bin", **env: str) -> tuple[str, list[str]]:
        (tmp_path / "log").write_text("")
        env = {"PATH": path, "HOME": str(tmp_path), **env}  # nothing of the tester's own: no DISPLAY, no MAKEFLAGS
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
        asked = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("-c")]
        return f"{done.stdout}{done.stderr}\nstatus {done.returncode}", asked

    run.folder, run.bin = folder, tmp_path / "bin"
    return run


def installs(asked: list[str]) -> list[str]:
    return [line.split("pip install ")[1] for line in asked if "pip install" in line]


FROM_LOCK = "--quiet --require-hashes --no-deps --only-binary=:all: --requirement"
OURS = "--quiet --no-deps --no-build-isolation --editable ."


def test_first_run_installs_the_lock_and_the_second_nothing(bench):
    output, asked = bench("make", "-s", "environment")
    assert "status 0" in output
    assert asked[0] == "-m venv .venv"
    torch = "--constraint constraints.txt torch"
    assert installs(asked) == [f"{FROM_LOCK} requirements-course.lock", torch, OURS]
    output, asked = bench("make", "-s", "environment")
    assert output == "\nstatus 0"
    assert asked == []


def test_a_file_that_does_not_install_is_told_with_the_remedy(bench):
    bench("make", "-s", "environment")
    failing = FAKE_PYTHON.format(log=bench.bin.parent / "log") + 'case "$*" in *--require-hashes*) exit 1;; esac\n'
    (bench.folder / ".venv" / "bin" / "python").write_text(failing)
    (bench.folder / "requirements-course.lock").write_text("# changed\n")
    output, asked = bench("make", "-s", "environment")
    assert "status 2" in output
    assert "The lock has files for Python 3.11 to 3.14" in output
    assert len(installs(asked)) == 1, "nothing is installed after a file that was refused"


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "requirements-course.lock"])
def test_changed_versions_are_installed(bench, name: str):
    bench("make", "-s", "environment")
    with (bench.folder / name).open("a") as file:
        file.write("# changed\n")
    _, asked = bench("make", "-s", "environment")
    assert len(installs(asked)) == 3
    assert "-m venv .venv" not in asked


def test_an_interrupted_or_broken_installation_is_made_again(bench):
    bench("make", "-s", "environment")
    (bench.folder / ".venv" / "bin" / "python").unlink()
    _, asked = bench("make", "-s", "environment")
    assert asked[0] == "-m venv .venv"
    failing = FAKE_PYTHON.format(log=bench.bin.parent / "log") + 'case "$*" in *editable*) exit 1;; esac\n'
    (bench.folder / ".venv" / "bin" / "python").write_text(failing)
    (bench.folder / "constraints.txt").write_text("torch==1\n")
    assert "status 2" in bench("make", "-s", "environment")[0]
    assert len(installs(bench("make", "-s", "environment")[1])) == 3, "a failed installation must not count as done"


def test_no_python_that_fits_is_told_with_the_remedy(bench):
    tools = bench.bin.parent / "tools only"
    tools.mkdir()
    for name in ("sh", "make", "cat", "cksum", "tr", "rm"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # as an old Python answers
    (tools / "python3").chmod(0o755)
    output, _ = bench("make", "-s", "environment", path=str(tools))
    assert "No Python from 3.11 to 3.14 found" in output
    assert "make lab PYTHON=" in output
    assert "status 2" in output
    assert not (bench.folder / ".venv").exists()
    output, _ = bench("make", "-s", "environment", "PYTHON=/no/such/python")
    assert "PYTHON=/no/such/python is not a Python 3.11 or newer" in output


def test_lab_opens_the_first_lesson_with_a_token_and_without_news(bench):
    bench("make", "-s", "environment")
    lab = bench.folder / ".venv" / "bin" / "python"
    lab.write_text('#!/bin/sh\necho "config $JUPYTER_CONFIG_PATH"\nfor word in "$@"; do echo "[$word]"; done\n')
    output, _ = bench("make", "-s", "lab", "LAB_ARGS=--port 9999")
    words = re.findall(r"^\[(.*)\]$", output, re.M)
    words = words[words.index("-m") :]
    assert words[:2] == ["-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={bench.folder}" in words
    assert "--LabApp.default_url=/lab/tree/my-lessons/00_start_here.ipynb" in words
    assert words[-2:] == ["--port", "9999"]
    assert "token" not in " ".join(words).lower(), "the token stays on"
    assert f"config {bench.folder}/tools/jupyter" in output
    assert ("--allow-root" in words) == (os.getuid() == 0)
    if sys.platform == "linux":
        assert "--no-browser" in words
        assert "--no-browser" not in bench("make", "-s", "lab", DISPLAY=":0")[0]


def test_make_alone_lists_the_commands(bench):
    output, asked = bench("make")
    listed = re.findall(r"^make ([a-z-]+)", output, re.M)
    pages = ["notebooks", "assignments", "cards", "site", "live", "picture", "measure", "sbom", "lock"]
    first = ["help", "lab", "test", "test-all", "check", "lint", "bench", "organism", "results"]
    assert listed == [*first, *pages, "clean"]
    assert asked == []
