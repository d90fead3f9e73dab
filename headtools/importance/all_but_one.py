"""All heads of a layer but one: what is lost when a single head remains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.progress import progress as show_progress
from headtools.heads.ablate import ablate, check_replacement, replacement_values
from headtools.heads.scores import HeadScores
from headtools.importance._inputs import frozen, select_sites
from headtools.importance._replay import HeadSet
from headtools.importance.ablation import AblationOptions, Batches, loss_increase, split_by_site
from headtools.importance.loss import Loss

Evaluate = Callable[[nn.Module], Any]  # model -> (B,) tensor, (score, low, high), or a number


def all_but_one(
    model: nn.Module,
    batches: Batches | None = None,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    evaluate: Evaluate | None = None,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> HeadScores:
    """Return what changes when each head is the only one left in its layer, all other layers being complete.

    One layer at a time (Michel et al. 2019, arXiv:1905.10650, section 3.3). With ``batches`` the value is the mean
    increase of the loss; bounds and the other arguments are those of ``ablation``. The head with a layer's lowest value
    is its best one.

    With ``evaluate`` instead, ``evaluate(model)`` is called once with all heads and once for each head, without
    gradients or dropout, and the value is the change of its result: a tensor (B,) of one number per example (the
    difference of the means, with paired bounds), a number, or (score, low, high) as for ``curve`` (no bounds). A layer
    with a single head changes by 0. Selecting the best head and reporting its score on the same examples is optimistic:
    select on some, report on others.

    Raises ``ValueError`` for both or none of ``batches`` and ``evaluate``, and as ``ablation`` does.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> all_but_one(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, progress=False).values["encoder", 1].shape
    torch.Size([4])
    """
    if (batches is None) == (evaluate is None):
        raise ValueError("pass either batches, for the loss, or evaluate=lambda model: ..., for another measure")
    measured_sites = select_sites(model, sites)
    head_sets = [
        {site: [head for head in range(site.heads) if head != remaining]}
        for site in measured_sites
        for remaining in range(site.heads)
    ]
    name = "keep one" if replacement == "zero" else f"keep one, others by {replacement}"
    if evaluate is None:
        nonempty = [index for index, heads in enumerate(head_sets) if any(heads.values())]
        if not nonempty:
            raise ValueError("every layer has one head only: there is nothing to switch off")
        options = AblationOptions(loss, replacement, reference, seed, checkpoint, progress, per)
        measured = loss_increase(model, batches, [head_sets[index] for index in nonempty], options)
        increase = measured.new_zeros(len(measured), len(head_sets))
        # In a layer of one head nothing is switched off, and the increase is 0.
        increase[:, nonempty] = measured
        return HeadScores.from_rows(split_by_site(increase, measured_sites), name)
    if checkpoint is not None:
        raise ValueError("a checkpoint stores losses of batches, and evaluate has none: leave checkpoint out")
    if replacement in ("mean", "resample") and reference is None:
        raise ValueError(
            f'replacement="{replacement}" needs data: all_but_one(..., replacement="{replacement}", reference=batches)'
        )
    check_replacement(replacement, measured_sites)

    def evaluate_without(heads: HeadSet) -> Tensor:
        with ablate(model, heads, replacement, values, seed):
            return _as_row(evaluate(model))

    with frozen(model), torch.no_grad():
        values = replacement_values(model, measured_sites, replacement, reference)
        full_model = _as_row(evaluate(model))
        steps = show_progress(head_sets, "keeping one head") if progress else head_sets
        changes = [evaluate_without(heads) - full_model for heads in steps]
    return HeadScores.from_rows(split_by_site(torch.stack(changes, 1), measured_sites), name)


def _as_row(result: Any) -> Tensor:
    """Return the result of an evaluation as one number per example, or as a single number: (B,) or (1,), float64."""
    if isinstance(result, tuple) and len(result) == 3:
        result = result[0]
    row = torch.as_tensor(result).detach().cpu().double()
    row = row[None] if row.dim() == 0 else row
    if row.dim() != 1 or not len(row) or not row.isfinite().all():
        raise ValueError(
            f"evaluate(model) must return a tensor (B,), a number or (score, low, high), all finite; got {result!r}"
        )
    return row
