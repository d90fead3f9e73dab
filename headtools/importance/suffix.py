"""Losses without some heads, each at the cost of what comes after them: exact, and half of the work or less.

A batch is run once in full. A run without some heads then begins where the first of them is (``entry.py``), and several
such runs go together as copies of the batch. What cannot be trusted is not used: copies only if the batch twice has
its losses twice, and replaying only if a run that begins at the last layer, with nothing changed, ends in the same
losses. Where one of them fails, heads are switched off by ``ablate`` in full runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from headtools.heads.gates import replaced
from headtools.heads.replacement import generator_of, pools_of, put, stand_in
from headtools.heads.sites import Site, sites
from headtools.importance.copies import copied_batch
from headtools.importance.entry import replaying
from headtools.importance.loss import Loss, each_loss
from headtools.importance.trace import Trace, traced

Variant = Mapping[Site, list[int]]  # the heads that are off in one run


class Runs:
    """One batch of a model, ready to be run without any of its heads.

    ``base`` (B,) holds the losses of the whole model; ``without`` those without some heads, which ``named`` has all
    sites of. ``known`` carries what was found out about the model from one batch to the next: pass the same dict for
    all batches.
    """

    def __init__(
        self, model: nn.Module, batch: Mapping, loss: Loss | None, named: Sequence[Site], by: str, pools: Mapping,
        seed: int, max_rows: int, known: dict,
    ) -> None:  # fmt: skip
        self.model, self.batch, self.loss, self.named = model, batch, loss, named
        self.by, self.pools, self.seed, self.known = by, pools, seed, known
        self.trace, self.base = self._traced(batch, even=named if by == "uniform" else ())
        self.copies = max(1, max_rows // len(self.base))
        if self.copies > 1 and known.get("replaying", True) and "axes" not in known:
            known["axes"] = self._axes()  # found only where replaying works
        if "replaying" not in known:
            known["replaying"] = bool(known.get("axes")) or self._same(1)
        if not known.get("axes") or not self.trace.take_axes(known["axes"]):
            self.copies = 1

    def ran(self, site: Site) -> bool:
        """Tell whether the batch came by a site at all."""
        return self.trace.calls(site) > 0

    def without(self, variants: Sequence[Variant]) -> Tensor:
        """Return the losses with each variant's heads off, (len(variants), B); all variants name the same sites."""
        first = min(variants[0], key=lambda site: self.trace.parts[site.module].start)
        later = [site for site in variants[0] if site is not first]
        replayed = self.known["replaying"] and all(self.trace.replayable(site) for site in variants[0])
        if not replayed or (self.by == "uniform" and later):
            return torch.stack([self._in_full(variant) for variant in variants])
        found = []
        for start in range(0, len(variants), self.copies):
            some = variants[start : start + self.copies]
            found.append(self._replayed(first, some).view(len(some), -1))
        return torch.cat(found)

    def _in_full(self, variant: Variant) -> Tensor:
        with replaced(self.model, variant, self.by, self.pools, self.seed):
            return losses(self.model, self.batch, self.loss)

    def _replayed(self, first: Site, variants: Sequence[Variant]) -> Tensor:
        """Return the losses of several variants in one run, copy after copy: (len(variants) * B,)."""
        n = len(variants)

        def edit_of(site: Site) -> Callable[[Tensor], Tensor]:
            generator = generator_of(site, self.seed)

            def edit(z: Tensor) -> Tensor:
                copies = z.unflatten(0, (n, -1))
                if self.by == "uniform":
                    other = self.trace.parts[site.module].even
                else:
                    other = stand_in(self.by, self.pools[site.key], copies.shape[1:-2], generator)
                return torch.cat([put(one, variants[i][site], other) for i, one in enumerate(copies)])

            return edit

        batch = self.batch if n == 1 else copied_batch(self.batch, len(self.base), n)
        with replaying(self.trace, first, n, {site: edit_of(site) for site in variants[0]}):
            return losses(self.model, batch, self.loss, n * len(self.base))

    def _traced(self, batch: Mapping, even: Sequence[Site] = ()) -> tuple[Trace, Tensor]:
        all_sites = {site.key: site for site in [*sites(self.model), *self.named]}  # the same objects as in variants
        return traced(self.model, lambda: losses(self.model, batch, self.loss), all_sites.values(), even)

    def _axes(self) -> dict | None:
        """Return where the examples are in all that was kept, or None where two copies are not twice the batch."""
        try:
            doubled, found = self._traced(copied_batch(self.batch, len(self.base), 2))
            axes = self.trace.locate(doubled)
        except Exception:  # a model or loss for which a batch cannot be copied is run on the batch as it is
            return None
        return axes if self._close(found, 2) and self._same(2) else None

    def _same(self, n: int) -> bool:
        """Tell whether n copies, run from the last layer of each kind on with nothing changed, have the same losses.

        A run without any heads goes before, so that what a model keeps beside the outputs of its parts is wrong.
        """
        last = {(site.stack, site.kind): site for site in self.named if self.trace.replayable(site)}
        all_heads = {site: list(range(site.heads)) for site in sites(self.model)}
        try:
            with replaced(self.model, all_heads, "zero", pools_of(self.model, all_heads, "zero", None)):
                losses(self.model, self.batch, self.loss)
            batch = self.batch if n == 1 else copied_batch(self.batch, len(self.base), n)
            for site in last.values():
                with replaying(self.trace, site, n, {site: lambda z: z}):
                    if not self._close(losses(self.model, batch, self.loss), n):
                        return False
        except Exception:  # what a model does not stand, full runs with ablate do without it
            return False
        return True

    def _close(self, found: Tensor, n: int) -> bool:
        """Tell whether losses are those of the batch, n times, up to the rounding of the weights' type."""
        dtype = next((weight.dtype for weight in self.model.parameters() if weight.is_floating_point()), torch.float32)
        share = max(1e-5, 4 * torch.finfo(dtype).eps)
        return torch.allclose(found, self.base.repeat(n), rtol=share, atol=share * self.base.abs().max().item())


@torch.no_grad()
def losses(model: nn.Module, batch: Mapping, loss: Loss | None, rows: int | None = None) -> Tensor:
    """Return the loss of each example, (B,), without gradients, float64, on the CPU; errors as ``each_loss``."""
    return each_loss(model, batch, loss, rows).cpu().double()
