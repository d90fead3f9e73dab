"""What browser tests share: a page, and JupyterLab over a copy of the course; one of each for a file of tests."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
pytest.register_assert_rewrite("lesson_in_lab")  # so that a failed assertion tells what it compared
import lab  # noqa: E402

REQUIRED = os.environ.get("HEADTOOLS_REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="module")
def page():
    """A page of a browser without a network; where there is no browser, tests are skipped unless it is required."""
    if lab.CHROMIUM is None:
        why = "no chromium, chromium-browser or google-chrome on the PATH"
        pytest.fail(why) if REQUIRED else pytest.skip(why)
    if not REQUIRED:
        pytest.importorskip("playwright")
    with lab.browser() as page:
        yield page


@pytest.fixture(scope="module")
def course(page, root, tmp_path_factory):
    """A copy of the notebooks, as they are stored."""
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(root / "notebooks", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*progress*", ".*"))
    return folder


@pytest.fixture(scope="module")
def server(course):
    """The address of JupyterLab over the copy."""
    with lab.jupyterlab(course) as url:
        yield url
