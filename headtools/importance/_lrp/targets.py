"""The numbers from which relevance starts: a user's score, or a model's highest logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._checks import explain_nonfinite
from headtools.heads._tokens import IGNORE_INDEX, is_encoder_decoder
from headtools.importance.loss import labels_need_shift

Score = Callable[[Any, Mapping], Tensor]  # (outputs, batch) -> (B,) or (B, steps)


@dataclass(frozen=True)
class Targets:
    """The numbers to explain, ``values`` (B, steps), and which of them count, ``counted`` (B, steps) bool."""

    values: Tensor
    counted: Tensor


def find_targets(model: nn.Module, outputs: Any, batch: Mapping, score: Score | None) -> Targets:
    """Return ``score(outputs, batch)``, or the highest logit of every step.

    Steps of a text with labels are the tokens with a label (those before them, in a causal model); of a text without,
    the tokens that are not padding.

    Raises ``ValueError`` for numbers of another shape, NaN, or an example with no step.

    >>> from types import SimpleNamespace as Outputs
    >>> logits = torch.tensor([[[0.0, 2.0], [3.0, 1.0]]], requires_grad=True)
    >>> targets = find_targets(nn.Identity(), Outputs(logits=logits), {"attention_mask": torch.tensor([[1, 0]])}, None)
    >>> targets.values.tolist(), targets.counted.tolist()
    ([[2.0, 3.0]], [[True, False]])
    """
    values = _highest_logits(model, outputs) if score is None else score(outputs, batch)
    if not isinstance(values, Tensor) or values.dim() not in (1, 2) or not values.is_floating_point():
        got = f"a tensor of shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"the score must be one number per example, shape (B,), or one per example and step, (B, steps); got {got}"
        )
    if values.dim() == 1:
        values = values[:, None]
        counted = torch.ones_like(values, dtype=torch.bool)
    else:
        counted = _counted(model, batch, values)
    finite = values.detach().isfinite() | ~counted
    if not finite.all():
        indices = (~finite).any(1).nonzero().flatten().tolist()
        raise ValueError(f"the score of examples {indices} is NaN or infinite; {explain_nonfinite(model)}")
    if not counted.any(1).all():
        indices = (~counted.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"examples {indices} have no step to explain: drop them, or pass a score of shape (B,)")
    if not values.requires_grad:
        raise ValueError(
            "the score does not depend on the model: compute it from the outputs, with gradients on. Where the model "
            'itself ends in a softmax, return its logits: all rules but "attnlrp", "ratio" and "gradient" take a '
            "softmax inside a model for attention, and hold it constant"
        )
    return Targets(values, counted)


def _highest_logits(model: nn.Module, outputs: Any) -> Tensor:
    logits = getattr(outputs, "logits", outputs)
    if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
        got = f"logits of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else "no logits"
        raise ValueError(
            f"{type(model).__name__}: got {got}, so there is no highest logit: pass score=lambda outputs, batch: "
            "..., one number per example, (B,)"
        )
    return logits.gather(-1, logits.argmax(-1, keepdim=True))[..., 0]


def _counted(model: nn.Module, batch: Mapping, values: Tensor) -> Tensor:
    labels = batch.get("labels")
    if isinstance(labels, Tensor) and labels.shape == values.shape:
        counted = labels != IGNORE_INDEX
        if labels_need_shift(model, batch):
            counted = torch.cat([counted[:, 1:], counted.new_zeros(len(counted), 1)], 1)
            mask = batch.get("attention_mask")
            if isinstance(mask, Tensor) and mask.shape == counted.shape:  # left padding comes before a labelled token
                counted = counted & mask.bool().to(counted.device)
        return counted.to(values.device)
    mask = batch.get("decoder_attention_mask" if is_encoder_decoder(model) else "attention_mask")
    if isinstance(mask, Tensor) and mask.shape == values.shape:
        return mask.bool().to(values.device)
    return torch.ones_like(values, dtype=torch.bool)
