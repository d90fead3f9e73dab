"""Losses that couple the examples of a batch: whether the loss of one example depends on the others.

A contrastive loss compares every example with all others, so no example has a loss of its own: neither the slope of
"its" loss nor an increase of "its" loss is a number of that example, and a bootstrap over examples would treat as
independent what is not. Such a loss is the batch's (``per="batch"``). What a user's loss couples cannot be read off its
code, so it is tested: by gradients (``check_uncoupled_gradients``) or by runs (``check_uncoupled_losses``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from headtools.heads._devices import to_float64
from headtools.heads._hooks import hook_input, intervention
from headtools.heads.sites import Site

PER = ("example", "batch")
# Relative to an example's own effect; rounding and the scales that quantised layers compute per batch stay below it.
TOLERANCE = 0.01
_MESSAGE = (
    "the loss of one example changes with what heads do for another, so it is no loss of this example: write "
    'per="batch" to measure the loss of each batch as one number (loss may then return just that), or compute each '
    "loss from its own example only"
)


def check_per(per: str) -> None:
    """Raise ``ValueError`` for anything but "example" or "batch"."""
    if per not in PER:
        raise ValueError(f'per is "example" or "batch", got {per!r}')


def trial_weights(losses: Tensor) -> Tensor:
    """Return weights (B,) between 0.5 and 1.5, the same in each call, by which coupled losses show."""
    return torch.rand(len(losses), generator=torch.Generator().manual_seed(0)).to(losses) + 0.5


def check_uncoupled_gradients(plain: Tensor, weighted: Tensor, weights: Tensor) -> None:
    """Raise ``ValueError`` where losses (B,) depend on other rows of some output (B, ...) than their own.

    ``plain`` is the gradient of the sum of the losses by this output, ``weighted`` that of their weighted sum: where
    every loss depends only on its own row, the weights multiply the rows of the gradient. An output with another number
    of rows is not tested.
    """
    if len(plain) != len(weights):
        return
    tolerance = max(TOLERANCE, 16 * torch.finfo(plain.dtype).eps)
    plain, weighted = to_float64(plain), to_float64(weighted)
    # Uncoupled, row b of the gradient comes from loss b alone, and is multiplied by its weight.
    expected = plain * to_float64(weights).to(plain.device).view(-1, *[1] * (plain.dim() - 1))
    if ((expected - weighted).abs() > tolerance * torch.maximum(plain.abs().max(), weighted.abs().max())).any():
        raise ValueError(_MESSAGE)


def check_uncoupled_losses(
    model: nn.Module, run: Callable[[], Tensor], full_model: Tensor, sites: Sequence[Site], rounding: float
) -> None:
    """Raise ``ValueError`` where the losses of ``run()``, (B,), change with the heads of other examples.

    All heads are off for every second example, then for the others, and the losses of the rest must stay those of
    ``full_model``, up to ``rounding``. Where a model runs several rows for each example (texts and their variants), the
    rows of an example may be adjacent, or copy may follow copy. Where rows are no multiple of the examples, nothing is
    tested.
    """
    n_examples = len(full_model)
    if n_examples < 2:
        return
    every_second = torch.arange(n_examples) % 2 == 1
    rows_per_example: set[int] = set()
    adjacent, copy_after_copy = Tensor.repeat_interleave, Tensor.repeat

    def uncoupled(order: Callable[[Tensor, int], Tensor]) -> bool:
        for off in (every_second, ~every_second):

            def switch_off(z: Tensor, off: Tensor = off) -> Tensor:
                if len(z) % n_examples:
                    return z
                rows_per_example.add(len(z) // n_examples)
                rows_off = order(off, len(z) // n_examples).to(z.device)
                return z.masked_fill(rows_off.view(-1, *[1] * (z.dim() - 1)), 0.0)

            with intervention(model, "ablation()", sites), ExitStack() as stack:
                for site in sites:
                    stack.callback(hook_input(site.out, _on_z(site, switch_off)).remove)
                change = (run() - full_model).abs()
            if (change[~off] > rounding + TOLERANCE * change[off].max()).any():
                return False
        return True

    if not uncoupled(adjacent) and not (rows_per_example - {1} and uncoupled(copy_after_copy)):
        raise ValueError(_MESSAGE)


def _on_z(site: Site, edit: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda out_input: site.join(edit(site.split(out_input)))
