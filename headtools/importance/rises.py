"""How much losses rise without some heads: every set of heads, every batch, kept on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools.heads.digest import digest, digest_model
from headtools.heads.gates import watched
from headtools.heads.partial import Partial, name_of
from headtools.heads.progress import progress
from headtools.heads.replacement import check_by, pools_of
from headtools.heads.shards import current, outline
from headtools.importance.by_batch import refuse_idle
from headtools.importance.coupling import check_over
from headtools.importance.inputs import each_batch, frozen
from headtools.importance.loss import Loss, of_labels
from headtools.importance.suffix import Runs, Variant, losses

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
    over: str = "example"


def rises_without(model: nn.Module, batches: Batches, variants: Sequence[Variant], how: How) -> Tensor:
    """Return how much every example's loss rises without some heads: (n, len(variants)), float64, on the CPU.

    With ``over="batch"`` the loss of every batch, which is then one row.

    A variant names the heads that are off together, {site: [head, ...]}. A batch that does not come by a site has
    rises of 0 there. Errors are those of ``ablation``.
    """
    if how.max_rows < 1:
        raise ValueError(f"max_rows must be 1 or more, got {how.max_rows}: 64 rows at once is a good number")
    check_over(how.over)
    named = list({site: None for variant in variants for site in variant})
    check_by(how.by, named)
    batches, reference = list(each_batch(model, batches)), how.reference
    if reference is None:
        reference = batches
    elif not isinstance(reference, Mapping):
        reference = list(reference)
    shard = current()
    if shard.count > 1:
        shard.agree(digest(outline(model), batches), "models or batches")
    partial = Partial(how.run, {} if how.run is None else _settings(model, batches, variants, how, reference))
    groups = list(_by_sites(variants).values())

    def work() -> dict[int, dict[str, Tensor]]:
        """Run the batches that fall to this process, and read those that are kept."""
        if shard.main and (first := partial.first()) is not None:
            partial.check(first, {"losses": losses(model, batches[first], how.loss, over=how.over)}, "losses")
        mine = [number for number, _ in shard.mine(batches, partial.kept)]
        found = {number: partial.read(number) for number in mine if number in partial.kept}
        left = [number for number in mine if number not in partial.kept]
        pools = pools_of(model, named, how.by, reference) if left else {}
        known, runs, checked = {}, None, of_labels(how.loss) or how.over == "batch"
        steps = [(number, group) for number in left for group in groups]
        for number, group in progress(steps, "switching heads off") if shard.main and not how.quiet else steps:
            if group is groups[0]:
                batch = batches[number]
                runs = Runs(model, batch, how.loss, named, how.by, pools, how.seed, how.max_rows, known, how.over)
                if not checked and len(runs.base) > 1:
                    runs.refuse_coupled()
                    checked = True
                rises = torch.zeros(len(runs.base), len(variants), dtype=torch.float64)
            here = [{site: heads for site, heads in variants[i].items() if runs.ran(site)} for i in group]
            if here[0]:
                rises[:, group] = (runs.without(here) - runs.base).T
            if group is groups[-1]:
                reached = torch.tensor([runs.ran(site) for site in named])
                found[number] = {"losses": runs.base, "rises": rises, "reached": reached}
                partial.save(number, found[number])
        return found

    with frozen(model), torch.no_grad(), watched(model):
        found = shard.merged(work)
    refuse_idle(found, named, "{} did not run on any batch")
    return torch.cat([part["rises"] for part in found])


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
        "seed": how.seed if how.by == "resample" else None, **({} if how.over == "example" else {"over": how.over}),
    }  # fmt: skip
