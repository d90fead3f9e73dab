"""Numbers of a long run, kept batch by batch, so that a run that was stopped goes on where it was.

Several processes may share a folder (``shards.py``): each writes the files of its own batches. A batch's file has its
number, so that none is counted twice, however many processes there were and are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headtools.heads.files import read_told, read_whole, write_whole
from headtools.heads.shards import current


class Partial:
    """A folder with one file for every finished batch, written whole or not at all; ``run=None`` keeps nothing.

    ``settings`` is all that determines the numbers, as JSON can hold it: texts, numbers, digests. It stands in every
    file, and a folder that holds other settings is refused with a ``ValueError`` that names them, before anything runs.
    ``kept`` are the numbers of the batches that were finished when the run began: in every process those that the main
    one sees, which must be files that all of them see.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Partial(folder, {"by": "zero"}).save(3, {"rises": torch.ones(2)})
    ...     again = Partial(folder, {"by": "zero"})
    ...     again.kept, again.read(3)["rises"]
    (frozenset({3}), tensor([1., 1.]))
    """

    def __init__(self, run: str | Path | None, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = None if run is None else Path(run), dict(settings)
        shard = current()
        found = shard.all(lambda: self._finished() if shard.main else frozenset()) if run is not None else [frozenset()]
        self.kept: frozenset[int] = found[0]

    def save(self, number: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep the numbers of one batch."""
        if self.folder is not None:
            write_whole(self._path(number), tensors, {"batch": number, "settings": self.settings})

    def read(self, number: int) -> dict[str, Tensor]:
        """Return the numbers of a batch that is kept.

        Raises ``ValueError`` for a file that was changed, and ``FileNotFoundError`` where another process kept it on a
        disk of its own.
        """
        path = self._path(number)
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is there for the main process and not for process {current().index}: name a folder that all "
                "machines see, run='/shared/...'"
            )
        try:
            return read_whole(path)[0]
        except ValueError as error:
            raise _useless(path, error) from error

    def first(self) -> int | None:
        """Return the first batch that is kept, which ``check`` is for; None where there is none."""
        return min(self.kept, default=None)

    def check(self, number: int, now: Mapping[str, Tensor], what: str) -> None:
        """Compare what a batch that is kept gives when it is run again: hooks and functions have no digest.

        Raises ``ValueError`` where ``now[what]`` is not what was kept, up to rounding.
        """
        then, now = self.read(number)[what], now[what]
        if then.shape != now.shape or not torch.allclose(then, now, rtol=1e-3, atol=1e-4):
            raise ValueError(
                f"{self.folder} holds another run: the {what.replace('|', ' ')} of batch {number} are {_few(then)} "
                f"there and {_few(now)} now. Was a function changed, or a head switched off? Use another folder, "
                "run='elsewhere'"
            )

    def _finished(self) -> frozenset[int]:
        """Return which batches there are, and refuse files of another run."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"run={str(self.folder)!r} is a file: name a folder, such as run='ablation'")
        found = set()
        for path in sorted(self.folder.glob("batch-*.safetensors")):
            try:
                told = read_told(path)
                number, settings = int(told["batch"]), dict(told["settings"])
            except (KeyError, OSError, OverflowError, TypeError, ValueError) as error:
                raise _useless(path, error) from error
            differing = sorted(n for n in settings.keys() | self.settings if settings.get(n) != self.settings.get(n))
            if differing:
                said = ", ".join(_told(name, settings.get(name), self.settings.get(name)) for name in differing)
                raise ValueError(
                    f"{self.folder} holds another run ({said}), as {path} tells: use another folder, run='elsewhere'"
                )
            if path != self._path(number):
                raise ValueError(f"{path} holds batch {number}: give it back its name, {self._path(number).name}")
            found.add(number)
        return frozenset(found)

    def _path(self, number: int) -> Path:
        return self.folder / f"batch-{number:06d}.safetensors"


def name_of(function: Callable | str | None) -> str | None:
    """Return what tells a function from others when its content cannot be read: its module and name; a name itself."""
    if function is None or isinstance(function, str):
        return function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', type(function).__module__)}.{name}"


def _useless(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} cannot be used: delete it, and its batch is run again ({error})")


def _told(name: str, then: Any, now: Any) -> str:
    if isinstance(then, str) and isinstance(now, str) and len(then) == len(now) == 64:  # digests tell people nothing
        return f"other {name}"
    return f"{name} {then!r}, not {now!r}"


def _few(values: Tensor) -> str:
    flat = values.flatten()
    return ", ".join(f"{value:.4g}" for value in flat[:3].tolist()) + (", ..." if len(flat) > 3 else "")
