"""Result files: JSON, written atomically; rows that are not measured again are kept."""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

import headtools as ht
from headtools._engine.store import read_json, write_bytes
from headtools.heads.scores import Head
from headtools.organism._checksums import ASSETS

__all__ = ["ASSETS", "head_of", "interval", "name_of", "read", "replace_row", "update", "write"]


def read(file: Path) -> dict:
    """Return the content of a result file, {} where there is none yet."""
    return read_json(file) if file.exists() else {}


def write(results: Mapping, file: Path, row_key: str | None = None) -> None:
    """Write a result file; with ``row_key``, the first key of its rows, compactly with one row per line."""
    if row_key is None:
        text = json.dumps(results, indent=1, ensure_ascii=False)
    else:
        text = json.dumps(results, ensure_ascii=False, separators=(",", ":"))
        text = text.replace(f'{{"{row_key}"', f'\n{{"{row_key}"')
    write_bytes(file, (text + "\n").encode("utf-8"))


def update(file: Path, change: Callable[[dict], dict], row_key: str | None = None) -> dict:
    """Replace the content of a result file by ``change(content)`` and return it, under a file lock."""
    from filelock import FileLock

    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock"), timeout=60):
        results = change(read(file))
        write(results, file, row_key)
    return results


def replace_row(rows: Iterable[dict], row: dict, key: Callable[[dict], object]) -> list[dict]:
    """Return the rows with ``row`` added, or replacing the row with the same key, sorted by key.

    >>> replace_row([{"seed": 3}, {"seed": 1, "bleu": 0}], {"seed": 1, "bleu": 98}, lambda row: row["seed"])
    [{'seed': 1, 'bleu': 98}, {'seed': 3}]
    """
    return sorted([*(other for other in rows if key(other) != key(row)), row], key=key)


def interval(values: Tensor, digits: int = 4) -> list[float]:
    """Return the mean of one number per sentence and the ends of its 95 % interval, rounded."""
    low, high = ht.bootstrap(values)
    return [round(float(x), digits) for x in (values.mean(), low, high)]


def name_of(head: Head) -> str:
    """Return the name of a head: kind, layer and number.

    >>> name_of(("encoder", 5, 1)), head_of("encoder 5.1")
    ('encoder 5.1', ('encoder', 5, 1))
    """
    kind, layer, index = head
    return f"{kind} {layer}.{index}"


def head_of(name: str) -> tuple[str, int, int]:
    """Return the head with this name, the inverse of :func:`name_of`."""
    kind, numbers = name.split()
    layer, index = numbers.split(".")
    return kind, int(layer), int(index)
