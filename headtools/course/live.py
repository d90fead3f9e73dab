"""Widgets beside text that stays readable where no kernel answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headtools.course.plain import escape

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipywidgets import Widget

# The first output is the picture, the second the controls over the same picture. While the controls are live, the first
# hides; where JupyterLab has lost the controls (a saved notebook, a new kernel), its error message gives way to advice.
# An untrusted notebook loses this style together with the controls, and so shows the picture.
_STYLE = """<style>body:has(.{live}) .{still}{{display:none}}
.jp-OutputArea-child:has(.{still})+.jp-OutputArea-child>.jupyter-widgets:not(:has(*)){{font-size:0}}
.jp-OutputArea-child:has(.{still})+.jp-OutputArea-child>.jupyter-widgets:not(:has(*))::after
{{content:"{advice}";font-size:13px}}</style>"""


def show_live(html: str, text: str, box: Widget, name: str, advice: str, hide: bool = True) -> Callable[[str], None]:
    """Display HTML with ``text`` as its plain form, then a widget; without a kernel the widget gives way to ``advice``.

    name: a class name for the two; hide: hide the HTML while the widget is live, because it shows the same

    Gives a function that replaces the HTML.
    """
    from IPython.display import display

    box.add_class(f"{name}-live")
    css = _STYLE.format(
        live=f"{name}-{'live' if hide else 'never'}", still=name, advice=re.sub(r'[\\\\"<>\n]', " ", advice)
    )

    def bundle(html: str) -> dict[str, str]:
        return {"text/html": f'<div class="{name}">{html}</div>{css}', "text/plain": text}

    handle = display(bundle(html), raw=True, display_id=True)
    live = box._repr_mimebundle_()
    live = dict(live[0] if isinstance(live, tuple) else live)
    live |= {"text/html": f"<small>{escape(advice)}</small>", "text/plain": advice}
    display(live, raw=True)
    return lambda html: handle.update(bundle(html), raw=True)
