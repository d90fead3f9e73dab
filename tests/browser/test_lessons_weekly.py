"""All lessons but 03 in a real JupyterLab, once a week: `make test` runs each of them without a browser."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lesson_in_lab import lesson_test

pytestmark = pytest.mark.weekly
test_lesson = lesson_test("00", "01", "02", "04", "05", "06", "07", "08", "09", "10", "11", "12")
