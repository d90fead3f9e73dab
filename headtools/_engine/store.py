"""Files written whole or not at all, safetensors and JSON, never pickle; and fingerprints of their content."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

Part = dict[str, Tensor]  # the tensors that a measure computed from one batch, by name


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends without an error, that file takes the place of ``path``.

    So a reader sees the old file or the new one, never half of one. Missing folders are created; for a link, its target
    is replaced. Raises ``OSError`` where that is impossible, and the old file is unchanged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a" / "b.txt") as temporary:
    ...         _ = temporary.write_text("complete")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'complete'
    """
    path = Path(os.path.realpath(path))
    if path.is_file() and not os.access(path, os.W_OK):  # os.replace would ignore that the file is read-only
        raise PermissionError(f"{path} is read-only: make it writable, or choose another name")
    temporary = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; when the block ends without an error, it is renamed to ``path``.

    Raises ``FileExistsError`` where ``path`` exists, and ``OSError`` where it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_folder(Path(folder) / "new") as temporary:
    ...         _ = (temporary / "b.txt").write_text("complete")
    ...     [path.name for path in Path(folder).iterdir()]
    ['new']
    """
    path = Path(path)
    if os.path.lexists(path):  # os.rename would silently replace an empty folder
        raise FileExistsError(f"{path} already exists: choose a new name")
    temporary = _beside(path)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _beside(path: Path) -> Path:
    """Return a name in the same folder, since only within a file system is a rename all or nothing."""
    return path.with_name(f"{path.name}.{uuid4().hex[:12]}.part")


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write bytes to a file, whole or not at all, and return its path."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> Path:
    """Write tensors by name to a safetensors file, whole or not at all, with metadata as JSON in its header."""
    from safetensors.torch import save

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"got the name {path.name!r}; expected .safetensors: write path='{path.stem}.safetensors'")
    text = json.dumps(metadata or {})  # ASCII, so that a name in any script is safe in the header
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return write_bytes(path, save(contiguous, {"headtools": text, "checksum": fingerprint([text, contiguous])}))


def read_tensors(path: str | Path) -> tuple[Part, dict[str, Any]]:
    """Return the tensors and the metadata of a file that ``write_tensors`` wrote.

    Raises ``FileNotFoundError`` where there is none, ``ValueError`` for a damaged file or one of another kind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}{', a folder has that name' if path.is_dir() else ''}")
    data = path.read_bytes()  # read once: somebody may replace the file between two reads
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        if header["checksum"] != fingerprint([header["headtools"], tensors]):
            raise ValueError("its checksum differs: it was changed after it was written")
        return tensors, dict(json.loads(header["headtools"]))
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or was not written by headtools ({error}): write it again") from error


def read_json(path: str | Path, *required: str, remedy: str = "write it again") -> dict[str, Any]:
    """Return what a JSON file holds, a dict with all ``required`` entries.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError``, which ends with ``remedy``, for one that is
    truncated or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: {remedy}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or not JSON ({error}): {remedy}") from error
    missing = [name for name in required if not isinstance(content, dict) or name not in content]
    if missing or not isinstance(content, dict):
        raise ValueError(f"{path} holds something else: it has no {(missing or ['dict'])[0]!r}; {remedy}")
    return content


def fingerprint(content: Any) -> str:
    """Return a hash of tensors, models, numbers and texts, equal for equal content in every process.

    A model's content is its class, its parameters and the buffers that it saves. Computed with ``joblib.hash``. Raises
    ``TypeError`` for functions and generators, which have no content to compare.

    >>> fingerprint({"ids": torch.tensor([1, 2]), "limit": 3}) == fingerprint({"limit": 3, "ids": torch.tensor([1, 2])})
    True
    >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
    False
    """
    import joblib

    return joblib.hash(_plain(content))


def _plain(content: Any) -> Any:
    """Return content in types that joblib can hash: arrays, numbers, texts, and lists and dicts of these."""
    if isinstance(content, Tensor):
        if content.is_meta:  # offloaded: its content is not at hand, and the first numbers measured with it will tell
            return str(content.dtype), tuple(content.shape), "meta"
        flat = content.detach().cpu().contiguous().flatten()
        return str(content.dtype), tuple(content.shape), flat.view(torch.uint8).numpy()
    if isinstance(content, nn.Module):
        return type(content).__qualname__, _plain(content.state_dict())
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    if callable(content) or isinstance(content, Iterator):
        raise TypeError(
            f"got a {type(content).__name__}; expected content that can be hashed: pass its name, or a list"
        )
    return content
