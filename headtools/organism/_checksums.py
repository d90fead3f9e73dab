"""Checksums of a folder's files, by which a damaged or changed model is refused before it is read."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from headtools._engine.store import write_bytes

ASSETS = Path(__file__).parent / "assets"  # the shipped model and its measured tables
CHECKSUMS = "checksums.json"
REMEDY = (
    "write the folder again (what ships: git checkout, pip install --force-reinstall or make organism), or, where the "
    f"change is your own, delete {CHECKSUMS}"
)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(folder: Path) -> dict[str, str]:
    """Return the checksums that a folder lists for its files, by name; ``ValueError`` where its list is damaged."""
    try:
        sums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        if not isinstance(sums, dict) or not all(isinstance(value, str) for value in sums.values()):
            raise ValueError("no list of names and sums")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / CHECKSUMS} is damaged ({error}); {REMEDY}") from error
    return sums


def verify(folder: Path, file: str, expected: str | None) -> None:
    """Compare a file of a folder with its checksum; ``FileNotFoundError`` or ``ValueError`` where it is another."""
    if not (folder / file).is_file():
        raise FileNotFoundError(f"{folder / file} is missing, though {CHECKSUMS} names it; {REMEDY}")
    if checksum(folder / file) != expected:
        raise ValueError(f"{folder / file} is not the file that {CHECKSUMS} describes (SHA-256 differs); {REMEDY}")


def write_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the list of checksums of some files of a folder into it."""
    sums = {name: checksum(folder / name) for name in names}
    write_bytes(folder / CHECKSUMS, (json.dumps(sums, indent=1) + "\n").encode("utf-8"))
