"""The workflows run what the repository has: their commands are those of the README."""

import re
import subprocess

import pytest
import yaml

NAMES = ("test", "weekly", "site", "release")


@pytest.fixture(params=NAMES)
def workflow(root, request):
    return yaml.safe_load((root / ".github" / "workflows" / f"{request.param}.yml").read_text("utf-8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_each_has_least_rights_and_an_end(workflow):
    assert workflow["permissions"]["contents"] == "read"
    assert all(job["timeout-minutes"] <= 90 for job in workflow["jobs"].values())


def test_actions_are_pinned_by_digest_with_their_version(root):
    """A tag can be moved to other code, a digest cannot; dependabot reads the version behind it."""
    for path in (root / ".github" / "workflows").glob("*.yml"):
        lines = [line for line in path.read_text("utf-8").splitlines() if "uses:" in line]
        assert lines
        for line in lines:
            assert re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_commands_are_there(root, workflow):
    makefile = (root / "Makefile").read_text("utf-8")
    commands = " ".join(step.get("run", "") for step in steps(workflow))
    for target in re.findall(r"\bmake (\w+)", commands):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for file in re.findall(r"(?:^|\s)(\.ci/\w+|tools/\w+\.sh|tests/\w+\.py)", commands):
        assert (root / file).is_file(), file


def test_an_issue_is_opened_only_by_a_failure(root):
    weekly = yaml.safe_load((root / ".github" / "workflows" / "weekly.yml").read_text("utf-8"))
    opens = [step for step in steps(weekly) if "gh issue create" in step.get("run", "")]
    assert [step["if"] for step in opens] == ["failure()"] * len(weekly["jobs"])
    assert weekly["permissions"]["issues"] == "write"


def test_other_systems_run_the_rooms(root):
    """Windows and macOS install the files of the lock and run what is there; their one thread is set as everywhere."""
    job = yaml.safe_load((root / ".github/workflows/test.yml").read_text("utf-8"))["jobs"]["systems"]
    assert job["strategy"]["matrix"]["os"] == ["windows-latest", "macos-latest"]
    assert job["strategy"]["fail-fast"] is False
    assert job["env"]["OMP_NUM_THREADS"] == "1"
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert all(step.get("shell") == "bash" for step in job["steps"] if "\n" in step.get("run", "").strip())
    assert "--require-hashes --no-deps --only-binary=:all: -r requirements.lock" in commands
    for place in re.findall(r"\b(?:tests/\S+|headtools)\b", commands.split("pytest")[1]):
        assert (root / place).exists(), place


def test_lowest_and_highest_versions_are_tried_each_week(root):
    """And a Python that is not the one the versions were proven with."""
    job = yaml.safe_load((root / ".github/workflows/weekly.yml").read_text("utf-8"))["jobs"]["versions"]
    rows = job["strategy"]["matrix"]["include"]
    assert {(row["resolution"], row["python"]) for row in rows} == {
        ("lowest-direct", "3.11"),
        ("highest", "3.11"),
        ("highest", "3.13"),
    }
    for row in rows:
        for place in re.findall(r"tests/\S+", row.get("without", "")):
            assert (root / place).exists(), place
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert all(f"matrix.{name} " in commands for name in rows[0])
    python = next(step["with"]["python-version"] for step in job["steps"] if "python" in step.get("uses", ""))
    assert python == "${{ matrix.python }}"


def test_known_holes_are_looked_for_each_week(root):
    job = yaml.safe_load((root / ".github/workflows/weekly.yml").read_text("utf-8"))["jobs"]["audit"]
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert "pip_audit --strict --requirement constraints.txt --no-deps --disable-pip" in commands


def test_the_size_of_binders_image_is_printed(root, tmp_path):
    job = yaml.safe_load((root / ".github/workflows/weekly.yml").read_text("utf-8"))["jobs"]["binder"]
    build, size = (step["run"] for step in job["steps"] if "binder" in step.get("run", "") and "if" not in step)
    assert "repo2docker --no-run --image-name headtools-binder ." in build
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\n[ "$*" = "image inspect headtools-binder --format {{.Size}}" ] && echo 3456789012\n')
    docker.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", size], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == (tmp_path / "summary").read_text() == "Binder image: 3.46 GB\n"


def test_measures_are_compared_with_their_definitions_each_week(root):
    job = yaml.safe_load((root / ".github/workflows/weekly.yml").read_text("utf-8"))["jobs"]["differential"]
    commands = " ".join(step.get("run", "") for step in job["steps"])
    assert "-m tests.differential --count 20000 --seconds 3600" in commands
    assert (root / "tests/differential/__main__.py").is_file()
