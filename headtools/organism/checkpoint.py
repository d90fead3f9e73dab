"""Training state on disk: safetensors and JSON, each folder written whole or not at all."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as as_bytes
from torch import nn

from headtools.heads.whole import written_bytes

MOMENTS = ("exp_avg", "exp_avg_sq")


def save(folder: Path, apprentice: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, optimizer moments and counters to ``folder``, replacing what stood there in one move.

    At every moment one of ``folder`` and its ``.old`` is whole. One process at a time may train in a folder.
    """
    scratch = folder.with_name(folder.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    parameters = {n: p for n, p in apprentice.named_parameters() if p.requires_grad}
    moments = {}
    for name, parameter in parameters.items():
        kept = optimizer.state.get(parameter, {})
        moments |= {f"{name}|{key}": kept[key].contiguous() for key in MOMENTS if key in kept}
    try:
        weights = {name: parameter.detach().contiguous() for name, parameter in parameters.items()}
        written_bytes(scratch / "weights.safetensors", as_bytes(weights))
        written_bytes(scratch / "optimizer.safetensors", as_bytes(moments))
        written_bytes(scratch / "state.json", (json.dumps(state, indent=1) + "\n").encode("utf-8"))
    except OSError:
        shutil.rmtree(scratch, ignore_errors=True)  # it may be what fills the disk
        raise
    old = folder.with_name(folder.name + ".old")
    if folder.exists():  # or the old one is the only one: a run was killed between the two moves below
        shutil.rmtree(old, ignore_errors=True)
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
    try:
        state = json.loads((folder / "state.json").read_text())
        weights, moments = load_file(folder / "weights.safetensors"), load_file(folder / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged ({error}): delete it, and the training starts anew") from error
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
