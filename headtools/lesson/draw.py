"""The drawings under the names and with the arguments that lessons used before ``plot``: until all have moved."""

from __future__ import annotations

from typing import Any

from headtools.lesson import plot
from headtools.lesson.plot import layer_grid, subplots

__all__ = ["bars", "head_grid", "heatmap", "layer_grid", "subplots"]


def heatmap(ax: Any, matrix: Any, **more: Any) -> Any:
    """Draw a matrix into axes, which are returned: ``plot.matrix(..., ax=ax)``."""
    plot.matrix(matrix, ax=ax, **more)
    return ax


def head_grid(maps: Any, tokens: Any, **more: Any) -> Any:
    """Draw attention maps of several heads: ``plot.maps``."""
    return plot.maps(maps, tokens, **more)


def bars(ax: Any, names: Any, values: Any, **more: Any) -> Any:
    """Draw bars into axes, which are returned: ``plot.bars(..., ax=ax)``."""
    plot.bars(names, values, ax=ax, **more)
    return ax
