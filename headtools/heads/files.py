"""Tensors on disk, with what they are beside them: one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from headtools.heads.digest import digest
from headtools.heads.whole import written_bytes

SUFFIX = ".safetensors"
DIGEST = "digest"  # the entry of a JSON file that names the content of all others


def write_whole(path: str | Path, tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> Path:
    """Write tensors by name, with whatever JSON can hold beside them, to one file, whole or not at all.

    A digest of it all goes along, by which ``read_whole`` knows a changed file. Raises ``ValueError`` for a path that
    does not end in .safetensors, and ``TypeError`` for what JSON cannot hold.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"the name must end in {SUFFIX}, got {path.name!r}: write path='{path.stem}{SUFFIX}'")
    told = json.dumps(told)  # ASCII, so that no name of any kind can trouble the header
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    data = save(plain, {"told": told, "digest": digest(told, plain)})
    return written_bytes(path, data)


def read_whole(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and what was told beside them, as ``write_whole`` took them.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError`` for one that is truncated, changed, or
    written by something else.
    """
    path = Path(path)
    data = _there(path).read_bytes()  # at once: between two looks another process may put a new file in its place
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _truncated(path, error) from error
    header = _header(path, data)
    if header["digest"] != digest(header["told"], tensors):
        raise ValueError(f"{path} was changed after it was written: its digest does not fit; write it again")
    return tensors, _told(path, header["told"])


def read_told(path: str | Path) -> dict[str, Any]:
    """Return what was told beside the tensors, which stay on the disk: they are not compared with their digest.

    Raises as ``read_whole``, but for a file whose tensors were changed.
    """
    path = Path(path)
    with open(_there(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size  # of what was opened: by now another file may have that name
        start = file.read(8)
        data = start + file.read(min(int.from_bytes(start, "little"), size))
    header = _header(path, data)
    try:
        wrong = len(data) + _size(data) != size
    except (AttributeError, LookupError, TypeError) as error:
        raise _truncated(path, f"{type(error).__name__} in its header") from error
    if wrong:
        raise _truncated(path, "its length does not fit")
    return _told(path, header["told"])


def signed(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to write to a JSON file: all that is told, and its digest, by which ``read_json`` sees a change.

    Raises ``TypeError`` for what JSON cannot hold, and ``ValueError`` for an entry of the digest's name.

    >>> signed({"bleu": 97.6})
    {'bleu': 97.6, 'digest': '73a8db9c...'}
    """
    if DIGEST in told:
        raise ValueError(f"an entry {DIGEST!r} came, and that is the name of the file's own: name it otherwise")
    return {**told, DIGEST: digest(json.dumps(told, sort_keys=True))}


def read_json(path: str | Path, *needed: str, remedy: str = "write it again") -> dict[str, Any]:
    """Return what ``signed`` made ready for a JSON file, without the digest; entries that are ``needed`` are there.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError`` for one that is truncated, changed or
    written by something else; the message ends with ``remedy``.
    """
    path = Path(path)
    try:
        told = json.loads(_there(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or no JSON ({error}): {remedy}") from error
    if not isinstance(told, dict) or DIGEST not in told:
        raise ValueError(f"{path} was not written by headtools: it has no {DIGEST} of what it tells; {remedy}")
    if told.pop(DIGEST) != digest(json.dumps(told, sort_keys=True)):
        raise ValueError(f"{path} was changed after it was written: its {DIGEST} does not fit; {remedy}")
    if lacking := [name for name in needed if name not in told]:
        raise ValueError(f"{path} tells of something else: it has no {lacking[0]!r}; {remedy}")
    return told


def _size(data: bytes) -> int:
    """Return how many bytes of tensors follow, by the first bytes of a safetensors file."""
    described = json.loads(data[8:]).items()
    return max((tensor["data_offsets"][1] for name, tensor in described if name != "__metadata__"), default=0)


def _there(path: Path) -> Path:
    if not path.is_file():
        instead = ", a folder has that name" if path.is_dir() else ""
        raise FileNotFoundError(f"there is no file {path}{instead}: write one with save_scores(scores, path)")
    return path


def _truncated(path: Path, why: object) -> ValueError:
    return ValueError(f"{path} is truncated or no safetensors file ({why}): write it again")


def _header(path: Path, data: bytes) -> dict[str, str]:
    """Return what the first bytes of a file that ``write_whole`` wrote tell beside the tensors."""
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        told = header.get("__metadata__", {})
    except (ValueError, RecursionError, AttributeError) as error:
        raise _truncated(path, error) from error
    if not isinstance(told, dict) or not all(isinstance(told.get(name), str) for name in ("told", "digest")):
        raise ValueError(f"{path} was not written by headtools: its header does not say what its tensors are")
    return told


def _told(path: Path, text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no JSON beside its tensors ({error}): write it again") from error
    if not isinstance(told, dict):
        raise ValueError(f"{path} tells of {type(told).__name__}, a dict is needed: write it again")
    return told
