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
_HOW = {
    "head": "Point at a word to see its lines. The colours are heads {heads}, from the left: click one to switch it "
    "off or on, double-click to see it alone.",
    "model": "Click a head to see it large; click it again to close it.",
}

# What bertviz 1.4.1 calls of require.js, jQuery and d3, written for this purpose: 4 kB, where they have 340.
_SHIM = r"""
function $(what) {
  const made = /^<(\w+)\s*\/?>$/.exec(what);
  const nodes = made ? [document.createElement(made[1])] : [...document.querySelectorAll(what)];
  const all = {nodes};
  const each = (name, act) => { all[name] = (a, b) => { nodes.forEach(n => act(n, a, b)); return all; }; };
  each('append', (n, list) => list.nodes.forEach(child => n.appendChild(child)));
  each('empty', n => { n.textContent = ''; });
  each('val', (n, v) => { n.value = v; });
  each('text', (n, t) => { n.textContent = t; });
  each('attr', (n, k, v) => n.setAttribute(k, v));
  each('change', n => n.dispatchEvent(new Event('change')));
  each('on', (n, name, act) => n.addEventListener(name, act));
  return all;
}
class Selection {  // groups of nodes; a node of an entering group is {host, __data__}, which append turns into a child
  constructor(groups, parents) { this.groups = groups; this.parents = parents; }
  each(act) { this.groups.forEach(g => g.forEach((n, i) => n && act(n, i))); return this; }
  set(value, act) {
    return this.each((n, i) => act(n, typeof value === 'function' ? value.call(n, n.__data__, i) : value));
  }
  attr(k, value) { return this.set(value, (n, v) => v == null ? n.removeAttribute(k) : n.setAttribute(k, v)); }
  style(k, value) { return this.set(value, (n, v) => n.style.setProperty(k, v)); }
  text(value) { return this.set(value, (n, v) => { n.textContent = v; }); }
  classed(k, on) { return this.each(n => n.classList.toggle(k, on)); }
  on(name, act) { return this.each((n, i) => n.addEventListener(name, () => act.call(n, n.__data__, i))); }
  remove() { return this.each(n => n.remove()); }
  child(find) {
    return new Selection(this.groups.map(g => g.map(n => {
      const found = n && find(n);
      if (found && '__data__' in n) found.__data__ = n.__data__;
      return found;
    })), this.parents);
  }
  select(what) { return this.child(n => n.querySelector(what)); }
  append(name) {
    name = name.replace('svg:', '');
    return this.child(n => (n.host || n).appendChild(document.createElementNS('http://www.w3.org/2000/svg', name)));
  }
  selectAll(what) {
    const parents = this.groups.flat().filter(Boolean);
    return new Selection(parents.map(n => [...n.querySelectorAll(what)]), parents);
  }
  data(value) {
    const entering = this.groups.map((g, j) => {
      const host = this.parents[j];
      const values = typeof value === 'function' ? value.call(host, host.__data__, j) : value;
      return values.map((v, i) => { if (g[i]) { g[i].__data__ = v; } else { return {host, __data__: v}; } });
    });
    this.enter = () => new Selection(entering, this.parents);
    return this;
  }
}
const d3 = {
  version: 'stand-in',
  schemeCategory10: ['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd',
                     '#8c564b', '#e377c2', '#7f7f7f', '#bcbd22', '#17becf'],
  scaleOrdinal: colours => i => colours[i % colours.length],
  select: what => {
    const node = typeof what === 'string' ? document.querySelector(what) : what;
    return new Selection([[node]], [document.documentElement]);
  },
  hsl: hex => {
    const [r, g, b] = [1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16) / 255);
    const high = Math.max(r, g, b), low = Math.min(r, g, b), range = high - low, l = (high + low) / 2;
    const h = !range ? 0 : high === r ? (g - b) / range : high === g ? (b - r) / range + 2 : (r - g) / range + 4;
    const s = range ? range / (1 - Math.abs(2 * l - 1)) : 0;
    return {h: h * 60, s, l, toString() {  // less than no saturation turns the hue round, and grey has no hue to turn
      const turn = this.s < 0 ? 180 : 0, much = range ? Math.abs(this.s) : 0;
      return `hsl(${this.h + turn} ${much * 100}% ${this.l * 100}%)`;
    }};
  },
};
const requirejs = (names, act) => act(...names.map(name => name === 'd3' ? d3 : $));
function weights(packed, shape) {  // hundredths, one byte each
  const bytes = atob(packed);
  let at = 0;
  const build = depth => Array.from({length: shape[depth]},
    () => depth === 3 ? bytes.charCodeAt(at++) / 100 : build(depth + 1));
  return build(0);
}
"""

