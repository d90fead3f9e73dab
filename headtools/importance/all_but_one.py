"""One head a layer: what is lost when a layer keeps a single one of its heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.progress import progress as show_progress
from headtools._renamed import old_arguments
from headtools.heads._replacement import check_replacement, replacement_values
from headtools.heads.ablate import replace_outputs
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import frozen, select_sites
from headtools.importance._intervals import with_intervals
from headtools.importance._loss_increase import Batches, How, rises_without
from headtools.importance._replay.runs import Variant
from headtools.importance.ablation import by_site
from headtools.importance.loss import Loss

Evaluate = Callable[[nn.Module], Any]  # model -> (B,) tensor, (score, low, high), or a number


@old_arguments(by="replacement", over="per", run="checkpoint", quiet="progress")
def all_but_one(
    model: nn.Module,
    batches: Batches | None = None,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    evaluate: Evaluate | None = None,
    max_rows: int = 64,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> HeadScores:
    """Return what changes when each head is the only one left in its layer, all other layers being whole.

    One layer at a time (Michel et al. 2019, arXiv:1905.10650, section 3.3). With ``batches`` the value is the mean rise
    of the loss, its bounds and the other arguments being those of ``ablation``: the lowest of a layer is its best head.

    With ``evaluate`` instead, ``evaluate(model)`` is asked once for the whole model and once for each head, without
    gradients or dropout, and the value is the change of what it returns: a tensor (B,) of one number per example (the
    difference of the means, with paired bounds), a number, or (score, low, high) as for ``curve`` (no bounds). A layer
    that has only one head changes by 0. Choosing the best head and telling its score on the same examples is
    optimistic: choose on some, tell on others.

    Raises ``ValueError`` for both or none of ``batches`` and ``evaluate``, and as ``ablation`` does.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> all_but_one(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, progress=False).values["encoder", 1].shape
    torch.Size([4])
    """
    if (batches is None) == (evaluate is None):
        raise ValueError("pass either batches, for the loss, or evaluate=lambda model: ..., for another measure")
    chosen = select_sites(model, sites)
    variants = [{site: [h for h in range(site.heads) if h != kept]} for site in chosen for kept in range(site.heads)]
    name = "keep one" if replacement == "zero" else f"keep one, others by {replacement}"
    if evaluate is None:
        many = [number for number, variant in enumerate(variants) if next(iter(variant.values()))]
        if not many:
            raise ValueError("every layer has one head only: there is nothing to switch off")
        how = How(loss, replacement, max_rows, reference, seed, checkpoint, progress, per)
        found = rises_without(model, batches, [variants[number] for number in many], how)
        rises = found.new_zeros(len(found), len(variants))
        rises[:, many] = found
        return with_intervals(by_site(rises, chosen), name)
    if checkpoint is not None:
        raise ValueError("checkpoint keeps losses of batches, and evaluate has none: leave checkpoint out")
    if replacement in ("mean", "resample") and reference is None:
        raise ValueError(
            f'replacement="{replacement}" needs data: all_but_one(..., replacement="{replacement}", reference=batches)'
        )
    check_replacement(replacement, chosen)
    with frozen(model), torch.no_grad():
        pools = replacement_values(model, chosen, replacement, reference)
        before = _row(evaluate(model))
        steps = show_progress(variants, "keeping one head") if progress else variants
        changes = [_row(_evaluated(model, variant, evaluate, replacement, pools, seed)) - before for variant in steps]
    return with_intervals(by_site(torch.stack(changes, 1), chosen), name)


def _evaluated(
    model: nn.Module, variant: Variant, evaluate: Evaluate, replacement: str, pools: dict[tuple, Tensor], seed: int
) -> Any:
    off: dict[Site, list[int]] = {site: heads for site, heads in variant.items() if heads}
    with replace_outputs(model, off, replacement, pools, seed):
        return evaluate(model)


def _row(measured: Any) -> Tensor:
    """Return what an evaluation gave as one number per example, or as a single number: (B,) or (1,), float64."""
    if isinstance(measured, tuple) and len(measured) == 3:
        measured = measured[0]
    row = torch.as_tensor(measured).detach().cpu().double()
    row = row[None] if row.dim() == 0 else row
    if row.dim() != 1 or not len(row) or not row.isfinite().all():
        raise ValueError(
            f"evaluate(model) returns a tensor (B,), a number or (score, low, high), all finite; got {measured!r}"
        )
    return row
