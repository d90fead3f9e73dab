"""Importance by gradient: how much the loss of an example would change with a head's gate.

The gate g of a head multiplies its output z, so dL/dg at g = 1 is the product <z, dL/dz>, summed over tokens and
features (Michel et al. 2019, arXiv:1905.10650, eq. 2 and 3).

Requirements:

1. One forward and one backward pass per batch, for all examples and heads: the losses are summed, and since the loss of
   an example depends only on its own rows of z, each row of dL/dz is the example's own. For a user's loss this is
   checked.
2. No more than that is computed: weights are frozen and the backward pass ends at the lowest z, so that only the
   activations above it are differentiated. That is two thirds of a training step.
3. No gate is put into the model, which would cost a multiplication in each layer: a hook reads z and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import function_name, run
from headtools._engine.store import Part
from headtools.heads._checks import check_has_backward
from headtools.heads._hooks import edit_outputs
from headtools.heads._tokens import real_tokens
from headtools.heads.intervals import linearised_direction, linearised_ratio
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._coupling import check_per, check_uncoupled_gradients, trial_weights
from headtools.importance._inputs import check_all_ran, collect_products, each_batch, frozen, select_sites
from headtools.importance.loss import Loss, each_loss, of_labels

PER = ("example", "position", "batch")


def gradient(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    loss: Loss | None = None,
    per: str = "example",
    sites: Iterable[str | tuple] | str | None = None,
    normalise: str | None = None,
    signed: bool = False,
    checkpoint: str | Path | None = None,
) -> HeadScores:
    """Return how strongly the loss depends on each head: the mean over examples of abs(dL/dgate), at gate 1.

    ``batches``: dicts of the model's arguments, with labels. ``loss(outputs, batch)`` returns one number per
    example, (B,), that depends on this example alone; without it the labels' cross-entropy is taken (``label_loss``).
    ``sites`` limits the measure to kinds or layers: ``["encoder"]``, ``[("cross", 3)]``. Values are in the unit of the
    loss. ``low`` and ``high`` are the ends of a 95 % bootstrap interval over examples, where there are five or more.

    ``per`` says what the absolute value is taken of:

    - ``"example"``: the slope of one example's loss (Michel et al. 2019, arXiv:1905.10650, eq. 2);
    - ``"position"``: the contribution of one token's output to it; the mean over the tokens that are not padding, as in
      the authors' code. The sum over an example's tokens is never smaller than the slope of its loss, and heads rank
      differently;
    - ``"batch"``: the slope of a batch's loss (the mean of what ``loss`` returns, or the one number that it returns) by
      gates of all its examples at once; the mean over batches, with a bootstrap over batches. For losses that couple
      examples, such as contrastive ones, this is the only choice. For others it is a common mistake, provided to show
      it: slopes of different sign cancel, so the number depends on how the examples were batched.

    ``signed`` takes no absolute value: a positive mean slope says that the loss would fall with less of the head.
    ``normalise="layer"`` divides by the root of the sum of squares of the layer's heads (their section 4.1).
    ``checkpoint`` names a folder in which the slopes of every batch are stored; the same call resumes from there.
    Inside ``sharded()`` several processes share the batches.

    The model is run without dropout and is left bit for bit as it was. Inside ``ablate`` a head that is off scores 0.

    Raises ``ValueError`` for an unknown option, a loss of another shape or that depends on no head, a loss of one
    example that depends on other examples (checked in the first batch of several), rows that are not examples, NaN, a
    ``checkpoint`` of another run, and as ``label_loss`` does; ``KeyError`` for unknown sites, ``RuntimeError`` for a
    compiled model.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> scores = gradient(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids})
    >>> len(scores), scores.values["encoder", 1].shape, bool((scores.flat() > 0).all())
    (8, torch.Size([4]), True)
    """
    if per not in PER or normalise not in (None, "layer"):
        raise ValueError(f'per is one of {PER} and normalise None or "layer"; got {per!r} and {normalise!r}')
    if signed and per != "example":
        raise ValueError(f'without absolute values all means are one: write signed=True without per="{per}"')
    name = ("signed " if signed else "") + "gradient" + ("" if per == "example" else f" per {per}")
    measure = _GateGradients(model, select_sites(model, sites), loss, per)
    slopes, counts = run(measure, model, each_batch(model, batches), checkpoint=checkpoint)
    rows = slopes if signed else {key: slope.abs() for key, slope in slopes.items()}
    if per == "position":
        rows = {key: linearised_ratio(row, counts[key]) for key, row in rows.items()}
    if normalise:
        rows = {key: linearised_direction(row) for key, row in rows.items()}
    return HeadScores.from_rows(
        rows, name + (", layer-normalised" if normalise else ""), minimum=None if signed else 0.0
    )


def gate_gradients(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    loss: Loss | None = None,
    sites: Iterable[str | tuple] | str | None = None,
    checkpoint: str | Path | None = None,
    per: str = "example",
) -> dict[tuple, Tensor]:
    """Return dL/dgate of every example and head, with its sign: {(kind, layer): (n, H) tensor}, on the CPU.

    Examples come in the order of the batches; with ``per="batch"`` rows are batches. ``gradient`` is the mean of their
    absolute values; here are its rows, for their variance, their correlations or a paired comparison. Arguments and
    errors are those of ``gradient``.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> {key: slope.shape for key, slope in gate_gradients(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids},
    ...                                                    sites=[("encoder", 1)]).items()}
    {('encoder', 1): torch.Size([2, 4])}
    """
    check_per(per)
    measure = _GateGradients(model, select_sites(model, sites), loss, per)
    slopes, _ = run(measure, model, each_batch(model, batches), checkpoint=checkpoint)
    return slopes


@dataclass
class _GateGradients:
    """The slope of each loss by each head's gate, dL/dgate = <z, dL/dz> at gate 1 (Michel et al. 2019, eq. 2 and 3).

    Per position, the absolute values of the tokens that are not padding are summed, and ``tokens`` is their number;
    otherwise slopes keep their sign and ``tokens`` is 1. Per batch there is one row.
    """

    model: nn.Module
    sites: Sequence[Site]
    loss: Loss | None
    per: str

    def __post_init__(self) -> None:
        # The loss of labels couples no examples: one pass gives each of them its own, and their mean is the batch's.
        self.one_gate_per_batch = self.per == "batch" and not of_labels(self.loss)
        self.coupling_checked = of_labels(self.loss) or self.per == "batch"

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the slopes."""
        return {"sites": [site.label for site in self.sites], "loss": function_name(self.loss), "per": self.per}

    def per_batch(self, batch: dict) -> Part:
        """Return the losses, and of each site slopes (B, H) and tokens (B,)."""
        per = "batch" if self.one_gate_per_batch else "position" if self.per == "position" else "example"
        products, losses = _products(self.model, batch, self.loss, self.sites, per, not self.coupling_checked)
        self.coupling_checked = self.coupling_checked or len(losses) > 1
        if self.one_gate_per_batch:  # the slope by a gate that all examples share is the sum of theirs
            products = {key: product.sum(0, keepdim=True) for key, product in products.items()}
        part = {"losses": losses, "ran": torch.tensor([site.key in products for site in self.sites])}
        for index, site in enumerate(self.sites):
            product, by_token = products.get(site.key), per == "position"
            slope, tokens = _slopes_of_site(self.model, site, batch, product, len(losses), by_token)
            if self.per == "batch":
                slope, tokens = slope.mean(0, keepdim=True), tokens[:1]
            part |= {f"slope|{index}": slope, f"tokens|{index}": tokens}
        return part

    def finish(self, parts: Iterable[Part]) -> tuple[dict[tuple, Tensor], dict[tuple, Tensor]]:
        """Return {key: slopes (n, H)} and {key: tokens (n,)}, in the order of the examples."""
        parts = list(parts)
        check_all_ran(parts, self.sites, "the loss does not depend on {} in any batch (check the loss and the batches)")
        slopes, tokens = (
            {site.key: torch.cat([part[f"{name}|{index}"] for part in parts]) for index, site in enumerate(self.sites)}
            for name in ("slope", "tokens")
        )
        return slopes, tokens


