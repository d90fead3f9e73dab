"""A file written whole or not at all: whatever stops the writing, what stood there stays as it was."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from uuid import uuid4

__all__ = ["written", "written_bytes"]

_STALE = 3600  # seconds; no single file takes that long to write


@contextmanager
def written(path: str | Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; when the block ends well, that file takes the place of ``path`` at once.

    The folder is made where it is missing. Two processes may write the same file: each writes its own, and the last
    one stands. A process that is killed leaves a file that ends in ``.part``, which nothing reads; who writes the same
    file an hour later or more deletes it. Raises ``OSError`` for a full disk or a folder that may not be written, and
    says that nothing changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with written(Path(folder) / "a" / "b.txt") as part:
    ...         _ = part.write_text("all of it")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'all of it'
    """
    path = Path(path)
    part = path.with_name(f"{path.name}.{uuid4().hex[:12]}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.errno is None:
            raise
        kept = "what was there is as it was" if path.exists() else "there is nothing of it"
        said = f"{os.strerror(error.errno)}; the file was not written, {kept}"
        raise OSError(error.errno, said, str(path)) from error
    finally:
        with contextlib.suppress(OSError):  # of a folder that may not be written there is no more to say
            part.unlink(missing_ok=True)
            for stale in path.parent.glob(f"{escape(path.name)}.*.part"):
                if time.time() - stale.stat().st_mtime > _STALE:
                    stale.unlink()


def written_bytes(path: str | Path, data: bytes) -> Path:
    """Write bytes to a file, whole or not at all, and return its path; errors as ``written``."""
    with written(path) as part:
        part.write_bytes(data)
    return Path(path)
