"""Which exercises the reader has tried and passed: one small JSON file beside the lessons, and nothing of the answers.

The file is ``my-progress.json`` in the kernel's working folder, which in JupyterLab is the lesson's. The environment
variable ``HEADTOOLS_PROGRESS`` names another file, or is ``off``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from headtools._engine.store import write_bytes

FILE = "my-progress.json"
VARIABLE = "HEADTOOLS_PROGRESS"
STATES = ("tried", "passed")
_ABOUT = "Exercises of the headtools course that were tried and passed. Delete this file to start again."
_written: dict[Path, dict[str, str]] = {}  # what this kernel has written to each file


def progress_path() -> Path | None:
    """Give the file, relative to the working folder unless ``HEADTOOLS_PROGRESS`` says otherwise; None when it is off.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {VARIABLE: "here.json"}):
    ...     progress_path().name
    'here.json'
    """
    setting = os.environ.get(VARIABLE, "").strip()
    here = Path("..", FILE) if Path.cwd().name == "more" else Path(FILE)  # appendices lie below the lessons
    return None if setting.lower() == "off" else Path(setting or here)


def keeping() -> bool:
    """Whether checks are kept: in a notebook's kernel, or anywhere once ``HEADTOOLS_PROGRESS`` names a file.

    A script that calls ``check`` leaves no file behind.
    """
    named = bool(os.environ.get(VARIABLE, "").strip())
    return progress_path() is not None and (named or getattr(shell(), "kernel", None) is not None)


def shell() -> Any:
    """IPython's shell, None outside it; IPython is not imported for this."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def read(file: Path) -> dict[str, str]:
    """Give the state of each exercise in the file, ``tried`` or ``passed``; nothing where there is no file.

    Raises OSError for a file that cannot be read and ValueError for one that is something else.
    """
    if not file.exists():
        return {}
    try:
        recorded = json.loads(file.read_text("utf-8"))["exercises"]
        right = isinstance(recorded, dict) and all(state in STATES for state in recorded.values())
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        right = False
    if not right:
        raise ValueError(f"{file.name} is not as headtools wrote it; start a new one with ht.check.reset()")
    return recorded


def remember(name: str, state: str, file: Path) -> None:
    """Add an exercise's state to the file, whole or not at all; ``passed`` is never taken back to ``tried``.

    Raises as ``read`` does, and OSError where nothing can be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "my-progress.json")
    ...     for state in ("tried", "passed", "tried"):
    ...         remember("01.cost", state, file)
    ...     read(file)
    {'01.cost': 'passed'}
    """
    states = read(file)
    if states.get(name) not in (state, "passed"):
        entries = merged(states, {name: state}, file)
        # what another kernel has passed meanwhile stays passed
        entries = dict(sorted((entries | {n: s for n, s in states.items() if s == "passed"}).items()))
        text = json.dumps({"about": _ABOUT, "exercises": entries}, indent=1)
        write_bytes(file, f"{text}\n".encode())


def update(new: dict[str, str], file: Path) -> None:
    """Add entries to a JSON file that holds one dict, whole or not at all.

    Raises OSError where it cannot be written, and ValueError where the file holds something else.
    """
    write_bytes(file, f"{json.dumps(merged(stored(file), new, file), indent=1)}\n".encode())


def stored(file: Path) -> dict[str, str]:
    """Return the dict that a JSON file holds, an empty one where there is no file.

    Raises OSError where it cannot be read, and ValueError where it holds something else.
    """
    entries = json.loads(file.read_text("utf-8")) if file.exists() else {}
    if not isinstance(entries, dict) or not all(isinstance(entry, str) for entry in entries.values()):
        raise ValueError(f"{file.name} is not as headtools wrote it; delete it, and a new one is begun")
    return entries


def merged(kept: dict[str, str], new: dict[str, str], file: Path) -> dict[str, str]:
    """Return what a file holds with new entries, and with those that this kernel has written to it before.

    So no lock is needed: where two kernels write within the same millisecond, the later file lacks one entry, and the
    kernel that wrote this entry adds it again when it writes next. Where the file was deleted, all begins again.
    """
    own = _written.setdefault(file.resolve(), {})
    if not file.exists():
        own.clear()
    own |= new
    return kept | own


def forget(file: Path) -> None:
    """Delete the file, whatever is in it. Raises OSError where that is not allowed."""
    file.unlink(missing_ok=True)
