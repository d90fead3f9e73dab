"""Losses of a batch without some heads, each at the cost of what comes after them: exact, and half of the work or less.

A batch is run once in full. A run without some heads then begins where the first of them is (``entry.py``), and several
such runs go together as copies of the batch, which is faster than one small batch after the other.

Requirements:

1. The losses are those of a full run with ``ablate``, for any model and any loss. So no shortcut is taken on trust:
   copies are used only if the batch twice has its losses twice, and replaying only if a run that begins at the last
   layer, with nothing changed, ends in the same losses.
2. The second check is made for every batch, the first for every batch that differs in form from those before. Where one
   fails, heads are switched off by ``ablate`` in full runs.
3. What one batch has shown about the model (``cache``) serves the next, so that the checks cost little on a corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._replacement import draw_replacement, replace_heads, replacement_values, site_generator
from headtools.heads.ablate import replace_outputs
from headtools.heads.sites import Site, sites
from headtools.importance._coupling import check_uncoupled_losses
from headtools.importance._replay.copies import ambiguous, axes_by_rows, copies_of, form_of
from headtools.importance._replay.entry import replaying
from headtools.importance._replay.trace import Trace, traced
from headtools.importance.loss import Loss, each_loss

HeadSet = Mapping[Site, list[int]]  # the heads that are off together in one run


@dataclass(frozen=True)
class Layout:
    """Where the examples are: in a batch (``inputs``) and in the trace of its run (``axes``), and their forms."""

    inputs: dict
    axes: dict[nn.Module, tuple]
    form: tuple

    def fits(self, batch: Mapping, trace: Trace, n_examples: int) -> bool:
        """Tell whether another batch and its run are of the same form."""
        try:
            return self.form == (form_of(dict(batch), self.inputs, n_examples), trace.form(self.axes, n_examples))
        except (KeyError, IndexError, TypeError):  # other parts ran, or returned something else
            return False


class AblatedLosses:
    """The losses of one batch with all heads, and without any of them.

    ``full_model`` (B,) holds the losses with all heads; ``without`` gives those without some, all of ``ablated_sites``.
    ``cache`` holds what was learnt about the model: pass the same dict for all batches.
    """

    def __init__(
        self, model: nn.Module, batch: Mapping, loss: Loss | None, ablated_sites: Sequence[Site], replacement: str,
        replacement_values: Mapping, seed: int, max_rows: int, cache: dict, per: str = "example",
    ) -> None:  # fmt: skip
        self.model, self.batch, self.loss, self.ablated_sites = model, batch, loss, ablated_sites
        self.replacement, self.replacement_values, self.seed = replacement, replacement_values, seed
        self.cache, self.per = cache, per
        self.trace, self.full_model = self._traced(batch, uniform=ablated_sites if replacement == "uniform" else ())
        # A loss per batch couples the examples, and the batch twice is another batch.
        self.n_copies = max(1, max_rows // len(self.full_model)) if per == "example" else 1
        self.inputs: dict = {}  # along which axes the batch's tensors hold the examples
        self.n_verified = 0  # the largest number of copies that were seen to have the losses of the batch
        if self.n_copies > 1 and cache.get("replaying", True):
            self.n_copies = self.n_copies if self._find_layout() else 1
        if "replaying" not in cache:
            cache["replaying"] = self.n_verified > 0 or (bool(self.trace.parts) and self._last_layers_unchanged(1))
        self.replaying = cache["replaying"]

    def ran(self, site: Site) -> bool:
        """Tell whether the batch ran a site at all."""
        return self.trace.calls(site) > 0

    def without(self, head_sets: Sequence[HeadSet]) -> Tensor:
        """Return the losses without each set of heads, (len(head_sets), B); all sets are of the same sites."""
        first = min(head_sets[0], key=lambda site: self.trace.parts[site.module].start)
        later = [site for site in head_sets[0] if site is not first]
        can_replay = all(self.trace.replayable(site) for site in head_sets[0]) and self._verify(len(head_sets))
        # Heads' outputs under uniform attention are those of the full run; without an earlier head they are others.
        if not can_replay or (self.replacement == "uniform" and later):
            return torch.stack([self._full_run(heads) for heads in head_sets])
        losses_of_sets = []
        for start in range(0, len(head_sets), self.n_copies):
            chunk = head_sets[start : start + self.n_copies]
            losses_of_sets.append(self._replayed(first, chunk).view(len(chunk), -1))
        return torch.cat(losses_of_sets)

    def check_uncoupled(self) -> None:
        """Raise ``ValueError`` where the loss of an example depends on other examples of the batch."""
        ran = [site for site in sites(self.model) if self.ran(site)]
        tolerance = _relative_rounding(self.model) * self.full_model.abs().max().item()
        check_uncoupled_losses(self.model, lambda: self._losses(self.batch), self.full_model, ran, tolerance)

    def _full_run(self, heads: HeadSet) -> Tensor:
        with replace_outputs(self.model, heads, self.replacement, self.replacement_values, self.seed):
            return self._losses(self.batch)

    def _replayed(self, first: Site, head_sets: Sequence[HeadSet]) -> Tensor:
        """Return the losses without several sets of heads from one run, copy after copy: (len(head_sets) * B,)."""
        n = len(head_sets)

        def edit_of(site: Site) -> Callable[[Tensor], Tensor]:
            generator = site_generator(site, self.seed)

            def edit(z: Tensor) -> Tensor:
                copies = z.unflatten(0, (n, -1))  # (n * B, T, head, value_dim) -> (n, B, T, head, value_dim)
                if self.replacement == "uniform":
                    values = self.trace.parts[site.module].uniform
                else:  # drawn once for all copies, as each full run would draw them
                    values = draw_replacement(
                        self.replacement, self.replacement_values[site.key], copies.shape[1:-2], generator
                    )
                return torch.cat([replace_heads(copy, head_sets[i][site], values) for i, copy in enumerate(copies)])

            return edit

        batch = self._copied(n)
        with replaying(self.trace, first, n, {site: edit_of(site) for site in head_sets[0]}):
            return self._losses(batch, n * len(self.full_model))

    def _losses(self, batch: Mapping, n_examples: int | None = None) -> Tensor:
        return losses(self.model, batch, self.loss, n_examples, self.per)

    def _traced(self, batch: Mapping, uniform: Sequence[Site] = ()) -> tuple[Trace, Tensor]:
        # the same objects as in the sets of heads, by which the trace is read
        all_sites = {site.key: site for site in [*sites(self.model), *self.ablated_sites]}
        return traced(self.model, lambda: self._losses(batch), all_sites.values(), uniform)

    def _copied(self, n: int) -> Mapping:
        return self.batch if n == 1 else copies_of(dict(self.batch), self.inputs, n)

    def _find_layout(self) -> bool:
        """Find where the examples are, so that the batch can be copied; tell whether they were found.

        The layout of another batch of the same form is taken over, unless a tensor may have as many rows as there are
        examples by coincidence. All else must be shown: in a run of the batch twice everything is there twice.
        """
        batch, n_examples, layout = dict(self.batch), len(self.full_model), self.cache.get("layout")
        fits = layout is not None and layout.fits(batch, self.trace, n_examples)
        is_ambiguous = ambiguous(batch, n_examples)
        if fits and not is_ambiguous:
            self.inputs = layout.inputs
            return self.trace.take_axes(layout.axes)
        guesses = [layout.inputs] if fits else []
        guesses += [axes_by_rows(batch, n_examples), axes_by_rows(batch, n_examples, sure=True)] if is_ambiguous else []
        guesses = guesses or [axes_by_rows(batch, n_examples)]
        failed = self.cache.setdefault("failed", [])  # forms that cannot be copied, so that none is tried again
        if (form := form_of(batch, guesses[-1], n_examples)) in failed:
            return False
        for index, guess in enumerate(guesses):
            if guess in guesses[:index]:
                continue
            self.inputs = guess
            axes = self._axes_of_copies()
            if axes and (fits or self._last_layers_unchanged(2)):
                forms = form_of(batch, guess, n_examples), self.trace.form(axes, n_examples)
                self.cache["layout"] = Layout(guess, axes, forms)
                return True
        failed.append(form)
        return False

    def _axes_of_copies(self) -> dict | None:
        """Return where the examples are in the trace, or None where two copies are not twice the batch."""
        try:
            doubled, doubled_losses = self._traced(self._copied(2))
            axes = self.trace.locate(doubled)
        except Exception:  # a model or loss for which a batch cannot be copied is run on the batch as it is
            return None
        return axes if self._are_copies_of_full_model(doubled_losses, 2) else None

    def _verify(self, n_runs: int) -> bool:
        """Tell whether the run can be replayed; set ``n_copies`` to 1 where so many at once would go wrong.

        Of every batch, as many copies as will be used go through the last layer with nothing changed, and must have
        the losses of the batch. This finds, for one, a loss whose labels are not those of its batch.
        """
        while self.replaying and self.n_verified < (n := min(self.n_copies, n_runs)):
            if self._unchanged(self._last_site(), n):
                self.n_verified = n
            elif n > 1:
                self.n_copies = 1
            else:
                self.replaying = False
        return self.replaying

    def _unchanged(self, site: Site, n: int) -> bool:
        """Tell whether n copies, run from a site on with nothing changed, have the losses of the batch."""
        try:
            with replaying(self.trace, site, n, {site: lambda z: z}):
                return self._are_copies_of_full_model(self._losses(self._copied(n)), n)
        except Exception:  # a model that cannot be replayed is run in full
            return False

    def _last_layers_unchanged(self, n: int) -> bool:
        """Tell whether n copies, run from the last layer of each kind on with nothing changed, have the same losses.

        A run without any heads goes before, so that what a model stores beside the outputs of its parts is then wrong
        and shows.
        """
        last = {(site.stack, site.kind): site for site in self.ablated_sites if self.trace.replayable(site)}
        all_heads = {site: list(range(site.heads)) for site in sites(self.model)}
        try:
            zeros = replacement_values(self.model, all_heads, "zero", None)
            with replace_outputs(self.model, all_heads, "zero", zeros):
                self._losses(self.batch)
        except Exception:  # as in ``_unchanged``
            return False
        last_site = self._last_site() if last else None
        max_copies = n if n == 1 else max(n, min(self.n_copies, max(site.heads for site in self.ablated_sites)))
        if not all(self._unchanged(site, max_copies if site is last_site else n) for site in last.values()):
            return False
        self.n_verified = max_copies
        return True

    def _last_site(self) -> Site:
        """Return the last site at which the run can be entered."""
        replayable = filter(self.trace.replayable, self.ablated_sites)
        return max(replayable, key=lambda site: self.trace.parts[site.module].start)

    def _are_copies_of_full_model(self, measured: Tensor, n: int) -> bool:
        """Tell whether losses are those of the batch, n times, up to the rounding of the weights' type."""
        if len(measured) != n * len(self.full_model):
            return False
        rtol = _relative_rounding(self.model)
        atol = rtol * self.full_model.abs().max().item()
        return torch.allclose(measured, self.full_model.repeat(n), rtol=rtol, atol=atol)


@torch.no_grad()
def losses(
    model: nn.Module, batch: Mapping, loss: Loss | None, n_examples: int | None = None, per: str = "example"
) -> Tensor:
    """Return the loss of each example, (B,), without gradients, float64, on the CPU; errors as ``each_loss``."""
    return each_loss(model, batch, loss, n_examples, per).cpu().double()


def _relative_rounding(model: nn.Module) -> float:
    """Return how far numbers of a model differ, relatively, that are equal but for the order of operations."""
    dtype = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    return max(1e-5, 4 * torch.finfo(dtype).eps)
