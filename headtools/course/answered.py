"""Which exercises the reader has tried and passed: one small JSON file beside the lessons, and nothing of the answers.

The file is ``my-progress.json`` in the kernel's working folder, which in JupyterLab is the lesson's. The environment
variable ``HEADTOOLS_PROGRESS`` names another file, or is ``off``.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from headtools._engine.store import explain_os_error, write_bytes

FILE = "my-progress.json"
VARIABLE = "HEADTOOLS_PROGRESS"
STATES = ("tried", "passed")
_ABOUT = "Exercises of the headtools course that were tried and passed. Delete this file to start again."


def progress_path() -> Path | None:
    """Give the file, relative to the working folder unless ``HEADTOOLS_PROGRESS`` says otherwise; None when it is off.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, {VARIABLE: "here.json"}):
    ...     progress_path().name
    'here.json'
    """
    setting = os.environ.get(VARIABLE, "").strip()
    return None if setting.lower() == "off" else Path(setting or FILE)


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
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise _other(file, "it is no text") from None
    try:
        recorded = json.loads(text)["exercises"]
    except (ValueError, RecursionError):
        raise _other(file, "it is no JSON") from None
    except (KeyError, TypeError, IndexError):
        raise _other(file, "it has no part 'exercises'") from None
    if not isinstance(recorded, dict):
        raise _other(file, "its part 'exercises' is no list of names")
    odd = [state for state in recorded.values() if state not in STATES]
    if odd:
        raise _other(file, f"{str(odd[0])[:40]!r} is neither tried nor passed")
    return recorded


def remember(name: str, state: str, file: Path) -> None:
    """Add an exercise's state to the file, whole or not at all; ``passed`` is never taken back to ``tried``.

    Kernels that write at the same time take turns, so none loses what another wrote. Raises as ``read`` does, and
    OSError where nothing can be written or another kernel has not finished within 5 seconds.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "my-progress.json")
    ...     for state in ("tried", "passed", "tried"):
    ...         remember("01.cost", state, file)
    ...     read(file)
    {'01.cost': 'passed'}
    """
    with _locked(file):
        states = read(file)
        if states.get(name) not in (state, "passed"):
            entries = dict(sorted({**states, name: state}.items()))
            text = json.dumps({"about": _ABOUT, "exercises": entries}, indent=1)
            write_bytes(file, f"{text}\n".encode())


def update(new: dict[str, str], file: Path) -> None:
    """Add entries to a JSON file that holds one dict, whole or not at all; kernels take turns.

    Raises OSError where it cannot be written, and ValueError where the file holds something else.
    """
    with _locked(file):
        entries = json.loads(file.read_text("utf-8")) if file.exists() else {}
        write_bytes(file, f"{json.dumps({**entries, **new}, indent=1)}\n".encode())


def forget(file: Path) -> None:
    """Delete the file, whatever is in it. Raises OSError where that is not allowed."""
    if file.exists():
        with _locked(file):
            file.unlink(missing_ok=True)


@contextmanager
def _locked(file: Path, seconds: float = 5) -> Iterator[None]:
    """Hold the lock beside the file, ``.my-progress.json.lock``, which git ignores and JupyterLab does not show."""
    file = file.resolve()  # of two links to one file, there is one lock
    lock = FileLock(file.with_name(f".{file.name}.lock"), timeout=seconds, poll_interval=0.02)
    try:
        file.parent.stat()  # FileLock would make a folder whose name is mistyped
        lock.acquire()
    except Timeout:
        raise TimeoutError(errno.ETIMEDOUT, "another kernel is still writing it", file.name) from None
    except OSError as error:
        raise explain_os_error(error, file) from error
    try:
        yield
    finally:
        lock.release()


def _other(file: Path, why: str) -> ValueError:
    return ValueError(f"{file.name} is not as headtools wrote it ({why}); start a new one with ht.check.reset()")