def _slopes_of_site(
    model: nn.Module, site: Site, batch: dict, product: Tensor | None, n_losses: int, by_token: bool
) -> tuple[Tensor, Tensor]:
    """Return slopes (B, H) and the number of tokens in each, (B,), on the CPU; zeros where no gradient arrived."""
    if product is None:  # the batch has no input for this part of the model
        return torch.zeros(n_losses, site.heads), torch.full((n_losses,), 0.0 if by_token else 1.0)
    if len(product) != n_losses:
        raise ValueError(
            f"{site.label} ran with {len(product)} rows for {n_losses} losses, so its rows are not the examples: "
            "return one loss per example, or leave the site out with sites=[...]"
        )
    if not product.isfinite().all():
        raise ValueError(f"the gradient at {site.label} holds NaN or infinity; is the loss finite?")
    tokens = torch.ones(n_losses)
    if by_token:
        real = real_tokens(model, site, batch, product.shape[:2]).to(product.device)
        product, tokens = (product.abs() * real[..., None]).sum(1), real.sum(1)
    return product.cpu(), tokens.cpu()


def _products(
    model: nn.Module, batch: dict, loss: Loss | None, sites: Sequence[Site], per: str, check_coupling: bool
) -> tuple[dict[tuple, Tensor], Tensor]:
    """Return <z, dL/dz> of one batch at each site, (B, H) or by token (B, T, H), and the losses (B,), on the CPU.

    ``check_coupling`` makes sure that each example's loss depends on its own rows only.
    """
    check_has_backward(model, "gradient()")
    products: dict[tuple, Tensor] = {}
    outputs: list[tuple[Site, Tensor]] = []  # every z that ran, in order
    edits = {site: _tap(site, products, outputs, per == "position") for site in sites}
    with frozen(model), torch.inference_mode(False), torch.enable_grad(), edit_outputs(model, "gradient()", edits):
        losses = each_loss(model, batch, loss, per=per)
        if not losses.requires_grad or not outputs:
            raise ValueError(
                "the loss does not depend on any selected head: compute it from the outputs, with gradients on"
            )
        weighted = _weighted_gradients(losses, outputs) if check_coupling else {}
        products.clear()  # what the hooks kept of the weighted pass
        all_z = [z for _, z in outputs]
        # Of the sum of the losses: each row of a gradient is its example's own.
        gradients = torch.autograd.grad(losses.sum(), all_z, allow_unused=True)
        for z, gradient_of_z in zip(all_z, gradients, strict=True):
            if id(z) in weighted:
                check_uncoupled_gradients(gradient_of_z, weighted[id(z)], trial_weights(losses))
        return products, losses.detach().cpu().double()


