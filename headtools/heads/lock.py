"""One process at a time: a lock beside a file, which the system gives back even when its holder is killed."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headtools.heads.whole import refusal

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_BUSY = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK}
_OTHER = "another process is still writing it: wait for its end and try again"


@contextmanager
def alone(path: str | Path, seconds: float = 60, busy: str = _OTHER, make: bool = False) -> Iterator[None]:
    """Hold the lock of ``path``, a file or folder that need not be there, as ``.NAME.lock`` beside it.

    Who comes second waits up to ``seconds``; with ``make`` a missing folder is made. The lock is deleted at the end,
    but on Windows, where it may be open elsewhere. A disk that knows no locks gives it to everybody: better without
    than not at all.

    Raises ``TimeoutError`` with ``busy`` where another process does not end, and ``OSError`` where the folder is
    missing or may not be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with alone(Path(folder) / "a.json"):
    ...         [path.name for path in Path(folder).iterdir()]
    ['.a.json.lock']
    """
    path = Path(path).resolve()
    lock = path.with_name(f".{path.name}.lock")
    end = time.monotonic() + seconds
    try:
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        while (held := _taken(lock)) is None:
            if time.monotonic() > end:
                raise TimeoutError(errno.ETIMEDOUT, busy, path.name)
            time.sleep(0.02)
    except TimeoutError:
        raise
    except OSError as error:
        raise refusal(error, path) from error
    with held:
        try:
            yield
        finally:
            if fcntl is not None:  # while it is held, so that nobody loses a lock that he has just taken
                with contextlib.suppress(OSError):
                    lock.unlink()


def _taken(lock: Path) -> IO[bytes] | None:
    """Return the open and locked file, or None where another process has it or has just deleted it."""
    file = open(lock, "ab")  # noqa: SIM115
    try:
        if _locked(file) and (fcntl is None or os.path.samestat(os.fstat(file.fileno()), os.stat(lock))):
            return file
    except FileNotFoundError:
        pass
    file.close()
    return None


def _locked(file: IO[bytes]) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            file.seek(0)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except OSError as error:
        return error.errno not in _BUSY
    return True
