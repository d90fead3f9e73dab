"""The routes to an environment name the same versions: ranges, exact versions, locks, conda."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

LOCKS = {"requirements.lock": ("course", "test", "site", "scale", "grading"), "requirements-course.lock": ("course",)}
# Not in a lock: torch, whose source differs from machine to machine, and the GPU packages that it pins itself.
BESIDE = re.compile(r"torch$|nvidia-|cuda-|triton|torch-|pytorch-triton")
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


def locked(root: Path, lock: str) -> dict[str, tuple[Requirement, list[str]]]:
    """{name: (version and marker, its files' SHA-256)} of a lock; every line must be of that form."""
    lines = (root / lock).read_text("utf-8").replace("\\\n", "").splitlines()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[^\s*]+ (; [^#]+ )?( +--hash=sha256:[0-9a-f]{64})+", line), line[:200]
            need = Requirement(line.split(" --hash")[0])
            assert need.name not in found, f"{need.name} stands twice in {lock}"
            found[need.name] = need, re.findall(r"[0-9a-f]{64}", line)
    return found


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


def test_dependencies_come_with_their_reason(root: Path):
    bare = [
        line
        for line in (root / "pyproject.toml").read_text("utf-8").splitlines()
        if re.match(r'    "[\w-]+[<>=]', line) and "# " not in line
    ]
    assert bare == []


def test_constraints_fit_the_ranges(root: Path):
    proven = pins(root)
    for name, wanted in requirements(root, "course", "test", "site", "scale", "grading").items():
        assert wanted.specifier.contains(proven[name]), f"{name} {proven[name]} does not fit {wanted.specifier}"


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_everything_that_gets_installed(root: Path, lock: str):
    todo, seen = list(requirements(root, *LOCKS[lock]).values()), set()
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
    missing = {name for name, _ in seen} - locked(root, lock).keys()
    assert {name for name in missing if not BESIDE.match(name)} == set()


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address_and_neither_torch_nor_its_gpu_packages(root: Path, lock: str):
    assert not re.search(r"://|@|^-|file:", (root / lock).read_text("utf-8"), re.M)
    assert [name for name in locked(root, lock) if BESIDE.match(name)] == []
    assert "setuptools" in locked(root, lock), "our own package could not be built"


def test_locks_and_constraints_name_the_same_versions(root: Path):
    everything, course = (locked(root, lock) for lock in LOCKS)
    versions = {name: str(need.specifier)[2:] for name, (need, _) in everything.items()}
    assert versions == {name: pin for name, pin in pins(root).items() if name != "torch"}, "run: make lock"
    for name, (need, files) in course.items():
        assert (need.specifier, files) == (everything[name][0].specifier, everything[name][1]), name


SYSTEMS = [("linux", "Linux", "posix"), ("darwin", "Darwin", "posix"), ("win32", "Windows", "nt")]


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda names: names[1])
def test_what_a_lock_installs_on_a_system_is_pinned_for_it(root: Path, system: tuple[str, str, str], python: str):
    here = dict(zip(("sys_platform", "platform_system", "os_name"), system, strict=True))
    here |= {"python_version": python, "python_full_version": f"{python}.0"}

    def installed(needs: Iterable[Requirement]) -> set[str]:
        return {canonicalize_name(need.name) for need in needs if need.marker is None or need.marker.evaluate(here)}

    lines = (root / "constraints.txt").read_text("utf-8").splitlines()
    pinned = installed(Requirement(line) for line in lines if line and not line.startswith("#"))
    for lock, extras in LOCKS.items():
        found = installed(need for need, _ in locked(root, lock).values())
        assert found - pinned == set(), lock
        assert requirements(root, *extras).keys() - found == {"torch"}, lock


def test_learners_do_without_what_grades_tests_and_publishes(root: Path):
    for name in ("nbgrader", "playwright", "pytest", "sphinx", "uv"):
        assert f"\n{name}==" in (root / "requirements.lock").read_text("utf-8")
        assert f"\n{name}==" not in (root / "requirements-course.lock").read_text("utf-8")
        assert name not in (root / "environment.yml").read_text("utf-8")
