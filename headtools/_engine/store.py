"""Atomic writes, fingerprints of content, and the finished batches of a resumable run.

Requirements:

1. A reader sees a file as it was before a write or after it, never in between, even if the writer is killed: content
   goes to a temporary file in the same folder, is flushed to disk, and ``os.replace`` renames it.
2. Several processes may write into one folder: temporary names are random.
3. What is stored is checked on reading: a safetensors header notices truncation, a checksum notices changed bytes.
4. An error says why nothing was written, that nothing changed, and what to do.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor, nn

Part = dict[str, Tensor]  # the tensors that a measure computed from one batch, by name

_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "free some space, or choose a path on another disk"),
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.EISDIR: "a folder has that name; choose another",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOTDIR: "its folder is a file; choose another folder",
    errno.EEXIST: "its folder is a file; choose another folder",
}


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path to write to; when the block ends without an error, that file replaces ``path`` atomically.

    Missing folders are created; for a link, its target is replaced. A killed process leaves a file that ends in
    ``.part``, which nothing reads. Raises ``OSError`` for a full disk, a read-only file or a folder without permission
    to write, and says that nothing changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a" / "b.txt") as tmp_path:
    ...         _ = tmp_path.write_text("complete")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'complete'
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    tmp_path = _tmp_path(path)
    with _explained(path):
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.is_file() and not path.stat().st_mode & 0o222:  # os.replace would ignore the permission
                raise PermissionError(errno.EACCES, "the file is read-only")
            path.parent.mkdir(parents=True, exist_ok=True)
            yield tmp_path
            _flush(tmp_path)
            os.replace(tmp_path, path)
        finally:
            tmp_path.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder to fill; when the block ends without an error, it is renamed to ``path`` atomically.

    Raises ``FileExistsError`` where ``path`` exists, before or after the block, and ``OSError`` as ``atomic_write``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_folder(Path(folder) / "new") as tmp_path:
    ...         _ = (tmp_path / "b.txt").write_text("complete")
    ...     [path.name for path in Path(folder).iterdir()]
    ['new']
    """
    path = Path(path)
    tmp_path = _tmp_path(path)
    with _explained(path):
        try:
            _check_free(path)
            tmp_path.mkdir(parents=True)
            yield tmp_path
            for file in tmp_path.rglob("*"):
                if file.is_file():
                    _flush(file)
            _check_free(path)  # os.rename would silently replace an empty folder
            os.rename(tmp_path, path)
        finally:
            shutil.rmtree(tmp_path, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write bytes to a file atomically and return its path."""
    with atomic_write(path) as tmp_path:
        tmp_path.write_bytes(data)
    return Path(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> Path:
    """Write tensors by name to a safetensors file atomically, with metadata as JSON in its header."""
    from safetensors.torch import save

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"got the name {path.name!r}; expected .safetensors: write path='{path.stem}.safetensors'")
    text = json.dumps(metadata or {})  # ASCII, so that a name in any script is safe in the header
    contiguous = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return write_bytes(path, save(contiguous, {"headtools": text, "checksum": fingerprint([text, contiguous])}))


def read_tensors(path: str | Path) -> tuple[Part, dict[str, Any]]:
    """Return the tensors and the metadata of a file that ``write_tensors`` wrote.

    Raises ``FileNotFoundError`` where there is none, ``ValueError`` for a truncated file or one of another kind.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}{', a folder has that name' if path.is_dir() else ''}")
    data = path.read_bytes()  # read once: another process may replace the file between two reads
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = header["__metadata__"]["headtools"]
        metadata = json.loads(text)
        if not isinstance(metadata, dict):
            raise TypeError(f"got metadata of type {type(metadata).__name__}; expected dict")
        if header["__metadata__"].get("checksum") != fingerprint([text, tensors]):
            raise ValueError("its checksum differs: it was changed after it was written")
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or was not written by headtools ({error}): write it again") from error
    return tensors, metadata


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
    """Return a hash of tensors, numbers and texts, equal for equal content in every process and on any device.

    A model's content is its class, its parameters and the buffers that it saves; hooks are not included. Computed with
    ``joblib.hash``. Raises ``TypeError`` for functions and generators.

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
        flat = content.detach().cpu().contiguous().flatten()
        return str(content.dtype), tuple(content.shape), flat.view(torch.uint8).numpy()
    if isinstance(content, nn.Module):
        return type(content).__qualname__, {name: _plain(weight) for name, weight in _weights(content).items()}
    if isinstance(content, Mapping):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_plain(value) for value in content]
    if callable(content) or isinstance(content, Iterator):
        kind = type(content).__name__
        raise TypeError(f"got a {kind}; expected content that can be hashed: pass its name as text, or a list")
    return content


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a model, with the weights that accelerate has offloaded."""
    weights = dict(model.state_dict())
    for name in [name for name, weight in weights.items() if weight.is_meta]:
        module_name, _, weight_name = name.rpartition(".")
        hook = getattr(model.get_submodule(module_name), "_hf_hook", None)  # accelerate's
        maps = [getattr(single_hook, "weights_map", None) for single_hook in getattr(hook, "hooks", [hook])]
        weights[name] = next((weights_map[weight_name] for weights_map in maps if weights_map is not None), None)
        if weights[name] is None:
            raise TypeError(f"{name} has no content: it is on the meta device; load the weights first")
    return weights


