"""Importance by ablation: how much the loss of an example rises without a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.loop import run
from headtools._engine.store import Part
from headtools.heads._checks import checked_inputs
from headtools.heads._hooks import edit_outputs
from headtools.heads.ablate import check_replacement, replacement_values
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites as every_site
from headtools.importance._inputs import check_all_ran, each_batch, evaluating, select_sites
from headtools.importance._leave_one_out import HeadSet, LeaveOneOut
from headtools.importance.loss import COUPLED, Loss, each_loss, of_labels, rounding

Batches = Mapping | Iterable[Mapping]
# Relative to an example's own effect; rounding and the scales that quantised layers compute per batch stay below it.
_COUPLING = 0.01


def ablation(
    model: nn.Module,
    batches: Batches,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> HeadScores:
    """Return how much the loss rises without each head: the mean over examples of loss without it minus loss with it.

    One head is off at a time (Michel et al. 2019, arXiv:1905.10650, section 3.2). ``loss(outputs, batch)`` returns one
    number per example, (B,), of this example alone; by default ``label_loss``. ``rows`` are (n, H), in its unit.

    - ``replacement``: what takes the place of a head's output, as in ``ablate``. "mean" and "resample" take it from
      ``reference``, or from ``batches`` where none is given; draws start from ``seed`` in every batch.
    - ``checkpoint``: a folder in which the results of every batch are stored; the same call resumes from there.
    - ``per``: "example", or "batch" for a loss that couples examples: the rise of the batch's loss (the mean of what
      ``loss`` returns, or its one number) with a head off for all of its examples.

    Exact, in about half the time of a loop over heads; a batch's activations must fit in memory.

    Raises ``ValueError`` for an unknown option, a loss that is no number per example or couples examples, NaN, sites
    that no batch runs, a ``checkpoint`` of another run, and as ``label_loss`` and ``ablate`` do; ``KeyError`` for
    unknown sites, ``RuntimeError`` for a compiled model.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> scores = ablation(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, progress=False)
    >>> scores.name, len(scores), scores.values["encoder", 1].shape, scores.rows["encoder", 1].shape
    ('ablation', 8, torch.Size([4]), torch.Size([2, 4]))
    """
    selected = select_sites(model, sites, batches)
    single_heads = [{site: [head]} for site in selected for head in range(site.heads)]
    rises = loss_rises(
        model, batches, single_heads, loss, replacement, reference, seed, checkpoint, progress=progress, per=per
    )
    rows = dict(zip([s.key for s in selected], rises.split([s.heads for s in selected], 1), strict=True))
    name = "ablation" if per == "example" else "ablation per batch"
    return HeadScores.from_rows(rows, name if replacement == "zero" else f"{name} by {replacement}")


def loss_rises(
    model: nn.Module,
    batches: Batches,
    head_sets: Sequence[HeadSet],
    loss: Loss | None = None,
    replacement: str = "zero",
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> Tensor:
    """Return how much every example's loss rises without each set of heads: (n, len(head_sets)), float64, on the CPU.

    A set names the heads that are off together, {site: [head, ...]}. With ``per="batch"`` rows are batches. Where a
    batch does not run a site, the rise is 0. Other arguments and errors are those of ``ablation``.
    """
    if per not in ("example", "batch"):
        raise ValueError(f'per is "example" or "batch", got {per!r}')
    measured = list(dict.fromkeys(site for heads in head_sets for site in heads))
    check_replacement(replacement, measured)
    batches = list(each_batch(model, batches))
    reference = batches if reference is None else [reference] if isinstance(reference, Mapping) else list(reference)
    trust: dict[str, bool] = {}  # whether and how the model can be run from the middle, as the first batch showed
    # The loss of labels couples no examples, and a loss per batch may.
    uncoupled = of_labels(loss) or per == "batch"

    @cache  # with the first batch: not at all where every batch is stored
    def values() -> dict[tuple, Tensor]:
        return replacement_values(model, measured, replacement, reference)

    def per_batch(batch: Mapping) -> Part:
        nonlocal uncoupled
        with evaluating(model), torch.no_grad(), checked_inputs(model):
            one = LeaveOneOut(model, batch, loss, measured, replacement, values(), seed, per, trust)
            if not uncoupled and len(one.full) > 1:
                _check_uncoupled(model, batch, loss, one.full)
                uncoupled = True
            rises = torch.zeros(len(one.full), len(head_sets), dtype=torch.float64)
            reached = [{site: off for site, off in heads.items() if one.ran(site)} for heads in head_sets]
            columns = [column for column, heads in enumerate(reached) if heads]
            for column, losses in zip(columns, one.without([reached[c] for c in columns]), strict=True):
                rises[:, column] = losses - one.full
        return {"losses": one.full, "rises": rises, "ran": torch.tensor([one.ran(site) for site in measured])}

    settings = {
        "model": model,
        "heads": [[[site.label, *off] for site, off in heads.items()] for heads in head_sets],
        "loss": loss,
        "replacement": replacement,
        "per": per,
        "reference": reference if replacement in ("mean", "resample") else None,
        "seed": seed if replacement == "resample" else None,
    }
    label = "switching heads off" if progress else ""
    parts = list(run(per_batch, batches, label=label, checkpoint=checkpoint, settings=settings))
    check_all_ran(parts, measured, "{} did not run on any batch")
    return torch.cat([part["rises"] for part in parts])


@torch.no_grad()
def _check_uncoupled(model: nn.Module, batch: Mapping, loss: Loss, full_model: Tensor) -> None:
    """Raise ``ValueError`` where the losses of examples depend on each other; ``full_model`` are those with all heads.

    What a loss couples cannot be read off its code: all heads are off for every second example, then for the others,
    and the losses of the rest must stay. Where rows are no multiple of the examples, nothing is tested.
    """
    n_examples, full_model = len(full_model), full_model.detach().cpu().double()

    def switched(off: Tensor) -> Callable[[Tensor], Tensor]:
        def edit(z: Tensor) -> Tensor:  # (B * rows of an example, ...)
            if len(z) % n_examples:
                return z
            rows = off.repeat_interleave(len(z) // n_examples).to(z.device)
            return z.masked_fill(rows.view(-1, *[1] * (z.dim() - 1)), 0.0)

        return edit

    every_second = torch.arange(n_examples) % 2 == 1
    for off in (every_second, ~every_second):
        with edit_outputs(model, "a check of the loss", dict.fromkeys(every_site(model), switched(off))):
            change = (each_loss(model, batch, loss, n_examples).cpu().double() - full_model).abs()
        if (change[~off] > rounding(model, full_model) + _COUPLING * change[off].max()).any():
            raise ValueError(COUPLED)