def _weighted_gradients(losses: Tensor, outputs: list[tuple[Site, Tensor]]) -> dict[int, Tensor]:
    """Return gradients of the weighted losses by the last z of every stack, {id(z): gradient}; the graph stays.

    The way from there to the loss is short, so this pass is cheap. Where the loss depends on none of them, the last z
    of every kind is taken.
    """
    total = (losses * trial_weights(losses)).sum()
    for part_of_model in (lambda site: site.stack, lambda site: (site.stack, site.kind)):
        last = list({part_of_model(site): z for site, z in outputs}.values())
        gradients = torch.autograd.grad(total, last, retain_graph=True, allow_unused=True)
        by_id = {id(z): gradient for z, gradient in zip(last, gradients, strict=True) if gradient is not None}
        if by_id:
            break
    return by_id


def _tap(
    site: Site, products: dict[tuple, Tensor], outputs: list[tuple[Site, Tensor]], by_token: bool
) -> Callable[[Tensor], Tensor]:
    """Return z as it is; <z, dL/dz> is added to ``products`` when the backward pass arrives.

    Every z is added to ``outputs``, where the pass may end. It ends there also where something below needs a gradient,
    as embeddings of a model prepared for checkpointing do.
    """

    def tap(z: Tensor) -> Tensor:
        if not z.requires_grad:  # nothing below is differentiated: the backward pass ends at this z
            z = z.detach().requires_grad_()
        outputs.append((site, z))
        collect_products(site, z, products, by_token)
        return z

    return tap
