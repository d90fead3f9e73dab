"""Arithmetic on weights in a precision of our choice: without ``torch.autocast``, and in float64 where it matters."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_WITHOUT_FLOAT64 = frozenset({"mps"})  # Apple's GPUs
P, R = ParamSpec("P"), TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function compute in its tensors' own precision, whatever autocast region it is called in.

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
            for device in _DEVICES:
                if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, enabled=False))
            return function(*args, **kwargs)

    return inside


def to_float64(x: Tensor) -> Tensor:
    """Return a tensor in float64: on its own device, or on the CPU where the device has no float64.

    >>> to_float64(torch.ones(2)).dtype
    torch.float64
    """
    return (x.cpu() if x.device.type in _WITHOUT_FLOAT64 else x).double()
