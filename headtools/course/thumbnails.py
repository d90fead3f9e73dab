"""A menu of heads beside their maps: press a map, or choose from the menu."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets
import numpy as np
from matplotlib import colormaps
from PIL import Image

from headtools.course.pictures import head_name

SIDE, GAP = 24, 3  # pixels of a map, and between two
_STEP = SIDE + GAP
_STYLE = f"""<style>.headtools-maps{{width:max-content;overflow:visible;margin:0 1em .6em 0}}
.headtools-maps .widget-html-content{{line-height:1.3}}
.jupyter-button.headtools-thumb{{width:{_STEP}px;height:{_STEP}px;margin:0;padding:0;background:none;border:0}}
.jupyter-button.headtools-thumb:hover{{outline:2px solid currentColor;outline-offset:-2px}}
.jupyter-button.headtools-chosen{{outline:3px solid #D55E00 !important;outline-offset:-1px}}</style>"""


class HeadMenu(widgets.Dropdown):
    """A menu whose values are heads, (kind, layer, head); ``.maps`` are the maps to press, which set it."""

    def __init__(self, maps: Mapping[tuple, Any], at: tuple) -> None:
        arrays = {key: np.asarray(getattr(maps[key], "maps", maps[key])) for key in maps}  # (1, H, q, k) or (H, q, k)
        arrays = {key: of_site.reshape(-1, *of_site.shape[-2:]) for key, of_site in arrays.items()}
        self._thumbs: dict[tuple, widgets.Button] = {}
        kinds = dict.fromkeys(key[:-1] for key in arrays)
        heads = [(*key, head) for key, of_site in arrays.items() for head in range(len(of_site))]
        if tuple(at) not in heads:
            raise ValueError(f"there is no head {at!r} among these maps, which go from {heads[0]} to {heads[-1]}")
        names = {head: f"{head[-2]}.{head[-1]}" if len(kinds) == 1 else head_name(head) for head in heads}
        super().__init__(options=[(name, head) for head, name in names.items()], value=tuple(at))
        self.layout.width = "max-content"
        blocks = [self._block(kind, {key: of for key, of in arrays.items() if key[:-1] == kind}) for kind in kinds]
        wrap = widgets.Layout(flex_flow="row wrap")
        self.maps = widgets.HBox([widgets.HTML(_STYLE, layout=widgets.Layout(display="none")), *blocks], layout=wrap)
        self.observe(self._choose, "value")
        self._thumbs[self.value].add_class("headtools-chosen")

    def _choose(self, change: Any) -> None:
        self._thumbs[change["old"]].remove_class("headtools-chosen")
        self._thumbs[change["new"]].add_class("headtools-chosen")

    def _block(self, kind: tuple, arrays: Mapping[tuple, np.ndarray]) -> widgets.Box:
        """The maps of one kind, layers down and heads across: buttons without a face over one picture of all maps."""
        sheet = _sheet(list(arrays.values()))
        name = f"headtools-{hashlib.sha256(sheet).hexdigest()[:10]}"
        picture = f"url(data:image/png;base64,{base64.b64encode(sheet).decode()})"
        columns = max(map(len, arrays.values()))
        buttons = []
        for key, of_site in arrays.items():
            for head in range(columns):
                there = head < len(of_site)
                button = widgets.Button(tooltip=head_name((*key, head)) if there else "", disabled=not there)
                button.add_class("headtools-thumb").tabbable = False  # the menu is the way by keys
                if there:
                    button.on_click(lambda _, chosen=(*key, head): setattr(self, "value", chosen))
                    self._thumbs[*key, head] = button
                buttons.append(button)
        grid = widgets.GridBox(buttons, layout=widgets.Layout(grid_template_columns=f"repeat({columns}, {_STEP}px)"))
        top = "".join(f'<span style="display:inline-block;width:{_STEP}px">{head}</span>' for head in range(columns))
        left = "<br>".join(str(key[-1]) for key in arrays)
        centred = f'<div style="text-align:center;line-height:{_STEP}px;width:1.6em">'
        look = (
            f"<style>.{name}{{background:{picture} 0 0/100% 100%;image-rendering:pixelated;overflow:visible}}</style>"
        )
        title = f"{look}<b>{' '.join(kind)}</b>, layers down, heads across"
        above = widgets.HTML(f'{title}<div style="padding-left:1.6em;text-align:center">{top}</div>')
        rows = widgets.HBox([widgets.HTML(f"{centred}{left}</div>"), grid.add_class(name)])
        return widgets.VBox([above, rows]).add_class("headtools-maps")


def _sheet(maps: list[np.ndarray]) -> bytes:
    """Draw all maps into one PNG, each to its own maximum: uniform attention is no black square."""
    height, width = _STEP * len(maps), _STEP * max(map(len, maps))
    sheet = np.zeros((height, width, 4), dtype=np.uint8)  # what is not drawn is transparent
    for row, of_layer in enumerate(maps):
        for column, table in enumerate(of_layer):
            down, across = (np.arange(SIDE) * size // SIDE for size in table.shape)
            drawn = colormaps["cividis"](table[np.ix_(down, across)] / max(table.max(), 1e-9), bytes=True)
            top, left = row * _STEP + GAP // 2, column * _STEP + GAP // 2
            sheet[top : top + SIDE, left : left + SIDE] = drawn
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, format="png", optimize=True)
    return file.getvalue()
