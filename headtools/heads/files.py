"""Tensors on disk, with what they are beside them: one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from headtools.heads.digest import digest

SUFFIX = ".safetensors"


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
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read_whole(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and what was told beside them, as ``write_whole`` took them.

    Raises ``FileNotFoundError`` where there is no file, and ``ValueError`` for one that is truncated, changed, or
    written by something else.
    """
    path, tensors = Path(path), {}
    header = _header(path, tensors)
    if header["digest"] != digest(header["told"], tensors):
        raise ValueError(f"{path} was changed after it was written: its digest does not fit; write it again")
    return tensors, _told(path, header["told"])


def read_told(path: str | Path) -> dict[str, Any]:
    """Return what was told beside the tensors, which stay on the disk: they are not compared with their digest.

    Raises as ``read_whole``, but for a file whose tensors were changed.
    """
    return _told(Path(path), _header(Path(path))["told"])


def _header(path: Path, into: dict[str, Tensor] | None = None) -> dict[str, str]:
    """Return the header of a file that ``write_whole`` wrote, and put its tensors into a dict where one is given."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: write one with save_scores(scores, path)")
    try:
        with safe_open(path, "pt") as file:
            header = file.metadata() or {}
            if into is not None:
                into.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error}): write it again") from error
    if not {"told", "digest"} <= header.keys():
        raise ValueError(f"{path} was not written by headtools: its header does not say what its tensors are")
    return header


def _told(path: Path, text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no JSON beside its tensors ({error}): write it again") from error
    if not isinstance(told, dict):
        raise ValueError(f"{path} tells of {type(told).__name__}, a dict is needed: write it again")
    return told
