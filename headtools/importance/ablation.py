"""Importance by ablation: how much the loss of an example rises without a head.

``_LossIncrease`` is the measure, for any sets of heads: ``ablation`` has one head in each, ``all_but_one`` and
``interaction`` have others.
"""

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
from headtools.heads.ablate import check_replacement, replacement_values
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._coupling import check_per
from headtools.importance._inputs import check_all_ran, each_batch, frozen, select_sites
from headtools.importance._replay import AblatedLosses, HeadSet, losses
from headtools.importance.loss import Loss, of_labels

Batches = Mapping | Iterable[Mapping]


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

    One head is off at a time (Michel et al. 2019, arXiv:1905.10650, section 3.2); a negative value means that the model
    does better without it. ``loss(outputs, batch)`` returns one number per example, (B,), that depends on this example
    alone; without it the labels' cross-entropy in nats is taken (``label_loss``). ``low`` and ``high`` are the ends of
    a 95 % bootstrap interval over examples, where there are five or more. It is paired: both losses are of the same
    example.

    - ``batches``: dicts of the model's arguments, with labels. ``sites``: kinds or layers, ``["encoder"]``.
    - ``replacement``: what takes the place of a head's output, as in ``ablate``. "mean" and "resample" take it from
      ``reference``, or from ``batches`` where none is given; draws start from ``seed`` in every batch.
    - ``checkpoint``: a folder in which the results of every batch are stored; the same call resumes from there.
    - ``progress``: show a progress bar.
    - ``per``: "example", or "batch" for a loss that couples examples, such as a contrastive one, which compares each
      with all others: the rise of the batch's loss (the mean of what ``loss`` returns, or the one number that it
      returns) with a head off for all examples alike. A row is then a batch, all weigh the same, and the bootstrap is
      over batches. The number depends on how the examples were batched.

    Exact, like a loop over heads with ``ablate``, in about half of its time: what comes before a head is computed once
    per batch and stored, so a batch's activations must fit in memory. With a loss of labels, small batches are run as
    several copies at once, each without another head. The model is run without dropout and left unchanged.

    Raises ``ValueError`` for an unknown ``replacement``, a loss of another shape or NaN, a loss of one example that
    depends on other examples (checked in the first batch of several), sites that no batch runs, and a ``checkpoint`` of
    another run; as ``label_loss`` and ``ablate`` do; ``KeyError`` for unknown sites, ``RuntimeError`` for a compiled
    model.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> scores = ablation(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, progress=False)
    >>> scores.name, len(scores), scores.values["encoder", 1].shape
    ('ablation', 8, torch.Size([4]))
    """
    increases = ablation_losses(model, batches, loss, replacement, sites, reference, seed, checkpoint, progress, per)
    name = "ablation" if per == "example" else "ablation per batch"
    return HeadScores.from_rows(increases, name if replacement == "zero" else f"{name} by {replacement}")


def ablation_losses(
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
) -> dict[tuple, Tensor]:
    """Return how much every example's loss rises without each head: {(kind, layer): (n, H) float64 tensor}.

    Examples come in the order of the batches; with ``per="batch"`` rows are batches. ``ablation`` is their mean; here
    are its rows, for their variance, their correlations or a paired comparison. Arguments and errors are those
    of ``ablation``.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> increases = ablation_losses(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, sites=[("encoder", 1)])
    >>> {key: increase.shape for key, increase in increases.items()}
    {('encoder', 1): torch.Size([2, 4])}
    """
    measured_sites = select_sites(model, sites)
    single_heads = [{site: [head]} for site in measured_sites for head in range(site.heads)]
    options = AblationOptions(loss, replacement, reference, seed, checkpoint, progress, per)
    return split_by_site(loss_increase(model, batches, single_heads, options), measured_sites)


@dataclass(frozen=True)
class AblationOptions:
    """How heads are switched off and losses measured; the fields are arguments of ``ablation``."""

    loss: Loss | None = None
    replacement: str = "zero"
    reference: Batches | None = None
    seed: int = 0
    checkpoint: str | Path | None = None
    progress: bool = True
    per: str = "example"


def loss_increase(model: nn.Module, batches: Batches, head_sets: Sequence[HeadSet], options: AblationOptions) -> Tensor:
    """Return how much every example's loss rises without each set of heads: (n, len(head_sets)), float64, on the CPU.

    A set names the heads that are off together, {site: [head, ...]}. With ``per="batch"`` the rows are batches. For a
    batch that does not run a site, the increase is 0 there. Errors are those of ``ablation``.
    """
    check_per(options.per)
    batches = list(each_batch(model, batches))
    measure = _LossIncrease(model, head_sets, options, batches if options.reference is None else options.reference)
    label = "switching heads off" if options.progress else ""
    return run(measure, model, batches, checkpoint=options.checkpoint, label=label, steps=len(head_sets))


@dataclass
class _LossIncrease:
    """Each example's loss without some heads minus its loss with all of them."""

    model: nn.Module
    head_sets: Sequence[HeadSet]
    options: AblationOptions
    reference: Batches

    def __post_init__(self) -> None:
        self.sites = list({site: None for heads in self.head_sets for site in heads})
        check_replacement(self.options.replacement, self.sites)
        if not isinstance(self.reference, Mapping):
            self.reference = list(self.reference)
        self.cache: dict = {}  # whether the model can be replayed, as the first batch has shown
        # The loss of labels couples no examples, and a loss per batch may.
        self.coupling_checked = of_labels(self.options.loss) or self.options.per == "batch"

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the increases."""
        options, replacement = self.options, self.options.replacement
        return {
            "heads": [[[site.label, *heads_off] for site, heads_off in heads.items()] for heads in self.head_sets],
            "loss": function_name(options.loss),
            "replacement": replacement,
            "per": options.per,
            "reference": fingerprint(self.reference) if replacement in ("mean", "resample") else None,
            "seed": options.seed if replacement == "resample" else None,
        }

    def check(self, batch: Mapping) -> Part:
        """Return the losses with all heads, which take one pass."""
        with frozen(self.model):
            return {"losses": losses(self.model, batch, self.options.loss, per=self.options.per)}

    def per_batch(self, batch: Mapping) -> Part:
        """Return the losses with all heads (B,) and their increases (B, head_sets)."""
        options = self.options
        with frozen(self.model), torch.no_grad(), checked_inputs(self.model):
            ablated = AblatedLosses(
                self.model,
                batch,
                options.loss,
                self.sites,
                options.replacement,
                self.replacement_values,
                options.seed,
                self.cache,
                options.per,
            )
            if not self.coupling_checked and len(ablated.full_model) > 1:
                ablated.check_uncoupled()
                self.coupling_checked = True
            increase = torch.zeros(len(ablated.full_model), len(self.head_sets), dtype=torch.float64)
            reached = [{site: off for site, off in heads.items() if ablated.ran(site)} for heads in self.head_sets]
            columns = [column for column, heads in enumerate(reached) if heads]  # elsewhere the increase is 0
            for column, without in zip(columns, ablated.without_each([reached[c] for c in columns]), strict=True):
                increase[:, column] = without - ablated.full_model
                advance()
            advance(len(reached) - len(columns))
        ran = torch.tensor([ablated.ran(site) for site in self.sites])
        return {"losses": ablated.full_model, "increase": increase, "ran": ran}

    def finish(self, parts: Iterable[Part]) -> Tensor:
        """Return the increases of all examples, in their order."""
        parts = list(parts)
        check_all_ran(parts, self.sites, "{} did not run on any batch")
        return torch.cat([part["increase"] for part in parts])

    @cached_property
    def replacement_values(self) -> dict:
        """What takes the place of heads' outputs; computed with the first batch, and not if all batches are stored."""
        return replacement_values(self.model, self.sites, self.options.replacement, self.reference)


def split_by_site(columns: Tensor, sites: Sequence[Site]) -> dict[tuple, Tensor]:
    """Return columns (n, heads of all sites) as {(kind, layer): (n, H)}."""
    parts = columns.split([site.heads for site in sites], dim=1)
    return {site.key: part for site, part in zip(sites, parts, strict=True)}
