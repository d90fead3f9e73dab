"""How much losses rise without some heads: every set of heads, every batch, kept on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools.heads.progress import progress
from headtools.heads.replacement import check_by, pools_of
from headtools.heads.sites import Site
from headtools.importance.digest import digest, digest_model
from headtools.importance.inputs import each_batch, frozen
from headtools.importance.partial import Partial, name_of
from headtools.importance.suffix import Loss, Runs, Variant, losses

Batches = Mapping | Iterable[Mapping]


@dataclass(frozen=True)
class How:
    """How heads are switched off and losses measured; the fields are arguments of ``ablation``."""

    loss: Loss | None = None
    by: str = "zero"
    max_rows: int = 64
    reference: Batches | None = None
    seed: int = 0
    run: str | Path | None = None
    quiet: bool = False


def rises_without(model: nn.Module, batches: Batches, variants: Sequence[Variant], how: How) -> Tensor:
    """Return how much every example's loss rises without some heads: (n, len(variants)), float64, on the CPU.

    A variant names the heads that are off together, {site: [head, ...]}. A batch that does not come by a site has
    rises of 0 there. Errors are those of ``ablation``.
    """
    if how.max_rows < 1:
        raise ValueError(f"max_rows must be 1 or more, got {how.max_rows}: 64 rows at once is a good number")
    named = list({site: None for variant in variants for site in variant})
    check_by(how.by, named)
    batches, reference = list(each_batch(model, batches)), how.reference
    if reference is None:
        reference = [{name: value for name, value in batch.items() if name != "labels"} for batch in batches]
    elif not isinstance(reference, Mapping):
        reference = list(reference)
    settings = {} if how.run is None else _settings(model, batches, variants, how, reference)
    partial = Partial(how.run, settings)
    with frozen(model), torch.no_grad():
        _refuse_other_losses(partial, model, batches, how.loss)
        left = [number for number in range(len(batches)) if number not in partial.kept]
        pools = pools_of(model, named, how.by, reference) if left else {}
        groups = list(_by_sites(variants).values())
        known, runs = {}, None
        steps = [(number, group) for number in left for group in groups]
        for number, group in steps if how.quiet else progress(steps, "switching heads off"):
            if group is groups[0]:
                runs = Runs(model, batches[number], how.loss, named, how.by, pools, how.seed, how.max_rows, known)
                rises = torch.zeros(len(runs.base), len(variants), dtype=torch.float64)
            here = [{site: heads for site, heads in variants[i].items() if runs.ran(site)} for i in group]
            if here[0]:
                rises[:, group] = (runs.without(here) - runs.base).T
            if group is groups[-1]:
                reached = torch.tensor([runs.ran(site) for site in named])
                partial.save(number, {"base": runs.base, "rises": rises, "reached": reached})
    _refuse_idle(partial, named)
    return torch.cat([partial.kept[number]["rises"] for number in range(len(batches))])


def _by_sites(variants: Iterable[Variant]) -> dict[tuple, list[int]]:
    """Return which variants name the same sites, so that they can run together: {sites: [number, ...]}."""
    groups: dict[tuple, list[int]] = {}
    for number, variant in enumerate(variants):
        groups.setdefault(tuple(site.key for site in variant), []).append(number)
    return groups


def _settings(model: nn.Module, batches: list, variants: Sequence[Variant], how: How, reference: object) -> dict:
    """Return all that determines the numbers, as JSON holds it."""
    heads = [[[*map(str, site.key), *some] for site, some in variant.items()] for variant in variants]
    drawn = how.by in ("mean", "resample")
    return {
        "model": digest_model(model), "batches": digest(batches), "heads": digest(heads), "loss": name_of(how.loss),
        "by": how.by, "reference": digest(reference) if drawn else None,
        "seed": how.seed if how.by == "resample" else None,
    }  # fmt: skip


def _refuse_other_losses(partial: Partial, model: nn.Module, batches: list, loss: Loss | None) -> None:
    """Run one finished batch again and compare: hooks and what a loss does inside have no digest."""
    number = min(partial.kept, default=None)
    if number is None:
        return
    then, now = partial.kept[number]["base"], losses(model, batches[number], loss)
    if then.shape != now.shape or not torch.allclose(then, now, rtol=1e-3, atol=1e-4):
        raise ValueError(
            f"{partial.folder} holds another run: the losses of batch {number} are {_few(then)} there and "
            f"{_few(now)} now. Was the loss changed, or a head switched off? Use another folder, run='elsewhere'"
        )


def _few(values: Tensor) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:3].tolist()) + (", ..." if len(values) > 3 else "")


def _refuse_idle(partial: Partial, named: list[Site]) -> None:
    reached = torch.stack([kept["reached"] for kept in partial.kept.values()]).any(0)
    idle = [site.label for site, there in zip(named, reached.tolist(), strict=True) if not there]
    if idle:
        raise ValueError(f"{', '.join(idle)} did not run on any batch: leave them out with sites=[...]")
