"""Importance by gradient: how much the loss of an example would change with a head's gate.

The gate of a head multiplies its output z, so the slope of the loss at gate 1 is the product <z, dL/dz>, summed over
tokens. One backward pass of a batch gives it for every example and every head. Weights are frozen, and the pass ends
at the lowest z, so that nothing is differentiated but the activations above it: two thirds of an ordinary training
step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.run import function_name
from headtools._engine.run import run as run_measure
from headtools._engine.store import Part
from headtools._renamed import old_arguments
from headtools.heads._hooks import hook_input, intervention
from headtools.heads._tokens import real_tokens
from headtools.heads._weights import check_has_backward
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._coupling import check_per, check_uncoupled_gradients, trial_weights
from headtools.importance._inputs import check_all_ran, each_batch, frozen, select_sites
from headtools.importance._intervals import linearised_direction, linearised_ratio, with_intervals
from headtools.importance.loss import Loss, each_loss, of_labels

PER = ("example", "position", "batch")


@old_arguments(run="checkpoint", over="per")
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
    """Return how strongly the loss leans on each head: the mean over examples of abs(dL/dgate), at gate 1.

    ``batches``: dicts of what the model takes, labels included. ``loss(outputs, batch)`` returns one number per
    example, (B,), that depends on this example alone; without it the labels' cross-entropy is taken (``label_loss``).
    ``sites`` limits the measure to kinds or layers: ``["encoder"]``, ``[("cross", 3)]``. Values are in the unit of the
    loss. ``low`` and ``high`` bound each by 95 % bootstrap over examples, where there are five or more.

    ``per`` says what the absolute value is taken of:

    - ``"example"``: the slope of one example's loss (Michel et al. 2019, arXiv:1905.10650, eq. 2);
    - ``"position"``: what one token's output adds to it; their mean over the tokens that are no padding. So the
      authors' code has it. Never smaller than the sum within an example, and another order of heads;
    - ``"batch"``: the slope of a batch's loss (the mean of what ``loss`` returns, or the one number that it returns) by
      gates of all its examples at once; the mean over batches, bounded by bootstrap over batches. For losses that
      couple examples, such as contrastive ones, it is what there is. For others it is a common mistake, here to be
      shown: slopes of different sign cancel, so the number depends on how the examples were put together.

    ``signed`` takes no absolute value: a positive mean slope says that the loss would fall with less of the head.
    ``normalise="layer"`` divides by the root of the sum of squares of the layer's heads (their section 4.1).
    ``checkpoint`` names a folder in which the slopes of every batch are kept; the same call goes on from there. Inside
    ``sharded()`` several processes share the batches.

    The model is run without dropout and is left bit for bit as it was. Inside ``ablate`` a head that is off scores 0.

    Raises ``ValueError`` for an unknown option, a loss of another shape or that depends on no head, one of an example
    that depends on other examples (looked for once, in the first batch of several), rows that are not examples, NaN, a
    ``checkpoint`` of something else, and as ``label_loss`` does; ``KeyError`` for unknown sites, ``RuntimeError`` for a
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
    slopes, counts = _slopes(model, batches, loss, sites, per, checkpoint)
    rows = slopes if signed else {key: slope.abs() for key, slope in slopes.items()}
    if per == "position":
        rows = {key: linearised_ratio(row, counts[key]) for key, row in rows.items()}
    if normalise:
        rows = {key: linearised_direction(row) for key, row in rows.items()}
    return with_intervals(rows, name + (", layer-normalised" if normalise else ""), minimum=None if signed else 0.0)


@old_arguments(run="checkpoint", over="per")
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
    absolute values; here they are for those who want their spread, their correlations or a paired comparison. Arguments
    and errors are those of ``gradient``.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> {key: slope.shape for key, slope in gate_gradients(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids},
    ...                                                    sites=[("encoder", 1)]).items()}
    {('encoder', 1): torch.Size([2, 4])}
    """
    check_per(per)
    return _slopes(model, batches, loss, sites, per, checkpoint)[0]


def _slopes(
    model: nn.Module, batches: Mapping | Iterable[Mapping], loss: Loss | None, only: object, per: str,
    checkpoint: str | Path | None,
) -> tuple[dict[tuple, Tensor], dict[tuple, Tensor]]:  # fmt: skip
    measure = _Slopes(model, select_sites(model, only), loss, per)
    return run_measure(measure, model, each_batch(model, batches), checkpoint=checkpoint)


@dataclass
class _Slopes:
    """The slope of each loss by each head's gate, dL/dgate = <z, dL/dz> at gate 1 (Michel et al. 2019, eq. 2 and 3).

    Over positions, absolute values of the tokens that are no padding are added, and ``tokens`` says how many those are;
    otherwise slopes keep their sign and tokens count as one. Over the batch there is one row.
    """

    model: nn.Module
    sites: Sequence[Site]
    loss: Loss | None
    per: str

    def __post_init__(self) -> None:
        # The loss of labels couples no examples: one pass gives each of them its own, and their mean is the batch's.
        self.one_row = self.per == "batch" and not of_labels(self.loss)
        self.checked = of_labels(self.loss) or self.per == "batch"

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines the slopes."""
        return {"sites": [site.label for site in self.sites], "loss": function_name(self.loss), "over": self.per}

    def per_batch(self, batch: dict) -> Part:
        """Return the losses, and of each site slopes (B, H) and tokens (B,)."""
        per = "batch" if self.one_row else "position" if self.per == "position" else "example"
        products, losses = _products(self.model, batch, self.loss, self.sites, per, not self.checked)
        self.checked = self.checked or len(losses) > 1
        if self.one_row:  # a gate of all examples
            products = {key: product.sum(0, keepdim=True) for key, product in products.items()}
        part = {"losses": losses, "ran": torch.tensor([site.key in products for site in self.sites])}
        for place, site in enumerate(self.sites):
            slope, tokens = _of_site(self.model, site, batch, products.get(site.key), len(losses), per == "position")
            if self.per == "batch":
                slope, tokens = slope.mean(0, keepdim=True), tokens[:1]
            part |= {f"slope|{place}": slope, f"tokens|{place}": tokens}
        return part

    def finish(self, parts: Iterable[Part]) -> tuple[dict[tuple, Tensor], dict[tuple, Tensor]]:
        """Return {key: slopes (n, H)} and {key: tokens (n,)}, in the order of the examples."""
        parts = list(parts)
        check_all_ran(parts, self.sites, "the loss does not depend on {} in any batch (check the loss and the batches)")
        slopes, tokens = ({site.key: torch.cat([part[f"{name}|{place}"] for part in parts])
                           for place, site in enumerate(self.sites)} for name in ("slope", "tokens"))  # fmt: skip
        return slopes, tokens


