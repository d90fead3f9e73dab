"""Where a model takes its batches, and arithmetic in a chosen precision: without autocast, or in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

P, R = ParamSpec("P"), TypeVar("R")
_WITHOUT_FLOAT64 = frozenset({"mps"})  # Apple's GPUs


def device_of(model: nn.Module) -> torch.device:
    """Return the device on which a model takes its batches: its first weight's, or where an offloaded weight is used.

    >>> device_of(nn.Linear(2, 2))
    device(type='cpu')
    """
    weight = next(model.parameters(), None)
    if weight is not None and not weight.is_meta:
        return weight.device
    for module in model.modules():
        # accelerate keeps an offloaded weight on the meta device; the hook it adds knows where the layer will run
        hook = getattr(module, "_hf_hook", None)
        for single_hook in getattr(hook, "hooks", [hook]):
            if getattr(single_hook, "execution_device", None) is not None:
                return torch.device(single_hook.execution_device)
    return torch.device("cpu")


def on_device(model: nn.Module, batch: Mapping) -> dict[str, Any]:
    """Return a batch whose tensors are on the device of the model."""
    device = device_of(model)
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}


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
            for device in ("cpu", "cuda", "mps", "xpu"):
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