def summary(model: nn.Module) -> list:
    """Return names, shapes and first numbers of a model's tensors: cheap to compare, and rarely equal by chance."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [
        (name, tuple(tensor.shape), [] if tensor.is_meta else tensor.detach().flatten()[:4].double().tolist())
        for name, tensor in named
    ]


class Store:
    """Finished batches of a run by index, each a safetensors file in a folder that all processes can read.

    ``settings``: everything that determines the numbers, as JSON can hold it; a folder with other settings raises
    ``ValueError``. With ``folder=None`` nothing is stored.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(folder, {"seed": 0}).put(3, {"loss": torch.ones(2)})
    ...     resumed = Store(folder, {"seed": 0})
    ...     resumed.finished, resumed.get(3)["loss"]
    ({3}, tensor([1., 1.]))
    """

    SETTINGS = "run.json"

    def __init__(self, folder: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.finished: set[int] = set()
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint={str(folder)!r} is a file: choose a folder, such as checkpoint='ablation'")
        file = self.folder / self.SETTINGS
        if file.exists():
            stored = read_json(file, remedy=f"delete {self.folder} to start again")
            check_same_settings(self.folder, stored, settings)
        else:
            write_bytes(file, json.dumps(dict(settings), indent=1).encode())
        self.finished = {int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")}

    def put(self, index: int, part: Part) -> None:
        """Store the part of a batch."""
        if self.folder is not None:
            write_tensors(self._file(index), part, {"batch": index})
            self.finished.add(index)

    def get(self, index: int) -> Part:
        """Return the part of a finished batch."""
        if not self._file(index).is_file():
            raise FileNotFoundError(
                f"another process can read {self._file(index)} and this one cannot: choose a folder that all machines "
                "share, checkpoint='/shared/...'"
            )
        try:
            part, metadata = read_tensors(self._file(index))
            if metadata.get("batch") != index:
                raise ValueError(f"it belongs to batch {metadata.get('batch')}")
        except ValueError as error:
            raise ValueError(
                f"{self._file(index)} cannot be used: delete it, and its batch is measured again ({error})"
            ) from error
        return part

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:06d}.safetensors"


def check_same_settings(folder: Path, stored: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` where a folder holds a run whose ``stored`` settings, as JSON has them, are others."""
    settings = json.loads(json.dumps(dict(settings)))  # JSON turns tuples into lists
    names = sorted(name for name in stored.keys() | settings if stored.get(name) != settings.get(name))
    if names:
        differ = ", ".join(_difference(name, stored.get(name), settings.get(name)) for name in names)
        raise ValueError(f"{folder} holds another run ({differ}): use another folder, checkpoint='elsewhere'")


def _difference(name: str, stored: Any, now: Any) -> str:
    is_hash = isinstance(stored, str) and isinstance(now, str) and re.fullmatch("[0-9a-f]{32}", stored)
    return f"other {name}" if is_hash else f"{name} {stored!r}, not {now!r}"


def _tmp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid4().hex[:12]}.part")


def _flush(file: Path) -> None:
    """Flush a file to disk, so that not even a power failure leaves half of it after the rename."""
    with open(file, "rb+") as stream:
        os.fsync(stream.fileno())


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "already exists: choose a new name", str(path))


def explain_os_error(error: Exception, path: Path) -> OSError | None:
    """Return an error that says why ``path`` was not written and what to do; None for an unrelated error.

    >>> from_rust = RuntimeError("I/O error (os error 28)")  # how safetensors reports a full disk
    >>> print(explain_os_error(from_rust, Path("a")).strerror)
    No space left on device; the file was not written, and nothing is there: free some space, or choose a path on ...
    """
    if isinstance(error, FileExistsError) and error.filename == str(path):
        return None  # raised by ``_check_free``, whose message is complete
    code = error.errno if isinstance(error, OSError) else None
    if code is None and (match := re.search(r"\(os error (\d+)\)", str(error))):  # from a library written in Rust
        code = int(match[1])
    if code is None:
        return None
    reason = getattr(error, "strerror", None) or os.strerror(code)
    state = "the old one is unchanged" if os.path.lexists(path) else "nothing is there"
    remedy = _REMEDIES.get(code, "correct that and try again")
    remedy = "make it writable, or choose another" if reason == "the file is read-only" else remedy
    return OSError(code, f"{reason}; the file was not written, and {state}: {remedy}", str(path))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Let an error of the operating system name the file, say that nothing changed, and what to do."""
    try:
        yield
    except Exception as error:
        if (explained := explain_os_error(error, path)) is None:
            raise
        raise explained from error