def _of_site(
    model: nn.Module, site: Site, batch: dict, product: Tensor | None, size: int, by_token: bool
) -> tuple[Tensor, Tensor]:
    """Return slopes (B, H) and how many tokens each is a sum of, (B,), on the CPU; zeros where no gradient came by."""
    if product is None:  # the batch has nothing for this part of the model
        return torch.zeros(size, site.heads), torch.full((size,), 0.0 if by_token else 1.0)
    if len(product) != size:
        raise ValueError(
            f"{site.label} ran with {len(product)} rows for {size} losses, so its rows are not the examples: "
            "return one loss per example, or leave the site out with sites=[...]"
        )
    if not product.isfinite().all():
        raise ValueError(f"the gradient at {site.label} holds NaN or infinity; is the loss finite?")
    tokens = torch.ones(size)
    if by_token:
        real = real_tokens(model, site, batch, product.shape[:2]).to(product.device)
        product, tokens = (product.abs() * real[..., None]).sum(1), real.sum(1)
    return product.cpu(), tokens.cpu()


def _products(
    model: nn.Module, batch: dict, loss: Loss | None, chosen: list[Site], per: str, check: bool
) -> tuple[dict[tuple, Tensor], Tensor]:
    """Return <z, dL/dz> of one batch at each site, (B, H) or by token (B, T, H), and the losses (B,), on the CPU.

    ``check`` makes sure that each example's loss is its own.
    """
    check_has_backward(model, "gradient()")
    products: dict[tuple, Tensor] = {}
    tapped: list[tuple[Site, Tensor]] = []
    with ExitStack() as stack:
        for context in (frozen(model), torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        stack.enter_context(intervention(model, "gradient()", chosen))
        for site in chosen:
            stack.callback(hook_input(site.out, _tap(site, products, tapped, per == "position")).remove)
        each = each_loss(model, batch, loss, per=per)
        if not each.requires_grad or not tapped:
            raise ValueError(
                "the loss does not depend on any chosen head: compute it from the outputs, with gradients on"
            )
        weighted = _weighted(each, tapped) if check else {}
        products.clear()  # of the pass that looked
        every = [z for _, z in tapped]
        found = torch.autograd.grad(each.sum(), every, allow_unused=True)  # of the sum: each example keeps its own
        for z, slope in zip(every, found, strict=True):
            if id(z) in weighted:
                check_uncoupled_gradients(slope, weighted[id(z)], trial_weights(each))
        return products, each.detach().cpu().double()


def _weighted(each: Tensor, tapped: list[tuple[Site, Tensor]]) -> dict[int, Tensor]:
    """Return gradients of the weighted losses by the last z of every stack, {id(z): gradient}; the graph stays.

    From there it is not far to the loss. Where that does not depend on any of them, those of every kind are taken.
    """
    total = (each * trial_weights(each)).sum()
    for part in (lambda site: site.stack, lambda site: (site.stack, site.kind)):
        last = list({part(site): z for site, z in tapped}.values())
        slopes = torch.autograd.grad(total, last, retain_graph=True, allow_unused=True)
        found = {id(z): slope for z, slope in zip(last, slopes, strict=True) if slope is not None}
        if found:
            break
    return found


def _tap(site: Site, products: dict[tuple, Tensor], tapped: list[tuple[Site, Tensor]], by_token: bool) -> Callable:
    """Return a hook for the output projection that keeps <z, dL/dz> when the backward pass comes by.

    Every z goes to ``tapped``, where the pass may end: whether something below needs a gradient (embeddings of a model
    that is prepared for checkpointing do) makes no difference.
    """

    def hook(read: Tensor) -> Tensor:
        z = site.split(read)
        if not z.requires_grad:
            z = z.detach().requires_grad_()
        tapped.append((site, z))
        value = z.detach()  # not z itself: a tensor whose hook holds it would never be freed

        def keep(slope: Tensor) -> None:
            wide = torch.promote_types(value.dtype, torch.float32)
            product = (value.to(wide) * slope.to(wide)).sum(-1)
            if not by_token:
                product = product.flatten(1, -2).sum(1)
            before = products.get(site.key)  # of another call: a shared layer has one gate for all its calls
            products[site.key] = product if before is None else before + product

        z.register_hook(keep)
        return site.join(z)

    return hook
