"""What every test needs: one thread, no network for model files, a drawing backend without a window."""

import os
from pathlib import Path

import pytest

# Before torch is imported: numbers must not depend on how many cores there are, and a test must never download.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["HEADTOOLS_PROGRESS"] = "off"  # solutions are tried in kernels; that is nobody's progress

# The kernels and programs that tests start use this checkout, whatever else is installed.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with whole files that take minutes, so that two workers end at about the same time (see the Makefile)."""
    items.sort(key=lambda item: "browser" not in item.path.parts)
