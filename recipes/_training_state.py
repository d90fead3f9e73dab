"""The checkpoint of a training: one safetensors file, with the counters as JSON in its header."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from headtools._engine.store import read_tensors
from headtools.sparse._trainer import restore_training, save_training

FILE = "checkpoint.safetensors"


def save(run: Path, training_model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Write weights, optimizer moments and counters to the folder ``run``, replacing an earlier checkpoint."""
    save_training(run / FILE, _trained(training_model), optimizer, state)


def restore(run: Path, training_model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any] | None:
    """Load what ``save`` wrote into the model and the optimizer; return the counters, or None if nothing was saved.

    Raises ``ValueError`` for a file that is damaged or of another model, before anything is changed.
    """
    saved = restore_training(run / FILE, _trained(training_model), optimizer)
    return saved and saved[0]


def recipe(run: Path) -> dict[str, Any]:
    """Return the recipe of the training that left its checkpoint in ``run``.

    Raises ``FileNotFoundError`` where there is none, and ``ValueError`` for a file that is damaged.
    """
    try:
        return dict(read_tensors(run / FILE)[1]["recipe"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"{run / FILE} holds no recipe ({error}): train again, into another folder") from error


def _trained(training_model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in training_model.named_parameters() if parameter.requires_grad}
