"""Lessons 06 and 07 in a real JupyterLab."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from lesson_in_lab import lesson_test

test_lesson = lesson_test("06", "07")
