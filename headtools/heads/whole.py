"""A file written whole or not at all: whatever stops the writing, what stood there stays as it was."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from uuid import uuid4

__all__ = ["refusal", "written", "written_bytes", "written_folder"]

_STALE = 3600  # seconds; no single file takes that long to write
_READ_ONLY = "the file is read-only"
_PATIENCE = 2.0  # seconds; Windows moves nothing to the place of a file that somebody has open
_OPEN_ELSEWHERE = {5, 32}  # Windows: access denied, sharing violation
_ROOM, _MAY = "make room, or name a place on another disk", "name a folder that you may write to"
_REMEDIES = {
    "ENOSPC": _ROOM, "EDQUOT": _ROOM, "EFBIG": _ROOM, "EACCES": _MAY, "EPERM": _MAY, "EROFS": _MAY,
    "EISDIR": "a folder has that name; name another", "ENAMETOOLONG": "name a shorter one",
    "ENOTDIR": "a file stands where its folder should be; name another folder",
    "EEXIST": "a file stands where its folder should be; name another folder", "ENOENT": "make its folder first",
}  # fmt: skip


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; when the block ends well, that file takes the place of ``path`` at once.

    The folder is made where it is missing, and of a link the file that it leads to is replaced. Two processes may write
    the same file: each writes its own, and the last one stands. A process that is killed leaves a file that ends in
    ``.part``, which nothing reads; who writes the same file an hour later or more deletes it. Raises ``OSError`` for a
    full disk, a file that is read-only or a folder that may not be written, and says that nothing changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written(Path(folder) / "a" / "b.txt") as part:
    ...         _ = part.write_text("all of it")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'all of it'
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    part = _part(path)
    with _told_and_cleared(part, path):
        if os.path.isfile(path) and not path.stat().st_mode & 0o222:
            raise PermissionError(errno.EACCES, _READ_ONLY)  # putting another in its place would not ask
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "")  # Windows would say that it may not be written
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        _keep(part)
        _move(part, path)


@contextmanager
def written_folder(path: str | Path) -> Iterator[Path]:
    """Give a new folder beside ``path`` to fill; when the block ends well, it becomes ``path`` at once.

    What a killed process leaves is cleared away as with ``written``. Raises ``FileExistsError`` where something has
    that name already, or gets it meanwhile from another process, and ``OSError`` as ``written``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with written_folder(Path(place) / "new") as part:
    ...         _ = (part / "b.txt").write_text("all of it")
    ...     [path.name for path in Path(place).iterdir()]
    ['new']
    """
    path = Path(path)
    part = _part(path)
    with _told_and_cleared(part, path):
        _refuse_taken(path)
        part.mkdir(parents=True)
        yield part
        for file in part.rglob("*"):
            if file.is_file():
                _keep(file)
        _refuse_taken(path)  # an empty folder would be replaced without a word
        try:
            _move(part, path)
        except OSError:
            _refuse_taken(path)
            raise


def written_bytes(path: str | Path, data: bytes) -> Path:
    """Write bytes to a file, whole or not at all, and return its path; errors as ``written``."""
    with written(path) as part:
        part.write_bytes(data)
    return Path(path)


def refusal(error: Exception, path: Path) -> OSError | None:
    """Return the error that says why ``path`` was not written, what is there now and what to do; None for another.

    Libraries that save say "(os error 28)" in an error of their own.

    >>> print(refusal(RuntimeError("I/O error (os error 28)"), Path("a")).strerror)
    No space left on device; the file was not written, there is nothing of it: make room, or name a place on another ...
    """
    if isinstance(error, FileExistsError) and error.filename == str(path):
        return None  # says all of it by itself
    number = error.errno if isinstance(error, OSError) else None
    if found := re.search(r"\(os error (\d+)\)", str(error)) if os.name == "posix" and number is None else None:
        number = int(found[1])
    if number is None:
        return None
    why = _READ_ONLY if getattr(error, "strerror", None) == _READ_ONLY else os.strerror(number)
    kept = "what was there is as it was" if os.path.lexists(path) else "there is nothing of it"
    remedy = _REMEDIES.get(errno.errorcode.get(number, ""), "mend that and try again")
    remedy = "make it writable, or name another" if why == _READ_ONLY else remedy
    return OSError(number, f"{why}; the file was not written, {kept}: {remedy}", str(path))


@contextmanager
def _told_and_cleared(part: Path, path: Path) -> Iterator[None]:
    """Let an error say why ``path`` was not written and what to do, and leave no part behind."""
    try:
        yield
    except Exception as error:
        said = refusal(error, path)
        if said is None:
            raise
        raise said from error
    finally:
        _clear(part, path)


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid4().hex[:12]}.part")


def _keep(file: Path) -> None:
    """Have the system put a file's bytes on the disk."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())


def _move(part: Path, path: Path) -> None:
    """Move at once; where somebody has the file open and the system minds, wait a little for the end of that."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return os.replace(part, path)
        except OSError as error:
            if getattr(error, "winerror", None) not in _OPEN_ELSEWHERE or time.monotonic() > end:
                raise
        time.sleep(0.02)


def _refuse_taken(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "is there already: name a new folder", str(path))


def _clear(part: Path, path: Path) -> None:
    """Delete what was not moved, and what other processes left an hour ago or more."""
    with contextlib.suppress(OSError):  # of a folder that may not be written there is no more to say
        stale = (p for p in path.parent.glob(f"{escape(path.name)}.*.part") if time.time() - p.stat().st_mtime > _STALE)
        for old in (part, *stale):
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
