"""The loop over batches that every measure runs: a progress bar, and an optional folder of one file a batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm.auto import tqdm

from headtools._engine.store import Part, fingerprint, read_json, read_tensors, write_bytes, write_tensors

Item = TypeVar("Item")


def progress(items: Iterable[Item], label: str) -> Iterable[Item]:
    """Iterate over ``items`` with a progress bar that is gone when the work is done; no bar for an empty ``label``.

    The environment variable ``TQDM_DISABLE=1`` hides all bars.

    >>> [letter for letter in progress("abc", "")]
    ['a', 'b', 'c']
    """
    # tqdm reads the variable itself, but not where it draws a widget in a notebook
    hidden = not label or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    return tqdm(items, desc=label, leave=False, disable=hidden)


def run(
    per_batch: Callable[[Any], Part],
    batches: Iterable[Any],
    *,
    label: str = "",
    checkpoint: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Part]:
    """Yield ``per_batch(batch)``, tensors by name, for every batch in order, one at a time.

    So a measure that only sums needs the memory of one batch, however many there are. ``checkpoint`` names a folder in
    which each batch's tensors become a file as soon as they are computed; the same call later starts from them.
    ``settings``: everything that determines the numbers besides the batches, such as the model. A folder with other
    settings or batches is refused. A function counts by its name, and an open context does not show at all, so the last
    stored batch is measured again and must give the same.

    Raises ``ValueError`` for a folder that holds another run.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for _ in range(2):  # the second time, only the last of the batches is computed again
    ...         print([part["twice"].item() for part in run(lambda n: {"twice": torch.tensor(2 * n)}, [1, 2],
    ...                                                     checkpoint=folder)])
    [2, 4]
    [2, 4]
    """
    if checkpoint is None:
        yield from map(per_batch, progress(batches, label))
        return
    batches, folder = list(batches), Path(checkpoint)
    _claim(folder, {name: _identity(value) for name, value in {**(settings or {}), "batches": batches}.items()})
    files = [folder / f"{index:06d}.safetensors" for index in range(len(batches))]
    last = max((index for index, file in enumerate(files) if file.exists()), default=None)
    if last is not None:
        _check_same(read_tensors(files[last])[0], per_batch(batches[last]), files[last])
    for batch, file in zip(progress(batches, label), files, strict=True):
        if not file.exists():
            write_tensors(file, per_batch(batch))
        yield read_tensors(file)[0]


def _identity(value: Any) -> str:
    """Return what tells one setting from another: a function's name, the fingerprint of everything else."""
    if callable(value) and not isinstance(value, torch.nn.Module):
        return f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    return fingerprint(value)


def _claim(folder: Path, settings: Mapping[str, str]) -> None:
    """Write what determines the numbers into an empty folder, or raise where the folder belongs to another run."""
    file = folder / "run.json"
    if not file.exists():
        write_bytes(file, json.dumps(settings, indent=1).encode())
    stored = read_json(file, remedy=f"delete {folder} to start again")
    differ = sorted(name for name in stored.keys() | settings if stored.get(name) != settings.get(name))
    if differ:
        raise ValueError(
            f"{folder} holds another run (other {', '.join(differ)}): use another folder, checkpoint='elsewhere'"
        )


def _check_same(stored: Part, now: Part, file: Path) -> None:
    for name, value in now.items():
        before = stored.get(name)
        same = before is not None and before.shape == value.shape
        if not same or not torch.allclose(before.double(), value.cpu().double(), rtol=1e-3, atol=1e-4, equal_nan=True):
            raise ValueError(
                f"{file.parent} holds another run: {name} in {file.name} is not what it is now. Was a function "
                "changed, or a head switched off? Use another folder, checkpoint='elsewhere'"
            )
