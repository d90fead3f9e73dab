"""Losses that couple the examples of a batch, such as a contrastive one, which compares each with all others.

Then no example has a loss of its own, neither its slope nor its rise is a number of that example, and a bootstrap over
examples would take for independent what is not. Such a loss is the batch's (``per="batch"``). What a user's loss
couples cannot be read off its code, so it is tried out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from headtools.heads._hooks import edit_outputs
from headtools.heads.sites import sites
from headtools.importance.loss import COUPLED, Loss, each_loss, rounding

# Relative to an example's own effect; rounding and the scales that quantised layers compute per batch stay below it.
_TOLERANCE = 0.01


@torch.no_grad()
def check_uncoupled(model: nn.Module, batch: Mapping, loss: Loss, full_model: Tensor) -> None:
    """Raise ``ValueError`` where losses, (B,), of which ``full_model`` are those with all heads, depend on each other.

    All heads are off for every second example, then for the others, and the losses of the rest must stay. A model may
    run several rows for each example, one beside the other; where rows are no multiple of the examples, nothing is
    tested.
    """
    n_examples, full_model = len(full_model), full_model.detach().cpu().double()

    def switched(off: Tensor) -> Callable[[Tensor], Tensor]:
        def edit(z: Tensor) -> Tensor:  # (B * rows of an example, ...)
            if len(z) % n_examples:
                return z
            rows = off.repeat_interleave(len(z) // n_examples).to(z.device)
            return z.masked_fill(rows.view(-1, *[1] * (z.dim() - 1)), 0.0)

        return edit

    every_second = torch.arange(n_examples) % 2 == 1
    for off in (every_second, ~every_second) if n_examples > 1 else ():
        with edit_outputs(model, "a check of the loss", dict.fromkeys(sites(model), switched(off))):
            change = (each_loss(model, batch, loss, n_examples).cpu().double() - full_model).abs()
        if (change[~off] > rounding(model, full_model) + _TOLERANCE * change[off].max()).any():
            raise ValueError(COUPLED)
