"""Numbers of a long run, kept batch by batch, so that a run that was stopped goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from headtools.importance.stored import read_whole, write_whole


class Partial:
    """A folder with one file for every finished batch, written whole or not at all; ``run=None`` keeps nothing.

    ``settings`` is all that determines the numbers, as JSON can hold it: texts, numbers, digests. It stands in every
    file, and a folder that holds other settings is refused with a ``ValueError`` that names them, before anything runs.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Partial(folder, {"by": "zero"}).save(3, {"rises": torch.ones(2)})
    ...     sorted(Partial(folder, {"by": "zero"}).kept)
    [3]
    """

    def __init__(self, run: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = None if run is None else Path(run), dict(settings)
        self.kept: dict[int, dict[str, Tensor]] = {}
        if self.folder is None:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"run={str(run)!r} is a file: name a folder, such as run='ablation'")
        for path in sorted(self.folder.glob("batch-*.safetensors")):
            try:
                tensors, told = read_whole(path)
                number, settings = told["batch"], told["settings"]
            except (ValueError, KeyError) as error:
                raise ValueError(f"{path} cannot be used: delete it, and its batch is run again ({error})") from error
            differing = sorted(n for n in settings.keys() | self.settings if settings.get(n) != self.settings.get(n))
            if differing:
                told = ", ".join(_told(name, settings.get(name), self.settings.get(name)) for name in differing)
                raise ValueError(f"{self.folder} holds another run ({told}): use another folder, run='elsewhere'")
            self.kept[number] = tensors

    def save(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the numbers of one batch."""
        self.kept[number] = dict(tensors)
        if self.folder is not None:
            path = self.folder / f"batch-{number:06d}.safetensors"
            write_whole(path, tensors, {"batch": number, "settings": self.settings})


def name_of(function: Callable | None) -> str | None:
    """Return what tells a function from others when its content cannot be read: its module and name."""
    if function is None:
        return None
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def _told(name: str, then: Any, now: Any) -> str:
    if isinstance(then, str) and isinstance(now, str) and len(then) == len(now) == 64:  # digests tell people nothing
        return f"other {name}"
    return f"{name} {then!r}, not {now!r}"
