"""What pip installs: the package with its model and tables, without the snapshots, and a way to get them."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from headtools.organism import snapshots
from headtools.organism.load import load

LIMIT = 18_000_000  # bytes; the two organisms are 10 and 5 MB
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    """The wheel as pip builds it, from a copy, so that nothing is written into the repository."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(root / name, folder / name)
    shutil.copytree(root / "headtools", folder / "headtools", ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD, "dist"], cwd=folder, check=True, capture_output=True)
    (built,) = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's content."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed, code, **variables):
    environment = os.environ | {"PYTHONPATH": str(installed), **variables}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=installed, env=environment, capture_output=True, text=True, check=False)


def test_it_is_small_and_has_everything_but_the_snapshots(root, wheel):
    assert wheel.stat().st_size < LIMIT
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in (root / "headtools").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    lacking = {path.relative_to(root).as_posix() for path in files} - names
    assert lacking == {snapshots.path(step).relative_to(root).as_posix() for step in snapshots.STEPS}
    assert all(name.startswith("headtools/") for name in names)


@pytest.mark.full
def test_a_snapshot_is_missing_in_words_until_it_is_in_the_cache(installed, tmp_path):
    code = "import headtools as ht; print(ht.__file__); print(ht.load(step=3000)[0].lm_head.weight.sum().item())"
    cache = {"HEADTOOLS_CACHE": str(tmp_path)}
    without = run(installed, code, **cache)
    assert without.stdout.strip() == str(installed / "headtools" / "__init__.py")
    output = without.stderr.splitlines()[-1]
    assert output.startswith("FileNotFoundError: the snapshot of step 3000 is missing")
    for needed in (str(tmp_path / "snapshots"), f"git clone --depth 1 {snapshots.REPOSITORY}", "HEADTOOLS_CACHE"):
        assert needed in output
    (tmp_path / "snapshots").mkdir()
    copy = Path(shutil.copy(snapshots.path(3000), tmp_path / "snapshots"))
    found = run(installed, code, **cache)
    assert found.stdout.splitlines()[1:] == [str(load(step=3000)[0].lm_head.weight.sum().item())], found.stderr
    data = bytearray(copy.read_bytes())
    data[-1] ^= 1
    copy.write_bytes(data)
    assert "is not the file that checksums.json describes" in run(installed, code, **cache).stderr


def test_every_way_to_the_course_installs_from_a_clone(root):
    """So that learners have the snapshots: the project of lesson 12 uses them."""
    page = (root / "notebooks/installing.md").read_text("utf-8")
    texts = {name: (root / name).read_text("utf-8") for name in ("tools/environment.sh", "binder/postBuild")}
    for title in ("With conda", "Without installing"):
        texts[title] = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    for name, text in texts.items():
        installs = re.findall(r"pip install ([^`\n]*(?:headtools|\s\.)[^`\n]*)", text)
        assert installs, name
        assert all(re.search(r"(^|\s)(-e|--editable) ", line) for line in installs), name
