"""The state of a training in one safetensors file: weights, AdamW's moments, and JSON metadata in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.store import read_tensors, write_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's running means of the gradient and of its square


def save_training(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    metadata: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write parameters, moments and ``extra`` tensors to ``path``, to a temporary name first, and rename it.

    ``metadata`` holds what JSON can, and ``metadata["step"]`` the number of steps done.
    """
    tensors = dict(extra or {})
    for name, parameter in parameters.items():
        tensors[f"weight|{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {})  # empty before the parameter's first gradient
        tensors |= {f"{moment}|{name}": state[moment] for moment in _MOMENTS if moment in state}
    write_tensors(path, tensors, metadata)


@torch.no_grad()
def restore_training(
    path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **required: Any
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Load what ``save_training`` wrote; return the metadata and the extra tensors, or None where there is no file.

    ``required``: entries that the metadata must have, such as the settings of the run. Raises ``ValueError`` for a
    damaged file, or one of another run or other weights, before anything is changed.
    """
    if not path.exists():
        return None
    try:
        tensors, metadata = read_tensors(path)
        step = torch.tensor(float(metadata["step"]))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the run starts anew") from error
    required = json.loads(json.dumps(required))  # as the metadata come back: tuples are lists there
    differ = sorted(name for name, value in required.items() if metadata.get(name) != value)
    weights = {f"weight|{name}": parameter.shape for name, parameter in parameters.items()}
    if weights != {name: tensor.shape for name, tensor in tensors.items() if name.startswith("weight|")}:
        differ.append("another model's weights")
    if differ:
        raise ValueError(
            f"{path.parent} holds another run (other than now: {', '.join(differ)}): use another, empty folder"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors.pop(f"weight|{name}"))
        if f"{_MOMENTS[0]}|{name}" in tensors:
            moments = {moment: tensors.pop(f"{moment}|{name}").to(parameter, copy=True) for moment in _MOMENTS}
            optimizer.state[parameter] = {"step": step.clone(), **moments}
    return metadata, tensors
