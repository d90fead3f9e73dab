"""Losses that couple the examples of a batch: whether the loss of one depends on the others.

A contrastive loss compares every example with all others, so there is no loss of one example by itself: neither the
slope of "its" loss nor a rise of "its" loss is a number of that example, and intervals over examples would take for
independent what is not. Such a loss is the batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from headtools.heads._hooks import hook_input, intervention
from headtools.heads._precision import to_float64
from headtools.heads.sites import Site

PER = ("example", "batch")
SHARE = 0.01  # of an example's own effect: what rounding, or scales that a quantised layer takes of a batch, stay below
FIX = (
    "the loss of one example changes with what heads do for another, so it is no loss of this example: write "
    'per="batch" to measure the loss of each batch as one number (loss may then return just that), or compute each '
    "loss of its own example alone"
)


def check_per(per: str) -> None:
    """Raise ``ValueError`` for anything but "example" or "batch"."""
    if per not in PER:
        raise ValueError(f'per is "example" or "batch", got {per!r}')


def trial_weights(each: Tensor) -> Tensor:
    """Return by what losses (B,) are multiplied to see which of them depend on one another."""
    return torch.rand(len(each), generator=torch.Generator().manual_seed(0)).to(each) + 0.5


def refuse_coupled_slopes(plain: Tensor, weighted: Tensor, weights: Tensor) -> None:
    """Raise ``ValueError`` where losses (B,) depend on other rows of some output (B, ...) than their own.

    ``plain`` is the gradient of the sum of the losses by this output, ``weighted`` that of their weighted sum: where
    every loss depends on its own row alone, weights multiply the rows of the gradient. An output with another number of
    rows is not looked at.
    """
    if len(plain) != len(weights):
        return
    share = max(SHARE, 16 * torch.finfo(plain.dtype).eps)
    plain, weighted = to_float64(plain), to_float64(weighted)
    alike = plain * to_float64(weights).to(plain.device).view(-1, *[1] * (plain.dim() - 1))
    if ((alike - weighted).abs() > share * torch.maximum(plain.abs().max(), weighted.abs().max())).any():
        raise ValueError(FIX)


def refuse_coupled_losses(
    model: nn.Module, run: Callable[[], Tensor], base: Tensor, sites: Sequence[Site], rounding: float
) -> None:
    """Raise ``ValueError`` where the losses of ``run()``, (B,), change with the heads of other examples.

    All heads are off for every second example, then for the others, and the losses of the rest must stay ``base``, up
    to ``rounding``. Where a model runs several rows for each example, they may stand beside each other or copy after
    copy. A model whose rows are no multiple of the examples is not looked at.
    """
    if len(base) < 2:
        return
    second, several = torch.arange(len(base)) % 2 == 1, set()
    orders = [lambda off, times: off.repeat_interleave(times), lambda off, times: off.repeat(times)]

    def apart(order: Callable) -> bool:
        for off in (second, ~second):

            def close(z: Tensor, off: Tensor = off) -> Tensor:
                if len(z) % len(base):
                    return z
                several.add(len(z) // len(base))
                rows = order(off, len(z) // len(base)).to(z.device)
                return z.masked_fill(rows.view(-1, *[1] * (z.dim() - 1)), 0.0)

            with intervention(model, "ablation()", sites), ExitStack() as stack:
                for site in sites:
                    stack.callback(hook_input(site.out, _on_z(site, close)).remove)
                moved = (run() - base).abs()
            if (moved[~off] > rounding + SHARE * moved[off].max()).any():
                return False
        return True

    if not apart(orders[0]) and not (several - {1} and apart(orders[1])):
        raise ValueError(FIX)


def _on_z(site: Site, edit: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda read: site.join(edit(site.split(read)))
