"""Controls over a picture; the picture stays readable where no kernel answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headtools.course.catalogue import entry
from headtools.course.figure import figure_html, png
from headtools.course.live import show_live
from headtools.course.pictures import head_name
from headtools.course.plain import escape

if TYPE_CHECKING:
    from ipywidgets import Widget

    from headtools.course.thumbnails import HeadMenu

HIGHEST = 330  # pixels of a picture: with its caption and a row of controls it takes some 420 and fits a small screen


class Explore:
    """A picture with controls: ``.controls[name].value`` sets one, ``.text``, ``.alt`` and ``.png`` are what is shown.

    ``.error`` is the exception of the last drawing, None when it went well.
    """

    def __init__(self, fn: Callable[..., Any], controls: dict[str, Any], alt: str) -> None:
        import ipywidgets as widgets

        self.fn, self.about = fn, alt
        self.controls = {name: _control(name, given) for name, given in controls.items()}
        self.png, self.text, self.alt, self.error = b"", "", "", None
        self._draw()  # before there is anything to show, an error is the author's and goes through
        # An HTML widget, because ipywidgets' Image has no alt; not an Output widget, because nbval cannot compare that.
        self.view = widgets.HTML(self._figure(), layout=widgets.Layout(flex="1 1 24em", min_width="0"))
        wrap = widgets.Layout(flex_flow="row wrap")
        above = widgets.HBox([*self.controls.values()], layout=wrap)
        beside = [control.maps for control in self.controls.values() if hasattr(control, "maps")]
        self.box = widgets.VBox([above, widgets.HBox([*beside, self.view], layout=wrap)])
        state = repr((getattr(fn, "__qualname__", ""), sorted(self.values.items(), key=str), alt))
        self.id = "headtools-" + hashlib.sha256(state.encode()).hexdigest()[:10]
        for control in self.controls.values():
            control.observe(self._update, "value")

    @property
    def values(self) -> dict[str, Any]:
        """The controls' present values."""
        return {name: control.value for name, control in self.controls.items()}

    def _draw(self) -> None:
        output = self.fn(**self.values)
        if not (isinstance(output, tuple) and len(output) == 2 and isinstance(output[1], str) and output[1].strip()):
            raise TypeError(f"{self.fn!r} must return (matplotlib Figure, text), got {output!r}")
        self.png, self.text = png(output[0]), output[1]
        told = {n: head_name(c.value) if hasattr(c, "maps") else c.value for n, c in self.controls.items()}
        at = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told.items())
        self.alt = f"{self.about} Here: {at}."

    def _update(self, change: Any) -> None:
        try:
            self._draw()
            self.error = None
            self.view.value = self._figure()
        except Exception as error:
            # A traceback would go to a log that the learner does not see.
            self.error = error
            self.text = f"No picture for {self.values}: {type(error).__name__}: {error}"
            self.view.value = (
                f'<div role="alert" style="border-left:4px solid #D55E00;padding:.15em .8em">{escape(self.text)}</div>'
            )

    def _figure(self) -> str:
        caption = f'<span aria-live="polite">{escape(self.text)}</span>'
        return figure_html(self.png, alt=self.alt, caption=caption, highest=HIGHEST)

    def __repr__(self) -> str:
        return self.text

    def _ipython_display_(self) -> None:
        advice = f"Run this cell to bring back the controls: {', '.join(c.description for c in self.controls.values())}"
        show_live(self._figure(), self.text, self.box, self.id, advice)


def explore(fn: Callable[..., Any], key: str | None = None, /, *, alt: str | None = None, **controls: Any) -> Explore:
    """Put controls over a picture that ``fn`` draws.

    fn: called with one keyword argument for each control; returns (matplotlib Figure, text); the text is the caption
    key: the entry of the catalogue whose ``alt`` says what there is to see whatever the setting; the present setting is
        added to it. Without an entry, pass ``alt``
    controls: an ipywidget, or (low, high) or (low, high, step) for a slider, a list (or a dict name -> value) for a
        menu, True or False for a box to tick, a text for a line to type in (read when you press Enter);
        ``explore.heads`` makes a menu of heads with their maps to press

    Where no kernel answers (GitHub, a notebook just opened) the picture of the first setting is shown. An error in
    ``fn`` is raised at first and later shown in place of the picture. Raises ValueError for any other kind of control.

    >>> import matplotlib; matplotlib.use("agg")
    >>> import matplotlib.pyplot as plt
    >>> def square(x):
    ...     fig, ax = plt.subplots()
    ...     ax.plot([0, x * x])
    ...     return fig, f"x * x = {x * x}"
    >>> ui = explore(square, x=(0, 4))
    >>> ui.controls["x"].value = 3
    >>> ui.text
    'x * x = 9'
    """
    if not controls:
        raise ValueError("explore needs at least one control: explore(fn, layer=(0, 5))")
    if alt is None:
        alt = entry(key)["alt"] if key else "A picture drawn anew for each setting of its controls."
    return Explore(fn, controls, alt)


def heads(maps: Mapping[tuple, Any], at: tuple) -> HeadMenu:
    """Make a control for ``explore`` that picks a head: a map of each to press, and a menu; its value is the head.

    maps: {(kind, layer): (head, query, key) or (1, head, query, key)}, or what ``record`` recorded of one sentence
    at: the head to open on, such as ``("encoder", 5, 1)``

    >>> import torch
    >>> control = heads({("encoder", 0): torch.eye(3).expand(2, 3, 3)}, at=("encoder", 0, 1))
    >>> control.value, len(control.options)
    (('encoder', 0, 1), 2)
    """
    from headtools.course.thumbnails import HeadMenu  # ipywidgets is loaded only where there are controls

    return HeadMenu(maps, at)


explore.heads = heads


def _control(name: str, given: Any) -> Widget:
    """The widget for a control given in short."""
    import ipywidgets as widgets

    if isinstance(given, widgets.ValueWidget):
        made = given
        made.description = made.description or name.replace("_", " ")
    else:
        made = _short_hand(name, given, description=name.replace("_", " "))
    if hasattr(made.style, "description_width"):
        made.style.description_width = "initial"  # or a long name is cut
    return made


def _short_hand(name: str, given: Any, **common: Any) -> Widget:
    import ipywidgets as widgets

    if isinstance(given, bool):
        return widgets.Checkbox(value=given, indent=False, **common)
    if isinstance(given, str):
        wide = widgets.Layout(width="32em", max_width="100%")
        return widgets.Text(value=given, continuous_update=False, layout=wide, **common)
    if isinstance(given, (list, dict)) and given:
        return widgets.Dropdown(options=given, **common)
    if isinstance(given, tuple) and len(given) in (2, 3) and all(isinstance(g, (int, float)) for g in given):
        low, high, *step = given
        if low < high and (not step or step[0] > 0):
            integers = all(isinstance(g, int) for g in given)
            step = step[0] if step else (1 if integers else (high - low) / 20)
            middle = low + step * round((high - low) / step / 2)
            slider = widgets.IntSlider if integers else widgets.FloatSlider
            return slider(value=middle, min=low, max=high, step=step, **common)
    raise ValueError(
        f"control {name} must be a widget, (low, high) or (low, high, step) with low < high, a list or dict with "
        f"something in it, a bool or a text, got {given!r}"
    )
