"""Arithmetic on weights in the precision they have, also inside ``torch.autocast``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch

DEVICES = ("cpu", "cuda", "mps", "xpu")
P, R = ParamSpec("P"), TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute with its tensors as they are, whatever autocast region it is called in.

    >>> @without_autocast
    ... def square(x):
    ...     return x @ x
    >>> with torch.autocast("cpu", dtype=torch.bfloat16):
    ...     square(torch.eye(2)).dtype
    torch.float32
    """

    @functools.wraps(function)
    def inside(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for device in DEVICES:
                if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return inside
