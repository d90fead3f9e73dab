"""Losses without some heads, each at the cost of what comes after them: exact, and half of the work or less.

A batch is run once in full. A run without some heads then begins where the first of them is (``entry.py``), and several
such runs go together as copies of the batch. What cannot be trusted is not used: copies only if the batch twice has
its losses twice, and replaying only if a run that begins at the last layer, with nothing changed, ends in the same
losses. The second is asked of every batch, the first of every one that is unlike those before. Where one of them
fails, heads are switched off by ``ablate`` in full runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._replacement import draw_replacement, replace_heads, replacement_values, site_generator
from headtools.heads.ablate import replace_outputs
from headtools.heads.sites import Site, sites
from headtools.importance._coupling import refuse_coupled_losses
from headtools.importance._replay.copies import axes_by_rows, copies_of, doubtful, form_of
from headtools.importance._replay.entry import replaying
from headtools.importance._replay.trace import Trace, traced
from headtools.importance.loss import Loss, each_loss

Variant = Mapping[Site, list[int]]  # the heads that are off in one run


@dataclass(frozen=True)
class Layout:
    """Where the examples are: in a batch (``inputs``) and in what was kept of its run (``kept``), and their forms."""

    inputs: dict
    kept: dict[nn.Module, tuple]
    form: tuple

    def fits(self, batch: Mapping, trace: Trace, rows: int) -> bool:
        """Tell whether another batch and its run are of the same form."""
        try:
            return self.form == (form_of(dict(batch), self.inputs, rows), trace.form(self.kept, rows))
        except (KeyError, IndexError, TypeError):  # other parts ran, or returned something else
            return False


class Runs:
    """One batch of a model, ready to be run without any of its heads.

    ``base`` (B,) holds the losses of the whole model; ``without`` those without some heads, which ``named`` has all
    sites of. ``known`` carries what was found out about the model from one batch to the next: pass the same dict for
    all batches.
    """

    def __init__(
        self, model: nn.Module, batch: Mapping, loss: Loss | None, named: Sequence[Site], replacement: str,
        pools: Mapping, seed: int, max_rows: int, known: dict, per: str = "example",
    ) -> None:  # fmt: skip
        self.model, self.batch, self.loss, self.named = model, batch, loss, named
        self.replacement, self.pools, self.seed, self.known, self.per = replacement, pools, seed, known, per
        self.trace, self.base = self._traced(batch, even=named if replacement == "uniform" else ())
        self.copies = max(1, max_rows // len(self.base)) if per == "example" else 1  # a batch twice is another batch
        self.inputs: dict = {}
        self.checked = 0  # in how many copies the batch was seen to have its own losses
        if self.copies > 1 and known.get("replaying", True):
            self.copies = self.copies if self._find_layout() else 1
        if "replaying" not in known:
            known["replaying"] = self.checked > 0 or (bool(self.trace.parts) and self._same(1))
        self.replaying = known["replaying"]

    def ran(self, site: Site) -> bool:
        """Tell whether the batch came by a site at all."""
        return self.trace.calls(site) > 0

    def without(self, variants: Sequence[Variant]) -> Tensor:
        """Return the losses with each variant's heads off, (len(variants), B); all variants name the same sites."""
        first = min(variants[0], key=lambda site: self.trace.parts[site.module].start)
        later = [site for site in variants[0] if site is not first]
        replayed = all(self.trace.replayable(site) for site in variants[0]) and self._check(len(variants))
        if not replayed or (self.replacement == "uniform" and later):
            return torch.stack([self._in_full(variant) for variant in variants])
        found = []
        for start in range(0, len(variants), self.copies):
            some = variants[start : start + self.copies]
            found.append(self._replayed(first, some).view(len(some), -1))
        return torch.cat(found)

    def refuse_coupled(self) -> None:
        """Raise ``ValueError`` where the loss of an example depends on other examples of the batch."""
        ran = [site for site in sites(self.model) if self.trace.calls(site)]
        least = rounding(self.model) * self.base.abs().max().item()
        refuse_coupled_losses(self.model, lambda: self._losses(self.batch), self.base, ran, least)

    def _in_full(self, variant: Variant) -> Tensor:
        with replace_outputs(self.model, variant, self.replacement, self.pools, self.seed):
            return self._losses(self.batch)

    def _replayed(self, first: Site, variants: Sequence[Variant]) -> Tensor:
        """Return the losses of several variants in one run, copy after copy: (len(variants) * B,)."""
        n = len(variants)

        def edit_of(site: Site) -> Callable[[Tensor], Tensor]:
            generator = site_generator(site, self.seed)

            def edit(z: Tensor) -> Tensor:
                copies = z.unflatten(0, (n, -1))
                if self.replacement == "uniform":
                    other = self.trace.parts[site.module].even
                else:
                    other = draw_replacement(self.replacement, self.pools[site.key], copies.shape[1:-2], generator)
                return torch.cat([replace_heads(one, variants[i][site], other) for i, one in enumerate(copies)])

            return edit

        batch = self._copied(n)
        with replaying(self.trace, first, n, {site: edit_of(site) for site in variants[0]}):
            return self._losses(batch, n * len(self.base))

    def _losses(self, batch: Mapping, rows: int | None = None) -> Tensor:
        return losses(self.model, batch, self.loss, rows, self.per)

    def _traced(self, batch: Mapping, even: Sequence[Site] = ()) -> tuple[Trace, Tensor]:
        all_sites = {site.key: site for site in [*sites(self.model), *self.named]}  # the same objects as in variants
        return traced(self.model, lambda: self._losses(batch), all_sites.values(), even)

    def _copied(self, n: int) -> Mapping:
        return self.batch if n == 1 else copies_of(dict(self.batch), self.inputs, n)

    def _find_layout(self) -> bool:
        """Find where the examples are, so that the batch can be copied; tell whether that is so.

        What held for another batch of the same form is taken over, unless a tensor has as many rows as there are
        examples by mere chance, perhaps. All else must show itself: in a run of the batch twice everything is twice.
        """
        batch, rows, layout = dict(self.batch), len(self.base), self.known.get("layout")
        fits = layout is not None and layout.fits(batch, self.trace, rows)
        doubt = doubtful(batch, rows)
        if fits and not doubt:
            self.inputs = layout.inputs
            return self.trace.take_axes(layout.kept)
        guesses = [layout.inputs] if fits else []
        guesses += [axes_by_rows(batch, rows), axes_by_rows(batch, rows, sure=True)] if doubt else []
        guesses = guesses or [axes_by_rows(batch, rows)]
        failed = self.known.setdefault("failed", [])  # forms for which there is no way, so that none is tried again
        if (form := form_of(batch, guesses[-1], rows)) in failed:
            return False
        for number, guess in enumerate(guesses):
            if guess in guesses[:number]:
                continue
            self.inputs = guess
            kept = self._located()
            if kept and (fits or self._same(2)):
                forms = form_of(batch, guess, rows), self.trace.form(kept, rows)
                self.known["layout"] = Layout(guess, kept, forms)
                return True
        failed.append(form)
        return False

    def _located(self) -> dict | None:
        """Return where the examples are in all that was kept, or None where two copies are not twice the batch."""
        try:
            doubled, each = self._traced(self._copied(2))
            kept = self.trace.locate(doubled)
        except Exception:  # a model or loss for which a batch cannot be copied is run on the batch as it is
            return None
        return kept if self._close(each, 2) else None

    def _check(self, wanted: int) -> bool:
        """Tell whether the run can be replayed, and lower ``copies`` to 1 where so many at once would go wrong.

        Of every batch, as many copies as will be used go through the last layer with nothing changed, and must have
        the losses of the batch: labels that a loss does not take from its batch show here, for one.
        """
        while self.replaying and self.checked < (n := min(self.copies, wanted)):
            if self._unchanged(self._latest(), n):
                self.checked = n
            elif n > 1:
                self.copies = 1
            else:
                self.replaying = False
        return self.replaying

    def _unchanged(self, site: Site, n: int) -> bool:
        """Tell whether n copies, run from a site on with nothing changed, have the losses of the batch."""
        try:
            with replaying(self.trace, site, n, {site: lambda z: z}):
                return self._close(self._losses(self._copied(n)), n)
        except Exception:  # what a model does not stand, full runs with ablate do without it
            return False

    def _same(self, n: int) -> bool:
        """Tell whether n copies, run from the last layer of each kind on with nothing changed, have the same losses.

        A run without any heads goes before, so that what a model keeps beside the outputs of its parts is wrong.
        """
        last = {(site.stack, site.kind): site for site in self.named if self.trace.replayable(site)}
        all_heads = {site: list(range(site.heads)) for site in sites(self.model)}
        try:
            zeros = replacement_values(self.model, all_heads, "zero", None)
            with replace_outputs(self.model, all_heads, "zero", zeros):
                self._losses(self.batch)
        except Exception:  # as in ``_unchanged``
            return False
        latest = self._latest() if last else None
        most = n if n == 1 else max(n, min(self.copies, max(site.heads for site in self.named)))
        if not all(self._unchanged(site, most if site is latest else n) for site in last.values()):
            return False
        self.checked = most
        return True

    def _latest(self) -> Site:
        """Return the last site at which the run can be entered."""
        return max(filter(self.trace.replayable, self.named), key=lambda site: self.trace.parts[site.module].start)

    def _close(self, found: Tensor, n: int) -> bool:
        """Tell whether losses are those of the batch, n times, up to the rounding of the weights' type."""
        if len(found) != n * len(self.base):
            return False
        share = rounding(self.model)
        return torch.allclose(found, self.base.repeat(n), rtol=share, atol=share * self.base.abs().max().item())


@torch.no_grad()
def losses(
    model: nn.Module, batch: Mapping, loss: Loss | None, rows: int | None = None, per: str = "example"
) -> Tensor:
    """Return the loss of each example, (B,), without gradients, float64, on the CPU; errors as ``each_loss``."""
    return each_loss(model, batch, loss, rows, per).cpu().double()


def rounding(model: nn.Module) -> float:
    """Return by what share numbers of a model differ that are the same but for the order of operations."""
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    return max(1e-5, 4 * torch.finfo(dtype).eps)
