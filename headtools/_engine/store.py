"""Files that are written whole or not at all, fingerprints of content, and the finished batches of a long run."""

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

Part = dict[str, Tensor]  # what one batch gave, by name

_REMEDIES = {
    errno.ENOSPC: "make room, or name a place on another disk", errno.EDQUOT: "make room, or name another disk",
    errno.EFBIG: "make room, or name a place on another disk", errno.EACCES: "name a folder that you may write to",
    errno.EPERM: "name a folder that you may write to", errno.EROFS: "name a folder that you may write to",
    errno.EISDIR: "a folder has that name; name another", errno.ENAMETOOLONG: "name a shorter one",
    errno.ENOTDIR: "a file stands where its folder should be; name another folder",
    errno.EEXIST: "a file stands where its folder should be; name another folder",
}  # fmt: skip


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Give a name beside ``path`` to write to; when the block ends well, that file takes the place of ``path`` at once.

    The folder is made where it is missing; of a link, the file that it leads to is replaced. A process that is killed
    leaves a file that ends in ``.part``, which nothing reads. Raises ``OSError`` for a full disk, a file that is
    read-only or a folder that may not be written, and says that nothing changed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_write(Path(folder) / "a" / "b.txt") as part:
    ...         _ = part.write_text("all of it")
    ...     (Path(folder) / "a" / "b.txt").read_text()
    'all of it'
    """
    path = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    part = _tmp_path(path)
    with _explained(path):
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.is_file() and not path.stat().st_mode & 0o222:  # putting another file in its place would not ask
                raise PermissionError(errno.EACCES, "the file is read-only")
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            _flush(part)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Give a new folder beside ``path`` to fill; when the block ends well, it becomes ``path`` at once.

    Raises ``FileExistsError`` where something has that name already, or gets it meanwhile, and ``OSError`` as
    ``atomic_write``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     with atomic_folder(Path(place) / "new") as part:
    ...         _ = (part / "b.txt").write_text("all of it")
    ...     [path.name for path in Path(place).iterdir()]
    ['new']
    """
    path = Path(path)
    part = _tmp_path(path)
    with _explained(path):
        try:
            _check_free(path)
            part.mkdir(parents=True)
            yield part
            for file in part.rglob("*"):
                if file.is_file():
                    _flush(file)
            _check_free(path)  # an empty folder would be replaced without a word
            os.rename(part, path)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write bytes to a file, whole or not at all, and return its path."""
    with atomic_write(path) as part:
        part.write_bytes(data)
    return Path(path)


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any] | None = None) -> Path:
    """Write tensors by name to a safetensors file, with metadata as JSON in its header, whole or not at all."""
    from safetensors.torch import save

    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"got the name {path.name!r}; expected .safetensors: write path='{path.stem}.safetensors'")
    text = json.dumps(metadata or {})  # ASCII, so that no name of any kind can trouble the header
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    return write_bytes(path, save(plain, {"headtools": text, "checksum": fingerprint([text, plain])}))


def read_tensors(path: str | Path) -> tuple[Part, dict[str, Any]]:
    """Return the tensors and the metadata of a file that ``write_tensors`` wrote.

    Raises ``FileNotFoundError`` where there is none, ``ValueError`` for a file that is truncated or something else.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}{', a folder has that name' if path.is_dir() else ''}")
    data = path.read_bytes()  # at once: between two looks another process may put a new file in its place
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        text = header["__metadata__"]["headtools"]
        metadata = json.loads(text)
        if not isinstance(metadata, dict):
            raise TypeError(f"metadata is {type(metadata).__name__}")
        if header["__metadata__"].get("checksum") != fingerprint([text, tensors]):
            raise ValueError("its checksum does not fit: it was changed after it was written")
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
        raise ValueError(f"{path} is truncated or no JSON ({error}): {remedy}") from error
    missing = [name for name in required if not isinstance(content, dict) or name not in content]
    if missing or not isinstance(content, dict):
        raise ValueError(f"{path} holds something else: it has no {(missing or ['dict'])[0]!r}; {remedy}")
    return content


def fingerprint(content: Any) -> str:
    """Return a name for content: the same for the same tensors, numbers and texts, in every process, on any device.

    Of a model: its class, its parameters and the buffers that it saves; hooks are not content. From ``joblib.hash``.
    Raises ``TypeError`` for functions and generators.

    >>> fingerprint({"ids": torch.tensor([1, 2]), "limit": 3}) == fingerprint({"limit": 3, "ids": torch.tensor([1, 2])})
    True
    >>> fingerprint(nn.Linear(2, 2)) == fingerprint(nn.Linear(2, 2))
    False
    """
    import joblib

    return joblib.hash(_plain(content))


