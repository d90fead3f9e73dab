"""A progress bar that is removed when the work is done, so that no trace of it stays in a saved notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sized
from contextvars import ContextVar
from typing import Any

_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {remaining} left"
_WIDGET_MIME_TYPE = "application/vnd.jupyter.widget-view+json"


def progress(items: Sized, label: str) -> Iterator[Any]:
    """Iterate over ``items`` with a progress bar, which is removed at the end, also after an error.

    items: what to iterate over, of known length; label: what is being done, for people and for screen readers

    In a notebook, removing the bar also removes everything that the cell has shown so far, so print after the loop.
    Elsewhere tqdm draws the bar. Raises TypeError for items without a length and ValueError for an empty label.

    >>> [letter for letter in progress("abc", "spelling")]
    ['a', 'b', 'c']
    """
    if not isinstance(items, Sized):
        kind = type(items).__name__
        raise TypeError(f"progress needs items with a length, got {kind}: progress(list(items), {label!r})")
    if not label.strip():
        raise ValueError("got an empty label; expected what is being done: progress(items, 'switching heads off')")
    return _each(items, label)


def _each(items: Any, label: str) -> Iterator[Any]:
    with ProgressBar(len(items), label) as bar:
        for item in items:
            yield item
            bar.advance()


class ProgressBar:
    """A bar of ``total`` steps: a widget in a notebook, tqdm elsewhere, nothing where ``show`` is false."""

    def __init__(self, total: int, label: str, show: bool = True) -> None:
        self.total, self.label, self.show = total, label, show
        self.done = 0

    def __enter__(self) -> ProgressBar:
        self._widget = self._tqdm = None
        self._began = time.monotonic()
        if self.show and _has_kernel():
            from IPython.display import display
            from ipywidgets import IntProgress

            style = {"description_width": "initial"}
            self._widget = IntProgress(value=0, max=self.total, description=self.label, style=style)
            bundle = self._widget._repr_mimebundle_()
            # without the plain text beside it: nbval ignores widgets when it compares outputs, but not text
            data = bundle[0] if isinstance(bundle, tuple) else bundle
            display({_WIDGET_MIME_TYPE: data[_WIDGET_MIME_TYPE]}, raw=True)
        elif self.show:
            from tqdm import tqdm

            self._tqdm = tqdm(total=self.total, desc=self.label, leave=False, bar_format=_FORMAT)
        self._outer = _CURRENT.set(self)
        return self

    def advance(self, steps: int = 1) -> None:
        """Move on by some steps."""
        self.done += steps
        if self._widget is not None:
            self._widget.value = self.done
            self._widget.description = f"{self.label}, {self._left()} left"
        if self._tqdm is not None:
            self._tqdm.update(steps)

    def relabel(self, label: str) -> None:
        """Say what is being done now."""
        self.label = label
        if self._widget is not None:
            self._widget.description = label
        if self._tqdm is not None:
            self._tqdm.set_description_str(label)

    def _left(self) -> str:
        """Return the time that the remaining steps take if they take as long as those before."""
        seconds = (time.monotonic() - self._began) * max(self.total - self.done, 0) / max(self.done, 1)
        return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._outer)
        if self._tqdm is not None:
            self._tqdm.close()
        if self._widget is not None:
            from IPython.display import clear_output

            self._widget.close()
            clear_output()


_CURRENT: ContextVar[ProgressBar | None] = ContextVar("headtools_bar", default=None)


def advance(steps: int = 1) -> None:
    """Advance the bar of the running measure from inside it; without a bar, do nothing."""
    bar = _CURRENT.get()
    if bar is not None:
        bar.advance(steps)


def print_encodable(text: str) -> None:
    """Print text, with a question mark for each character that the terminal cannot encode (older Windows consoles).

    >>> print_encodable("the lesser heads")
    the lesser heads
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _has_kernel() -> bool:
    ipython = sys.modules.get("IPython")  # not imported: a script does not need it
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
