"""The state of a run that trains gates: one safetensors file, with the settings as JSON in its header."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import Tensor, nn

from headtools.heads.whole import written_bytes

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
    header = {"settings": json.dumps(settings), "step": str(step)}
    plain = {name: value.cpu().contiguous() for name, value in tensors.items()}
    written_bytes(folder / FILE, as_bytes(plain, metadata=header))


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
        with safe_open(folder / FILE, "pt") as file:
            header = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        then, now, step = json.loads(header["settings"]), json.loads(json.dumps(settings)), int(header["step"])
    except (SafetensorError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{folder / FILE} is damaged ({error}): delete it, and the run starts anew") from error
    differing = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    if differing:
        told = ", ".join(f"{name} {then.get(name)!r}, not {now.get(name)!r}" for name in differing)
        raise ValueError(f"{folder} holds another run ({told}); use another folder: run='elsewhere'")
    for name, parameter in parameters.items():
        if tensors.get(f"weight|{name}", NONE).shape != parameter.shape:
            raise ValueError(f"{folder / FILE} has no such {name}: use another folder, run='elsewhere'")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight|{name}"])
            if f"{MOMENTS[0]}|{name}" in tensors:
                moments = {key: tensors[f"{key}|{name}"].to(parameter) for key in MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(step)), **moments}
    return step, {name.removeprefix("history|"): v for name, v in tensors.items() if name.startswith("history|")}


def fingerprint(tensors: Iterable[tuple[str, Tensor]]) -> int:
    """A checksum of named tensors, to tell one model's weights from another's."""
    total = 0
    for name, tensor in tensors:
        data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        total = zlib.crc32(data, zlib.crc32(name.encode(), total))
    return total
