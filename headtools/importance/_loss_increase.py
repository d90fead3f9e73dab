"""How much losses rise without some heads: every set of heads, every batch, kept on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.progress import advance
from headtools._engine.run import function_name, run
from headtools._engine.store import Part, fingerprint
from headtools.heads._checks import checked_inputs
from headtools.heads._replacement import check_replacement, replacement_values
from headtools.importance._coupling import check_per
from headtools.importance._inputs import check_all_ran, each_batch, frozen
from headtools.importance._replay.runs import Runs, Variant, losses
from headtools.importance.loss import Loss, of_labels

Batches = Mapping | Iterable[Mapping]


@dataclass(frozen=True)
class How:
    """How heads are switched off and losses measured; the fields are arguments of ``ablation``."""

    loss: Loss | None = None
    replacement: str = "zero"
    max_rows: int = 64
    reference: Batches | None = None
    seed: int = 0
    checkpoint: str | Path | None = None
    progress: bool = True
    per: str = "example"


def rises_without(model: nn.Module, batches: Batches, variants: Sequence[Variant], how: How) -> Tensor:
    """Return how much every example's loss rises without some heads: (n, len(variants)), float64, on the CPU.

    With ``per="batch"`` the loss of every batch, which is then one row.

    A variant names the heads that are off together, {site: [head, ...]}. A batch that does not come by a site has
    rises of 0 there. Errors are those of ``ablation``.
    """
    if how.max_rows < 1:
        raise ValueError(f"max_rows must be 1 or more, got {how.max_rows}: 64 rows at once is a good number")
    check_per(how.per)
    batches = list(each_batch(model, batches))
    measure = _Rises(model, variants, how, batches if how.reference is None else how.reference)
    label = "switching heads off" if how.progress else ""
    return run(measure, model, batches, checkpoint=how.checkpoint, label=label, steps=len(measure.groups))


@dataclass
class _Rises:
    """Each example's loss without some heads, less its loss with all of them."""

    model: nn.Module
    variants: Sequence[Variant]
    how: How
    reference: Batches

    def __post_init__(self) -> None:
        self.sites = list({site: None for variant in self.variants for site in variant})
        check_replacement(self.how.replacement, self.sites)
        if not isinstance(self.reference, Mapping):
            self.reference = list(self.reference)
        self.groups = list(_by_sites(self.variants).values())
        self.layouts: dict = {}  # what was found out about the model, from one batch to the next
        self.checked = of_labels(self.how.loss) or self.how.per == "batch"

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the rises."""
        replacement, per = self.how.replacement, self.how.per
        return {
            "heads": [[[site.label, *heads] for site, heads in variant.items()] for variant in self.variants],
            "loss": function_name(self.how.loss), "by": replacement, "over": per,
            "reference": fingerprint(self.reference) if replacement in ("mean", "resample") else None,
            "seed": self.how.seed if replacement == "resample" else None,
        }  # fmt: skip

    def check(self, batch: Mapping) -> Part:
        """Return the losses with all heads, which take one pass."""
        with frozen(self.model):
            return {"losses": losses(self.model, batch, self.how.loss, per=self.how.per)}

    def per_batch(self, batch: Mapping) -> Part:
        """Return the losses with all heads (B,) and the rises (B, variants)."""
        how = self.how
        with frozen(self.model), torch.no_grad(), checked_inputs(self.model):
            runs = Runs(self.model, batch, how.loss, self.sites, how.replacement, self.pools, how.seed, how.max_rows,
                        self.layouts, how.per)  # fmt: skip
            if not self.checked and len(runs.base) > 1:
                runs.refuse_coupled()
                self.checked = True
            rises = torch.zeros(len(runs.base), len(self.variants), dtype=torch.float64)
            for group in self.groups:
                heads = [{site: some for site, some in self.variants[i].items() if runs.ran(site)} for i in group]
                if heads[0]:
                    rises[:, group] = (runs.without(heads) - runs.base).T
                advance()
        ran = torch.tensor([runs.ran(site) for site in self.sites])
        return {"losses": runs.base, "rises": rises, "ran": ran}

    def finish(self, parts: Iterable[Part]) -> Tensor:
        """Return the rises of all examples, in their order."""
        parts = list(parts)
        check_all_ran(parts, self.sites, "{} did not run on any batch")
        return torch.cat([part["rises"] for part in parts])

    @cached_property
    def pools(self) -> dict:
        """What takes the place of heads' outputs; made when the first batch is measured, if any is."""
        return replacement_values(self.model, self.sites, self.how.replacement, self.reference)


def _by_sites(variants: Iterable[Variant]) -> dict[tuple, list[int]]:
    """Return which variants name the same sites, so that they can run together: {sites: [number, ...]}."""
    groups: dict[tuple, list[int]] = {}
    for number, variant in enumerate(variants):
        groups.setdefault(tuple(site.key for site in variant), []).append(number)
    return groups