# The model view has 970 pixels across; in a narrower column it shrinks rather than scrolls.
_FIT = """
const svg = document.querySelector('#vis svg');
svg.setAttribute('viewBox', `0 0 970 ${svg.getAttribute('height')}`);
svg.style.cssText = 'width:100%;max-width:970px;height:auto';
"""

# While the frame is there its still picture hides. A page that drops frames drops this style too: the picture shows.
_STYLE = "<style>.headtools-view:has(iframe) .headtools-still{display:none}</style>"


@dataclass(frozen=True)
class View:
    """What a view shows: weights (layer, head, query, key), the names of both sides, which layers and heads."""

    kind: str
    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]
    layers: Sequence[int]
    heads: Sequence[int]
    alt: str


def view_script(view: View) -> str:
    """Write bertviz's drawing code, what it stands on, and the weights and tokens, as one script.

    Raises ValueError for another version of bertviz.
    """
    drawing = files("bertviz").joinpath(f"{view.kind}_view.js").read_text("utf-8")
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
        "include_heads": list(view.heads),
        "total_heads": len(view.heads),
    }
    packed = base64.b64encode((view.weights * 100).round().astype(np.uint8).tobytes()).decode()
    data = json.dumps(params, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    data = data.replace('"WEIGHTS"', f'weights("{packed}",{list(view.weights.shape)})', 1)
    # Once only: the marker stands a second time in a comment, where a token could end it.
    return _SHIM + drawing.replace("PYTHON_PARAMS", data, 1)


def _height(view: View) -> int:
    """Give the pixels that a view needs, by the constants of bertviz 1.4.1."""
    n_tokens = max(len(view.queries), len(view.keys))
    if view.kind == "head":
        return round(n_tokens * 22.5 + 30 + 100)
    thumbnail = n_tokens * 7 * 12 / len(view.heads) + 10
    return round(max(len(view.layers) * thumbnail + 41, n_tokens * 18 + 55) + 70)


def view_html(view: View, script: str, *, still: bytes, caption: str) -> str:
    """Write the ``<figure>``: the still picture (PNG), the frame around ``script`` and the caption, which is HTML."""
    height, alt = _height(view), escape(view.alt)
    if view.kind == "head":
        pick = '<label>Layer: <select id="layer"></select></label>'
        shape = f"height:{height}px"
        indent = 8 * max(0, min(40, max(map(len, view.queries))) - 12)  # pixels, for long words
        css = f"body{{min-width:{350 + indent}px}}svg{{overflow:visible;margin-left:{indent}px}}"
    else:
        pick, script = "", script + _FIT
        shape = f"height:auto;aspect-ratio:990/{height};max-width:990px"
        css = "body{min-width:500px}"
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}"><title>{alt}</title>'
        "<!-- Drawn by bertviz 1.4.1, Jesse Vig, Apache License 2.0 -->"
        f"<style>body{{margin:6px;background:#fff;color:#000;font:14px sans-serif}}p{{margin:0 0 .4em}}{css}</style>"
        f"</head><body><p>{_HOW[view.kind].format(heads=', '.join(map(str, view.heads)))}</p>"
        f'<div id="view">{pick}<div id="vis"></div></div><script>{script}</script></body></html>'
    )
    return (
        f'<figure class="headtools-view" style="margin:.4em 0"><img class="headtools-still" alt="{alt}" '
        f'src="data:image/png;base64,{base64.b64encode(still).decode()}" style="{IMG_STYLE}">'
        f'<iframe title="{alt}" sandbox="allow-scripts" '
        f'style="box-sizing:border-box;width:100%;{shape};border:1px solid #999;background:#fff" '
        f'srcdoc="{escape(page)}"></iframe>'
        f'<figcaption style="max-width:48em">{caption}</figcaption></figure>{_STYLE}'
    )
