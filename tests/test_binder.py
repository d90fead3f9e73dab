"""Binder accepts the repository, refuses a broken one, and what it runs after the installation works."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPO2DOCKER = [sys.executable, "-m", "repo2docker", "--no-build", "--debug"]
needs_repo2docker = pytest.mark.skipif(find_spec("repo2docker") is None, reason="jupyter-repo2docker is not installed")


def dockerfile(folder: Path) -> subprocess.CompletedProcess:
    """What repo2docker makes of a folder, without Docker."""
    return subprocess.run([*REPO2DOCKER, str(folder)], capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    """The part of the repository that Binder reads first."""
    shutil.copytree(root / "binder", tmp_path / "repo" / "binder")
    for name in ("environment.yml", "pyproject.toml"):
        shutil.copy(root / name, tmp_path / "repo" / name)
    return tmp_path / "repo"


@pytest.mark.full  # runs repo2docker
@needs_repo2docker
def test_binder_accepts_the_repository(root: Path):
    done = dockerfile(root)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-2000:]
    assert "Building conda environment for python=3.11" in output
    assert "binder/environment.yml" in output
    assert "RUN ./binder/postBuild" in output
    assert 'R2D_ENTRYPOINT="${REPO_DIR}/binder/start"' in output


@pytest.mark.full  # runs repo2docker
@needs_repo2docker
@pytest.mark.parametrize("content", ["dependencies: [python=3.11\n", "- just\n- a list\n"], ids=["yaml", "list"])
def test_binder_refuses_a_broken_environment(copy: Path, content: str):
    assert dockerfile(copy).returncode == 0
    (copy / "binder" / "environment.yml").write_text(content)
    assert dockerfile(copy).returncode != 0


def test_scripts_can_be_executed(root: Path):
    for name in ("postBuild", "start"):
        script = root / "binder" / name
        assert os.access(script, os.X_OK), f"chmod +x binder/{name}"
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_post_build_installs_without_dependencies_and_runs_the_canary(root: Path, tmp_path: Path):
    for name in ("pip", "python"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = str(root / "binder" / "postBuild")
    done = subprocess.run([script], cwd=root, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "pip install --no-deps --no-cache-dir --editable .",
        "python tools/canary.py",
    ]


def test_start_copies_the_lessons_and_hands_over_to_the_server_with_our_settings(root: Path, tmp_path: Path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_start.ipynb").write_text('{"cells": []}')
    shutil.copy(root / "tools" / "my_lessons.py", tmp_path / "tools")
    env = {"PATH": os.environ["PATH"], "REPO_DIR": str(tmp_path), "JUPYTER_CONFIG_PATH": "/elsewhere"}
    command = [root / "binder" / "start", "sh", "-c", 'printf "%s|%s" "$JUPYTER_CONFIG_PATH" "$0"', "a b"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"my-lessons/00_start.ipynb\n{tmp_path}/tools/jupyter:/elsewhere|a b"
    assert (tmp_path / "my-lessons" / "00_start.ipynb").exists()
    shutil.rmtree(tmp_path / "tools")  # without the copy the server starts all the same
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "the lessons are in notebooks/" in done.stdout
    assert done.stdout.endswith("|a b")


def test_settings_switch_the_news_off(root: Path, monkeypatch: pytest.MonkeyPatch):
    from jupyterlab_server.config import get_page_config

    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(root / "tools" / "jupyter"))
    page = get_page_config([])
    assert "@jupyterlab/apputils-extension:announcements" in page["disabledExtensions"]
    server = json.loads((root / "tools" / "jupyter" / "jupyter_lab_config.json").read_text())
    assert server["LabApp"] == {"news_url": None, "check_for_updates_class": "jupyterlab.NeverCheckForUpdate"}


def test_canary_sings(root: Path, capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(root / "tools" / "canary.py"), run_name="__main__")
    assert not end.value.code
    assert "works with torch" in capsys.readouterr().out


def test_canary_falls_silent_when_ablate_does_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    from contextlib import nullcontext

    import canary

    import headtools

    monkeypatch.setattr(headtools, "ablate", lambda model, heads: nullcontext(), raising=False)
    assert canary.main() == 1
    assert "ablate() changed nothing" in capsys.readouterr().out
