"""The state of a training on disk: one safetensors file, with the counters as JSON in its header."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtools._engine.store import read_tensors, write_tensors

FILE = "checkpoint.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
NONE = torch.empty(0, 0, 0)  # has no parameter's shape


def save(run: Path, training_model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, optimizer moments and counters to the folder ``run``, in the place of what stood there."""
    tensors = {}
    for name, parameter in _trained(training_model).items():
        kept = optimizer.state.get(parameter, {})
        tensors[f"weight|{name}"] = parameter
        tensors |= {f"{key}|{name}": kept[key] for key in MOMENTS if key in kept}
    write_tensors(run / FILE, tensors, state)


def restore(run: Path, training_model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load what ``save`` wrote into the model and the optimizer; the counters, or None if nothing was saved.

    Raises ``ValueError`` for a file that is damaged or of another model, before anything is changed.
    """
    if not (run / FILE).exists():
        return None
    try:
        tensors, state = read_tensors(run / FILE)
        step = float(state["step"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{run / FILE} is damaged ({error}): delete it, and the training starts anew") from error
    parameters = _trained(training_model)
    found = {name: value for name, value in tensors.items() if name.startswith("weight|")}
    if len(found) != len(parameters) or any(
        found.get(f"weight|{name}", NONE).shape != parameter.shape for name, parameter in parameters.items()
    ):
        raise ValueError(f"{run} holds another model's weights; train into an empty folder: --run elsewhere")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(found[f"weight|{name}"])
            if f"{MOMENTS[0]}|{name}" in tensors:
                moments = {key: tensors[f"{key}|{name}"].clone() for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(step), **moments}
    return state


def recipe(run: Path) -> dict[str, Any]:
    """Return the recipe of the training that left its checkpoint in ``run``.

    Raises ``FileNotFoundError`` where there is none, and ``ValueError`` for a file that is damaged.
    """
    try:
        return dict(read_tensors(run / FILE)[1]["recipe"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{run / FILE} tells no recipe ({error}): train again, into another folder") from error


def _trained(training_model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in training_model.named_parameters() if parameter.requires_grad}
