"""bertviz's page, rebuilt so that it needs no network, and framed so that it can reach nothing."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from headtools.course.figure import IMG_STYLE
from headtools.course.plain import escape

_CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_HOW = (
    "Point at a word to see its lines. The colours are heads {heads}, from the left: click one to switch it off or on, "
    "double-click to see it alone."
)

# What bertviz 1.4.1 calls of require.js, jQuery and d3. No package that learners install has these as files: JupyterLab
# bundles d3 into its own chunks. And d3 alone would take more than an output may, 240 kB of 150.
_STAND_IN = files("headtools.course") / "bertviz_stand_in.js"

# While the frame is there its still picture hides. A page that drops frames drops this style too: the picture shows.
# Where the page is dark (JupyterLab's theme, the site's), so is the frame, which knows nothing of what is around it.
_DARK = ".headtools-view iframe{filter:invert(.93) hue-rotate(180deg)}"
_STYLE = (
    "<style>.headtools-view:has(iframe) .headtools-still{display:none}"
    f"[data-jp-theme-light=false] {_DARK}[data-theme=dark] {_DARK}"
    f"@media(prefers-color-scheme:dark){{[data-theme=auto] {_DARK}}}</style>"
)


@dataclass(frozen=True)
class View:
    """What a view shows: weights (layer, head, query, key), the names of both sides, and which layers."""

    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    alt: str


def view_script(view: View) -> str:
    """Write bertviz's drawing code, what it stands on, and the weights and tokens, as one script.

    Raises ValueError for another version of bertviz.
    """
    drawing = files("bertviz").joinpath("head_view.js").read_text("utf-8")
    drawing, without = re.subn(r"^require\.config\(\{.*?\}\);\n", "", drawing, flags=re.M | re.S)  # addresses of CDNs
    if not without or drawing.count("const params = PYTHON_PARAMS;") != 1:
        raise ValueError("the attention view is made for bertviz 1.4.1: pip install bertviz==1.4.1")
    left, right = (
        [token.replace("Ġ", " ").replace("▁", " ").replace("</w>", "") for token in side]
        for side in (view.queries, view.keys)
    )
    params = {
        "attention": [{"name": None, "attn": "WEIGHTS", "left_text": left, "right_text": right}],
        "default_filter": "0",
        "display_mode": "light",
        "root_div_id": "view",
        "layer": None,
        "heads": None,
        "include_layers": list(view.layers),
        "include_heads": list(range(view.weights.shape[1])),
        "total_heads": view.weights.shape[1],
    }
    packed = base64.b64encode((view.weights * 100).round().astype(np.uint8).tobytes()).decode()
    data = json.dumps(params, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    data = data.replace('"WEIGHTS"', f'weights("{packed}",{list(view.weights.shape)})', 1)
    # Once only: the marker stands a second time in a comment, where a token could end it.
    stand_in = _STAND_IN.read_text("utf-8").split("\n", 1)[1]  # without its heading
    return f"\n{stand_in}" + drawing.replace("PYTHON_PARAMS", data, 1)


def view_html(view: View, script: str, *, still: bytes, caption: str) -> str:
    """Write the ``<figure>``: the still picture (PNG), the frame around ``script`` and the caption, which is HTML."""
    height = round(max(len(view.queries), len(view.keys)) * 22.5 + 130)  # pixels, by the constants of bertviz 1.4.1
    indent = 8 * max(0, min(40, max(map(len, view.queries))) - 12)  # pixels, for long words
    css = f"body{{min-width:{350 + indent}px}}svg{{overflow:visible;margin-left:{indent}px}}"
    alt, how = escape(view.alt), _HOW.format(heads=", ".join(map(str, range(view.weights.shape[1]))))
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}"><title>{alt}</title>'
        "<!-- Drawn by bertviz 1.4.1, Jesse Vig, Apache License 2.0 -->"
        f"<style>body{{margin:0;background:#fff;color:#000;font:14px sans-serif}}p{{margin:0 0 .4em}}{css}</style>"
        f"</head><body><p>{how}</p>"
        '<div id="view"><label>Layer: <select id="layer"></select></label><div id="vis"></div></div>'
        f"<script>{script}</script></body></html>"
    )
    return (
        f'<figure class="headtools-view" style="margin:.4em 0"><img class="headtools-still" alt="{alt}" '
        f'src="data:image/png;base64,{base64.b64encode(still).decode()}" style="{IMG_STYLE}">'
        f'<iframe title="{alt}" sandbox="allow-scripts" '
        f'style="box-sizing:border-box;width:100%;height:{height}px;max-width:{480 + 2 * indent}px;border:0" '
        f'srcdoc="{escape(page)}"></iframe>'
        f'<figcaption style="max-width:48em">{caption}</figcaption></figure>{_STYLE}'
    )
