"""The state of a training run in one safetensors file: weights, AdamW's moments, and JSON metadata in the header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.store import read_tensors, write_tensors

_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's running means of the gradient and of its square


def save_training(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    metadata: dict,
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write trained parameters, the optimizer's moments and ``extra`` tensors to ``path``, atomically.

    ``metadata`` holds what JSON can, and ``metadata["step"]`` the number of steps done.
    """
    tensors = dict(extra or {})
    for name, parameter in parameters.items():
        tensors[f"weight|{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {})  # empty before the parameter's first gradient
        tensors |= {f"{moment}|{name}": state[moment] for moment in _MOMENTS if moment in state}
    write_tensors(path, tensors, metadata)


def read_training(path: Path, settings: str) -> tuple[dict[str, Tensor], dict] | None:
    """Return the tensors and the metadata of a file that ``save_training`` wrote, or None where there is no file.

    Raises ``ValueError`` for a damaged file, such as one whose metadata lack the dict named ``settings``.
    """
    if not path.exists():
        return None
    try:
        tensors, metadata = read_tensors(path)
        metadata |= {"step": int(metadata["step"]), settings: dict(metadata[settings])}
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the run starts anew") from error
    return tensors, metadata


def missing_weight(tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> str | None:
    """Return the name of the first parameter for which the file has no weight of the same shape, if there is one."""
    for name, parameter in parameters.items():
        saved = tensors.get(f"weight|{name}")
        if saved is None or saved.shape != parameter.shape:
            return name
    return None


@torch.no_grad()
def load_training(
    tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, step: int
) -> None:
    """Copy saved weights into the parameters and saved moments into the optimizer, which has done ``step`` steps."""
    for name, parameter in parameters.items():
        parameter.copy_(tensors[f"weight|{name}"])
        if f"{_MOMENTS[0]}|{name}" in tensors:
            moments = {moment: tensors[f"{moment}|{name}"].to(parameter, copy=True) for moment in _MOMENTS}
            optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
