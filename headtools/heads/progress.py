"""A progress bar that is gone when the work is done, so that nothing of it stays in a saved notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"


def progress(items: Sized, label: str) -> Iterator[Any]:
    """Go through ``items`` and show how far the work has come; the bar vanishes at the end, also after an error.

    items: what to go through, of known length; label: what is being done, for people and for screen readers

    In a notebook everything that the cell has shown so far vanishes with the bar, so print after the loop. Elsewhere
    tqdm draws the bar. Raises TypeError for items without a length and ValueError for an empty label.

    >>> [letter for letter in progress("abc", "spelling")]
    ['a', 'b', 'c']
    """
    if not isinstance(items, Sized):
        kind = type(items).__name__
        raise TypeError(f"progress needs items whose number is known, got {kind}: progress(list(items), {label!r})")
    if not label.strip():
        raise ValueError("say what is being done: progress(items, 'switching heads off')")
    return _in_notebook(items, label) if _has_kernel() else _in_terminal(items, label)


def say(text: str) -> None:
    """Print, with a question mark for what the terminal's letters have no sign for: old ones of Windows have few.

    >>> say("the lesser heads")
    the lesser heads
    """
    letters = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(letters, "replace").decode(letters))


def _in_notebook(items: Any, label: str) -> Iterator[Any]:
    from IPython.display import clear_output, display
    from ipywidgets import IntProgress

    bar = IntProgress(value=0, max=len(items), description=label, style={"description_width": "initial"})
    bundle = bar._repr_mimebundle_()
    # Without the widget's plain text: a comparison of outputs leaves widgets out, but would find the text missing.
    display({VIEW: (bundle[0] if isinstance(bundle, tuple) else bundle)[VIEW]}, raw=True)
    try:
        for item in items:
            yield item
            bar.value += 1
    finally:
        bar.close()
        clear_output()


def _in_terminal(items: Any, label: str) -> Iterator[Any]:
    from tqdm import tqdm

    yield from tqdm(items, desc=label, leave=False)


def _has_kernel() -> bool:
    ipython = sys.modules.get("IPython")  # not imported: who trains from a script needs no IPython
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
