"""The state of a run that trains gates: one safetensors file, with the settings as JSON in its header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.store import read_tensors, write_tensors

FILE = "gates.safetensors"
MOMENTS = ("exp_avg", "exp_avg_sq")
NONE = torch.empty(0, 0, 0)  # has no parameter's shape


def save(
    folder: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    rows: Mapping[str, Tensor],
    settings: dict,
    step: int,
) -> None:
    """Write trained parameters, optimizer moments and history to ``folder``, whole or not at all."""
    tensors = {f"history|{name}": value for name, value in rows.items()}
    for name, parameter in parameters.items():
        tensors[f"weight|{name}"] = parameter.detach()
        kept = optimizer.state.get(parameter, {})
        tensors |= {f"{key}|{name}": kept[key] for key in MOMENTS if key in kept}
    write_tensors(folder / FILE, tensors, {"settings": settings, "step": step})


def restore(
    folder: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, settings: dict
) -> tuple[int, dict[str, Tensor]] | None:
    """Load what ``save`` wrote; the step and the history, or None if nothing was saved.

    Raises ``ValueError`` if ``folder`` holds a run with other settings, or a file that is damaged, before anything is
    changed.
    """
    if not (folder / FILE).exists():
        return None
    try:
        tensors, told = read_tensors(folder / FILE)
        then, step = dict(told["settings"]), int(told["step"])
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / FILE} is damaged ({error}): delete it, and the run starts anew") from error
    now = json.loads(json.dumps(settings))  # as it would come back from the file
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if differing:
        told = ", ".join(f"{name} {then.get(name)!r}, not {now.get(name)!r}" for name in differing)
        raise ValueError(f"{folder} holds another run ({told}); use another folder: checkpoint='elsewhere'")
    for name, parameter in parameters.items():
        if tensors.get(f"weight|{name}", NONE).shape != parameter.shape:
            raise ValueError(f"{folder / FILE} has no such {name}: use another folder, checkpoint='elsewhere'")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight|{name}"])
            if f"{MOMENTS[0]}|{name}" in tensors:
                moments = {key: tensors[f"{key}|{name}"].to(parameter) for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    return step, {name.removeprefix("history|"): v for name, v in tensors.items() if name.startswith("history|")}
