"""A lesson in a real JupyterLab; the others are in test_lessons_weekly.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from lesson_in_lab import lesson_test

pytestmark = pytest.mark.full
test_lesson = lesson_test("03")
