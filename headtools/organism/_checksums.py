"""Checksums of a folder's files, so that a damaged or changed model is rejected before it is loaded."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from headtools._engine.store import write_bytes

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


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums listed in a folder, {file name: checksum}; ``ValueError`` where the list is damaged."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        if not isinstance(checksums, dict) or not all(isinstance(value, str) for value in checksums.values()):
            raise ValueError("it is not a list of names and checksums")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CHECKSUMS} is damaged ({error}); {_REMEDY}") from error
    return checksums


def verify(folder: Path, file: str, expected: str | None) -> None:
    """Raise ``FileNotFoundError`` for a missing file, ``ValueError`` for one whose checksum is not ``expected``."""
    if not (folder / file).is_file():
        raise FileNotFoundError(f"{folder / file} is missing, though {CHECKSUMS} names it; {_REMEDY}")
    if checksum(folder / file) != expected:
        raise ValueError(f"{folder / file} is not the file that {CHECKSUMS} describes (SHA-256 differs); {_REMEDY}")


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write a list of the checksums of these files into their folder."""
    checksums = {name: checksum(folder / name) for name in names}
    write_bytes(folder / CHECKSUMS, (json.dumps(checksums, indent=1) + "\n").encode("utf-8"))
