"""On which device a model takes its batches, also where accelerate has offloaded its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


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
