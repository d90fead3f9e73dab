"""What every test needs: one thread, no network for model files, a drawing backend without a window."""

import os
import random
from pathlib import Path

import pytest

# Before torch is imported: numbers must not depend on how many cores there are, and a test must never download.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ["TQDM_DISABLE"] = "1"  # bars are no outputs of a lesson
os.environ["HEADTOOLS_PROGRESS"] = "off"  # solutions are tried in kernels; that is nobody's progress
# No real model is found unless a test asks for the one that is here: lessons print another line where they find one.
os.environ.setdefault("HEADTOOLS_REAL_MODELS", os.environ.get("HEADTOOLS_CACHE", ""))
os.environ["HEADTOOLS_CACHE"] = os.environ["HF_HUB_CACHE"] = str(Path(__file__).parent / "no_real_models")
os.environ["HEADTOOLS_STRICT"] = "1"  # a number of a lesson that is not as its catalogue expects is a failure

# What tests/differential draws from: another seed in each run, the same one in all its processes.
os.environ.setdefault("HEADTOOLS_DIFFERENTIAL_SEED", str(random.randrange(1_000_000)))

# The kernels and programs that tests start use this checkout, whatever else is installed.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def pytest_report_header() -> str:
    """Say at the top of a run how tests/differential can be run again."""
    return f"HEADTOOLS_DIFFERENTIAL_SEED={os.environ['HEADTOOLS_DIFFERENTIAL_SEED']}"


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that take minutes, the browser's and lessons, so that two workers end at about the same time.

    Solutions are tried in the lessons' kernels. Tests of ``slow_tests.txt`` are marked ``slow``: ``make check`` runs
    all others. Appendices, which no lesson needs, are compared weekly.
    """
    if any(item.path.suffix == ".ipynb" for item in items):
        from notebook_solutions import with_solutions  # here, as reading notebooks takes seconds to import

        items[:] = with_solutions(items)
    items.sort(key=lambda item: ("browser" not in item.path.parts, item.path.suffix != ".ipynb"))
    slow = set((ROOT / "tests" / "slow_tests.txt").read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid.split("[")[0] in slow:
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name == "more":
            item.add_marker(pytest.mark.weekly)
