"""The routes to an environment agree with each other, and `make lab` and `make test` do what the README says."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

CONDA_NAMES = {"torch": "pytorch"}


def project(root: Path) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]


def requirements(root: Path, *extras: str) -> dict[str, Requirement]:
    found = project(root)
    listed = [*found["dependencies"], *(line for extra in extras for line in found["optional-dependencies"][extra])]
    return {canonicalize_name(r.name): r for r in map(Requirement, listed)}


def pins(root: Path) -> dict[str, str]:
    """{name: version} of constraints.txt."""
    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*]+", str(r.specifier)) for r in parsed), "constraints.txt holds exact versions only"
    return {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in parsed}


def conda(root: Path) -> tuple[dict[str, str], dict[str, Requirement]]:
    """The dependencies of environment.yml: {name: version specifier} of conda-forge, and those of pip."""
    content = yaml.safe_load((root / "environment.yml").read_text("utf-8"))
    forge, pip = {}, {}
    for entry in content["dependencies"]:
        if isinstance(entry, dict):
            pip = {canonicalize_name(r.name): r for r in map(Requirement, entry["pip"])}
        else:
            name, specifier = re.fullmatch(r"([\w-]+)(.*)", entry).groups()
            version = specifier.split("=")[1] if re.match(r"=[^=]", specifier) else None
            forge[name] = f"=={version}" if version else specifier
    return forge, pip


# --- versions ---------------------------------------------------------------------------------------------------------


def test_binder_has_the_same_environment(root: Path):
    assert (root / "binder" / "environment.yml").read_bytes() == (root / "environment.yml").read_bytes()


def test_environment_has_every_dependency_of_a_learner(root: Path):
    forge, pip = conda(root)
    for name, wanted in requirements(root, "course").items():
        if name in pip:
            assert pip[name].specifier == wanted.specifier, name
        else:
            assert CONDA_NAMES.get(name, name) in forge, f"{name} is missing in environment.yml"


def test_environment_versions_agree(root: Path):
    forge, pip = conda(root)
    for name, wanted in requirements(root, "course").items():
        if name in pip:
            continue
        given, proven = SpecifierSet(forge[CONDA_NAMES.get(name, name)]), pins(root)[name]
        assert given.contains(proven), f"environment.yml excludes {name} {proven}, which is proven"
        assert given == wanted.specifier or ("==" in str(given) and wanted.specifier.contains(proven)), name


def test_environment_names_python_and_the_cpu_build(root: Path):
    listed = yaml.safe_load((root / "environment.yml").read_text("utf-8"))
    assert "python=3.11" in listed["dependencies"]
    assert any(re.fullmatch(r"pytorch=2\.\d+\.\*=cpu\*", str(entry)) for entry in listed["dependencies"])
    assert "jupyterlab=4.6.*" in listed["dependencies"]
    assert listed["channels"][0] == "conda-forge"


def test_dependencies_come_with_their_reason(root: Path):
    bare = [line for line in (root / "pyproject.toml").read_text("utf-8").splitlines()
            if re.match(r'    "[\w-]+[<>=]', line) and "# " not in line]  # fmt: skip
    assert bare == []


def test_constraints_fit_the_ranges(root: Path):
    proven = pins(root)
    for name, wanted in requirements(root, "course", "test", "site", "scale", "grading").items():
        assert wanted.specifier.contains(proven[name]), f"{name} {proven[name]} does not fit {wanted.specifier}"


def test_constraints_pin_everything_that_gets_installed(root: Path):
    todo, seen = list(requirements(root, "course", "test", "site", "scale", "grading").values()), set()
    while todo:
        wanted = todo.pop()
        for extra in ("", *wanted.extras):
            key = (canonicalize_name(wanted.name), extra)
            if key in seen:
                continue
            seen.add(key)
            try:
                asked = distribution(wanted.name).requires or []
            except PackageNotFoundError:
                continue  # for another system, or not needed to run the tests
            todo += [r for r in map(Requirement, asked) if r.marker is None or r.marker.evaluate({"extra": extra})]
    gpu = re.compile(r"nvidia-|cuda-|triton|torch-|pytorch-triton")  # torch pins these itself, exactly
    missing = {name for name, _ in seen} - set(pins(root))
    assert {name for name in missing if not gpu.match(name)} == set()


# --- make -------------------------------------------------------------------------------------------------------------

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
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
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
    return [line.split("--constraint constraints.txt ")[1] for line in asked if "pip install" in line]


def test_first_run_installs_torch_first_and_the_second_nothing(bench):
    said, asked = bench("make", "-s", "environment")
    assert "status 0" in said
    assert asked[0] == "-m venv .venv"
    assert installs(asked) == ["torch", "setuptools", "--no-build-isolation --editable .[course]"]
    said, asked = bench("make", "-s", "environment")
    assert said == "\nstatus 0"
    assert asked == []


def test_another_torch_index_is_asked_for_torch_alone(bench):
    _, asked = bench("make", "-s", "environment", "TORCH=cpu")
    assert installs(asked) == [
        "--no-deps --index-url https://download.pytorch.org/whl/cpu torch",
        "setuptools",
        "--no-build-isolation --editable .[course]",
    ]
    assert bench("make", "-s", "environment")[1] == []


def test_tests_have_an_environment_of_their_own(bench):
    _, asked = bench("make", "-s", "environment-test")
    assert asked[0] == "-m venv .venv-test"
    assert installs(asked)[-1] == "--no-build-isolation --editable .[course,test,site,scale,grading]"


def test_grading_has_an_environment_of_its_own_and_learners_do_without(bench, root: Path):
    _, asked = bench("make", "-s", "environment-grading")
    assert asked[0] == "-m venv .venv-grading"
    assert installs(asked)[-1] == "--no-build-isolation --editable .[course,grading]"
    assert "nbgrader" in requirements(root, "grading")
    assert "nbgrader" not in requirements(root, "course")
    assert "nbgrader" not in (root / "environment.yml").read_text("utf-8")
    said, _ = bench("make", "-n", "assignments", "ARGS=--variant 7")
    assert ".venv-grading/bin/python tools/hand_out.py --variant 7" in said


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
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


def test_another_python_makes_the_environment_again(bench):
    bench("make", "-s", "environment")
    other = bench.bin / "python3.12"
    other.write_text(FAKE_PYTHON.format(log=bench.bin.parent / "log").replace("a version", "another"))
    other.chmod(0o755)
    assert bench("make", "-s", "environment", f"PYTHON={other}")[1][0] == "-m venv .venv"
    assert bench("make", "-s", "environment", f"PYTHON={other}")[1] == []
    assert bench("make", "-s", "environment")[1] == []


def test_no_python_that_fits_is_told_with_the_remedy(bench):
    tools = bench.bin.parent / "tools only"
    tools.mkdir()
    for name in ("sh", "make", "cat", "cksum", "tr", "rm"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # as an old Python answers
    (tools / "python3").chmod(0o755)
    said, _ = bench("make", "-s", "environment", path=str(tools))
    assert "No Python from 3.11 to 3.14 found" in said
    assert "make lab PYTHON=" in said
    assert "status 2" in said
    assert not (bench.folder / ".venv").exists()
    said, _ = bench("make", "-s", "environment", "PYTHON=/no/such/python")
    assert "PYTHON=/no/such/python is not a Python 3.11 or newer" in said


def test_the_search_takes_this_python_and_refuses_an_older_one(bench):
    (bench.bin / "python3").unlink()
    (bench.bin / "python3").symlink_to(sys.executable)
    script = (bench.folder / "tools" / "environment.sh").read_text()
    fits = re.search(r"^fits\(\).*$", script, re.M)[0]
    ask = ["sh", "-c", f'{fits}\nfits "$0" "$1"']
    minor = sys.version_info.minor
    assert subprocess.run([*ask, sys.executable, str(minor + 1)], check=False).returncode == 0
    assert subprocess.run([*ask, sys.executable, str(minor)], check=False).returncode != 0


def test_lab_opens_the_first_lesson_with_a_token_and_without_news(bench):
    bench("make", "-s", "environment")
    lab = bench.folder / ".venv" / "bin" / "python"
    lab.write_text('#!/bin/sh\necho "config $JUPYTER_CONFIG_PATH"\nfor word in "$@"; do echo "[$word]"; done\n')
    said, _ = bench("make", "-s", "lab", "LAB_ARGS=--port 9999")
    words = re.findall(r"^\[(.*)\]$", said, re.M)
    words = words[words.index("-m") :]
    assert words[:2] == ["-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={bench.folder}" in words
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in words
    assert words[-2:] == ["--port", "9999"]
    assert "token" not in " ".join(words).lower(), "the token stays on"
    assert f"config {bench.folder}/tools/jupyter" in said
    assert ("--allow-root" in words) == (os.getuid() == 0)
    if sys.platform == "linux":
        assert "--no-browser" in words
        assert "--no-browser" not in bench("make", "-s", "lab", DISPLAY=":0")[0]


def test_make_alone_lists_the_commands(bench):
    said, asked = bench("make")
    listed = re.findall(r"^make ([a-z]+)", said, re.M)
    measuring = ["score", "pruning", "growth", "sweep", "scratch", "orders", "latency", "merging", "worth"]
    pages = ["notebooks", "assignments", "site", "measure", "mutate", "sbom", "lock"]
    assert listed == ["help", "lab", "test", "lint", "bench", "organism", *measuring, *pages, "clean"]
    assert asked == []


def test_make_test_runs_lint_units_doctests_and_notebooks(bench):
    said, _ = bench("make", "-n", "test")
    assert ".venv-test course,test" in said
    assert "-m ruff check ." in said
    assert "pytest -n 2 --dist loadfile --no-loadscope-reorder --nbval --nbval-current-env" in said
    assert "tests headtools notebooks tools" in said
