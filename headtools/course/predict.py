"""Predictions: asked before a measurement, kept, and shown again beside what was found."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headtools.course.answered import keeping, progress_path, shell, stored, update
from headtools.course.catalogue import entry
from headtools.course.live import show_live
from headtools.course.plain import escape, plain

FILE = "my-predictions.json"
_given: dict[str, str] = {}  # of this kernel
_STYLE = "border-left:4px solid #0072B2;padding:.15em .8em;margin:.3em 0;max-width:48em"


class Question:
    """A question to answer before the measurement; displays as text, with a line to type in where someone can type."""

    def __init__(self, key: str, text: str) -> None:
        self.key, self.text = key, text

    def __repr__(self) -> str:
        return f"Predict: {self.text}"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if not attended():
            display({"text/html": self._html(), "text/plain": plain(self)}, raw=True)
            return
        line, name = _line(self.key), f"headtools-predict-{self.key.replace('.', '-')}"
        advice = "Run this cell to write down your prediction."
        replace = show_live(self._html(), plain(self), line, name, advice, hide=False)

        def note(change: Any) -> None:
            remember(self.key, change["new"], keep=True)  # this runs for the widget, not for a cell
            replace(self._html())

        line.observe(note, "value")

    def _html(self) -> str:
        answer = _answer(self.key)  # stays in the notebook once it is saved
        noted = f'<div role="status">Noted: {escape(answer.rstrip("."))}. Run the next cell.</div>' if answer else ""
        return f'<div style="{_STYLE}"><b>Predict.</b> {escape(self.text)}{noted}</div>'


def predict(key: str, answer: Any = None, /) -> Question:
    """Ask a question of the catalogue before its answer is measured; the figure's caption repeats your prediction.

    key: the entry, such as ``"01.weights"``
    answer: your prediction, where you would rather write it here than into the line below the question

    Predictions are kept in ``my-predictions.json`` beside the lesson and sent nowhere. Raises KeyError for an entry
    that asks nothing.

    >>> predict("01.weights")
    Predict: Which token will receive most of the attention of "it"? Is there a token that attends to nothing at all?
    """
    text = entry(key).get("predict")
    if text is None:
        raise KeyError(f"{key} asks nothing; give its entry in the catalogue a line predict = ...")
    if answer is not None:
        remember(key, str(answer), keep=attended())
    return Question(key, text)


def predicted(key: str) -> str:
    """Return ``You predicted: 10.``, or nothing where nothing was predicted."""
    answer = _answer(key)
    return f"You predicted: {answer.rstrip('.')}." if answer else ""


def remember(key: str, answer: str, keep: bool = False) -> None:
    """Keep a prediction in this kernel and, in a reader's notebook, in ``my-predictions.json``."""
    _given[key] = answer.strip()
    if keep and keeping():
        with suppress(OSError, ValueError):  # a prediction that cannot be kept must not stop a lesson
            update({key: _given[key]}, progress_path().with_name(FILE))


def attended() -> bool:
    """Whether a person's notebook asked for this cell: only those name the cell that they run."""
    kernel = getattr(shell(), "kernel", None)
    return kernel is not None and "cellId" in kernel.get_parent("shell").get("metadata", {})


def _answer(key: str) -> str:
    if key not in _given and attended() and keeping():
        with suppress(OSError, ValueError):
            _given[key] = stored(progress_path().with_name(FILE)).get(key, "")
    return _given.get(key, "")


def _line(key: str) -> Any:
    import ipywidgets as widgets

    wide = widgets.Layout(width="32em", max_width="100%")
    return widgets.Text(
        value=_answer(key),
        description="Your prediction",
        placeholder="then press Enter",
        continuous_update=False,
        layout=wide,
        style={"description_width": "initial"},
    )
