"""All lessons in a real JupyterLab, once a week: `make test` runs each of them without a browser."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lesson_in_lab import lesson_test

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"

pytestmark = pytest.mark.weekly
test_lesson = lesson_test(*(path.name[:2] for path in sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))))
