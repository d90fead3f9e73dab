"""Curves under the name and with the arguments that lessons used before ``plot``: until all have moved."""

from __future__ import annotations

from typing import Any

from headtools.lesson import plot

__all__ = ["lines"]


def lines(ax: Any, curves: Any, **more: Any) -> Any:
    """Draw curves into axes, which are returned: ``plot.lines(..., ax=ax)``."""
    plot.lines(curves, ax=ax, **more)
    return ax
