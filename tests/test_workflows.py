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
