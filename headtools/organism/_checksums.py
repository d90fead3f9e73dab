"""Checksums of a folder's files, so that a damaged or changed model is refused before it is loaded."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from headtools._engine.store import read_json, write_bytes

ASSETS = Path(__file__).parent / "assets"  # the shipped model and its measured tables
CHECKSUMS = "checksums.json"
_REMEDY = (
    "write the folder again (the shipped one: git checkout, pip install --force-reinstall or make organism), or, where "
    f"the change is your own, delete {CHECKSUMS}"
)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write a list of the checksums of these files into their folder."""
    checksums = {name: checksum(folder / name) for name in names}
    write_bytes(folder / CHECKSUMS, (json.dumps(checksums, indent=1) + "\n").encode("utf-8"))


def verify(folder: Path, *names: str, listed_in: Path | None = None) -> None:
    """Compare files of a folder, by default all that its list names, with the checksums of its list or another's.

    Raises ``FileNotFoundError`` for a missing file or list, ``ValueError`` for a changed file or a damaged list.
    """
    listed = read_json((listed_in or folder) / CHECKSUMS, *names, remedy=_REMEDY)
    for name in names or listed:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder / name} is missing, though {CHECKSUMS} names it; {_REMEDY}")
        if checksum(folder / name) != listed[name]:
            raise ValueError(f"{folder / name} is not the file that {CHECKSUMS} describes (SHA-256 differs); {_REMEDY}")