def _plain(content: Any) -> Any:
    """Return content as what joblib can hash: arrays, numbers, texts, and lists and dicts of these."""
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
        raise TypeError(f"got a {kind}; expected content that can be compared: give its name as text, or a list")
    return content


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model saves, by name; weights that accelerate has offloaded come from where it keeps them."""
    weights = dict(model.state_dict())
    for name in [name for name, weight in weights.items() if weight.is_meta]:
        owner, _, own = name.rpartition(".")
        hook = getattr(model.get_submodule(owner), "_hf_hook", None)
        maps = [getattr(one, "weights_map", None) for one in getattr(hook, "hooks", [hook])]
        weights[name] = next((one[own] for one in maps if one is not None), None)
        if weights[name] is None:
            raise TypeError(f"{name} has no content: it is on the meta device; load the weights first")
    return weights


def summary(model: nn.Module) -> list:
    """Return what tells a model from another at a glance: names, shapes and first numbers of its tensors."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tuple(tensor.shape), [] if tensor.is_meta else tensor.detach().flatten()[:4].double().tolist())
            for name, tensor in named]  # fmt: skip


class Store:
    """Finished batches of a run, by number: one safetensors file each in a folder that every process can read.

    ``settings`` is all that determines the numbers, as JSON can hold it. A folder of another run is refused. With
    ``folder=None`` nothing is kept.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Store(folder, {"seed": 0}).put(3, {"loss": torch.ones(2)})
    ...     again = Store(folder, {"seed": 0})
    ...     again.finished, again.get(3)["loss"]
    ({3}, tensor([1., 1.]))
    """

    SETTINGS = "run.json"

    def __init__(self, folder: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.finished: set[int] = set()
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"checkpoint={str(folder)!r} is a file: name a folder, such as checkpoint='ablation'")
        settings, file = json.loads(json.dumps(dict(settings))), self.folder / self.SETTINGS
        if file.exists():
            self._refuse_another_run(file, settings)
        else:
            write_bytes(file, json.dumps(settings, indent=1).encode())
        self.finished = {int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")}

    def put(self, number: int, part: Part) -> None:
        """Keep what a batch gave."""
        if self.folder is not None:
            write_tensors(self._file(number), part, {"batch": number})
            self.finished.add(number)

    def get(self, number: int) -> Part:
        """Return what a finished batch gave."""
        if not self._file(number).is_file():
            raise FileNotFoundError(
                f"{self._file(number)} is there for another process and not for this one: name a folder that all "
                "machines see, checkpoint='/shared/...'"
            )
        try:
            part, metadata = read_tensors(self._file(number))
            if metadata.get("batch") != number:
                raise ValueError(f"it is of batch {metadata.get('batch')}")
        except ValueError as error:
            raise ValueError(
                f"{self._file(number)} cannot be used: delete it, and its batch is run again ({error})"
            ) from error
        return part

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _refuse_another_run(self, file: Path, settings: Mapping[str, Any]) -> None:
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            names = sorted(name for name in before.keys() | settings if before.get(name) != settings.get(name))
        except (AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"{file} is damaged ({error}): delete {self.folder}, and the run starts anew") from error
        if names:
            differ = ", ".join(_difference(name, before.get(name), settings.get(name)) for name in names)
            raise ValueError(f"{self.folder} holds another run ({differ}): use another folder, checkpoint='elsewhere'")


def _difference(name: str, before: Any, now: Any) -> str:
    is_hash = isinstance(before, str) and isinstance(now, str) and re.fullmatch("[0-9a-f]{32}", before + "")
    return f"other {name}" if is_hash else f"{name} {before!r}, not {now!r}"


def _tmp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid4().hex[:12]}.part")


def _flush(file: Path) -> None:
    """Have the system put a file's bytes on the disk, so that not even a power failure leaves half of it."""
    with open(file, "rb+") as opened:
        os.fsync(opened.fileno())


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, "is there already: name a new folder", str(path))


def explain_os_error(error: Exception, path: Path) -> OSError | None:
    """Return the error that says why ``path`` was not written, what is there now and what to do; None for another.

    >>> from_rust = RuntimeError("I/O error (os error 28)")  # how safetensors reports a full disk
    >>> print(explain_os_error(from_rust, Path("a")).strerror)
    No space left on device; the file was not written, there is nothing of it: make room, or name a place on another ...
    """
    if isinstance(error, FileExistsError) and error.filename == str(path):
        return None  # says all of it by itself
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (match := re.search(r"\(os error (\d+)\)", str(error))):
        number = int(match[1])
    if number is None:
        return None
    why = getattr(error, "strerror", None) or os.strerror(number)
    kept = "what was there is as it was" if os.path.lexists(path) else "there is nothing of it"
    remedy = _REMEDIES.get(number, "mend that and try again")
    remedy = "make it writable, or name another" if why == "the file is read-only" else remedy
    return OSError(number, f"{why}; the file was not written, {kept}: {remedy}", str(path))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Let a refusal of the system say of which file it is, that nothing changed, and what to do."""
    try:
        yield
    except Exception as error:
        if (explained := explain_os_error(error, path)) is None:
            raise
        raise explained from error
