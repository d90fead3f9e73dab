"""Training state on disk: safetensors and JSON, each folder written whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

MOMENTS = ("exp_avg", "exp_avg_sq")


def save(folder: Path, apprentice: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, optimizer moments and counters to ``folder``, replacing what stood there in one move."""
    scratch = folder.with_name(folder.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    parameters = {n: p for n, p in apprentice.named_parameters() if p.requires_grad}
    save_file({n: p.detach().contiguous() for n, p in parameters.items()}, scratch / "weights.safetensors")
    moments = {}
    for name, parameter in parameters.items():
        kept = optimizer.state.get(parameter, {})
        moments |= {f"{name}|{key}": kept[key].contiguous() for key in MOMENTS if key in kept}
    save_file(moments, scratch / "optimizer.safetensors")
    (scratch / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.replace(folder, old)
    os.replace(scratch, folder)
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path, apprentice: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load what ``save`` wrote into the model and the optimizer; the counters, or None if nothing was saved.

    A run killed between the two moves of ``save`` is found in the ``.old`` folder.
    """
    if not folder.exists():
        folder = folder.with_name(folder.name + ".old")
    if not folder.exists():
        return None
    state = json.loads((folder / "state.json").read_text())
    weights, moments = load_file(folder / "weights.safetensors"), load_file(folder / "optimizer.safetensors")
    parameters = {n: p for n, p in apprentice.named_parameters() if p.requires_grad}
    if parameters.keys() != weights.keys():
        raise ValueError(f"{folder} holds another model's weights; train into an empty folder: --run elsewhere")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
            if f"{name}|{MOMENTS[0]}" in moments:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(state["step"])),
                    **{key: moments[f"{name}|{key}"].clone() for key in MOMENTS},
                }
    return state
