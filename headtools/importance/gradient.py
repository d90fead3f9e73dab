"""Importance by gradient: how much the loss of an example would change with a head's gate.

The gate g of a head multiplies its output z, so dL/dg at g = 1 is the product <z, dL/dz>, summed over tokens and
features (Michel et al. 2019, arXiv:1905.10650, eq. 2 and 3).

1. One forward and one backward pass per batch, for all examples and heads: the losses are summed, and since the loss of
   an example depends only on its own rows of z, each row of dL/dz is the example's own. For a user's loss this is
   checked, by one more backward pass.
2. Weights are frozen and the backward pass ends at the lowest z, so that only the activations above it are
   differentiated: two thirds of a training step. No gate is put into the model: a hook reads z and its gradient.
3. A saturated softmax lets no gradient pass (``_softmax``): a warning names the heads whose slope is lost there, as the
   first example shows, and ``softmax="secant"`` is a slope that is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from headtools._engine.loop import run
from headtools._engine.store import Part
from headtools.heads._checks import check_has_backward
from headtools.heads._hooks import edit_outputs
from headtools.heads._tokens import real_tokens
from headtools.heads.intervals import linearised_direction, linearised_ratio
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.heads.sites import sites as every_site
from headtools.importance._inputs import check_all_ran, collect_products, each_batch, evaluating, select_sites
from headtools.importance._softmax import attention_softmax
from headtools.importance.loss import COUPLED, Loss, each_loss, of_labels

PER = ("example", "position", "batch")
MOSTLY = 0.9  # of an example's queries: a head that is saturated at fewer still learns from the others
LOST = 1e-3  # a slope so much smaller than the largest is one that a saturated softmax may have taken


def gradient(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    loss: Loss | None = None,
    per: str = "example",
    sites: Iterable[str | tuple] | str | None = None,
    normalise: str | None = None,
    signed: bool = False,
    softmax: str = "slope",
) -> HeadScores:
    """Return how strongly the loss depends on each head: the mean over examples of abs(dL/dgate), at gate 1.

    ``batches``: dicts of the model's arguments, with labels. ``loss(outputs, batch)`` returns one number per example,
    (B,), of this example alone; by default ``label_loss``. ``rows`` are (n, H), in the unit of the loss.

    - ``per``: what has the absolute value taken: the slope of an "example"'s loss (Michel et al. 2019,
      arXiv:1905.10650, eq. 2), a "position"'s part of it (their code; the mean over real tokens), or the slope of a
      "batch"'s loss, for losses that couple examples; for others slopes of different sign cancel.
    - ``signed``: no absolute value; a positive mean says that the loss would fall with less of the head.
    - ``normalise="layer"``: divided by the root of the sum of squares of the layer's heads (their section 4.1).
    - ``softmax="secant"``: attention's softmax by its change from uniform attention, in place of its slope, which is 0
      where a head looks at one key only, so that heads which write its queries and keys are seen, too.

    Raises ``ValueError`` for an unknown option, a loss that is no number per example, couples examples or depends on no
    head, NaN, and as ``label_loss`` does; ``KeyError`` for unknown sites, ``RuntimeError`` for a compiled model.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> scores = gradient(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids})
    >>> len(scores), scores.values["encoder", 1].shape, bool((scores.flat() > 0).all())
    (8, torch.Size([4]), True)
    """
    if per not in PER or normalise not in (None, "layer"):
        raise ValueError(f'per is one of {PER} and normalise None or "layer"; got {per!r} and {normalise!r}')
    if softmax not in ("slope", "secant"):
        raise ValueError(f'softmax is "slope" or "secant"; got {softmax!r}')
    if signed and per == "position":
        raise ValueError(
            "the signed slopes of positions add up to that of their example: write signed=True without per="
        )
    check_has_backward(model, "gradient()")
    selected = select_sites(model, sites, batches)
    # The loss of labels couples no examples: one pass gives each of them its own, and their mean is the batch's.
    uncoupled = of_labels(loss) or per == "batch"
    one_number = per == "batch" and not of_labels(loss)
    attending = list(every_site(model))  # where a softmax is, whether or not it is measured
    replace = softmax == "secant"
    saturated: Mapping | None = None  # {key: the softmax watched there}, of the first batch

    def per_batch(batch: dict) -> Part:
        nonlocal uncoupled, saturated
        products: dict[tuple, Tensor] = {}  # <z, dL/dz>, (B, H) or by position (B, T, H), of sites that ran
        outputs: list[Tensor] = []  # every z that ran, at which the backward pass may end
        last: dict[str, Tensor] = {}  # of each stack

        def tap(site: Site, z: Tensor) -> Tensor:
            if z.dim() < 4:
                raise ValueError(
                    f"the gradient at {site.label} would not be the head's: the model puts all examples into one row; "
                    "ablation(model, batches) needs no gradient, or leave the site out with sites=[...]"
                )
            if not z.requires_grad:  # nothing below is differentiated: the backward pass ends at this z
                z = z.detach().requires_grad_()
            outputs.append(z)
            last[site.stack] = z
            collect_products(site, z, products, by_token=per == "position")
            return z

        with (
            evaluating(model),
            torch.inference_mode(False),
            torch.enable_grad(),
            edit_outputs(model, "gradient()", {site: partial(tap, site) for site in selected}),
            # the secant in every batch; a look at what is saturated in the first one
            attention_softmax(attending if replace or saturated is None else (), replace) as watched,
        ):
            losses = each_loss(model, batch, loss, per="batch" if one_number else "example")
            if not losses.requires_grad or not outputs:
                raise ValueError(
                    "the loss does not depend on any selected head: compute it from the outputs, with gradients on"
                )
            check, halves = not uncoupled and len(losses) > 1, {}
            # The way back from the loss to the last heads is short, and to all heads where it depends on others only.
            for some in (list(last.values()), outputs) if check else ():
                found = torch.autograd.grad(losses[::2].sum(), some, retain_graph=True, allow_unused=True)
                halves = {id(z): g for z, g in zip(some, found, strict=True) if g is not None}
                if halves:
                    break
            products.clear()  # what the hooks kept of that
            # The gradient by every z, rather than .backward(): embeddings that need a gradient get none.
            gradients = torch.autograd.grad(losses.sum(), outputs, allow_unused=True)
            for z, of_all in zip(outputs, gradients, strict=True):
                if id(z) in halves and len(z) == len(losses):
                    _check_uncoupled(of_all, halves[id(z)])
        slopes, tokens = [], []
        for site in selected:
            slope = torch.zeros(len(losses), site.heads)  # where the batch has no input for this part of the model
            n_tokens = torch.zeros(len(losses))
            if site.key in products:
                # a gate that all examples share has the sum of their slopes
                product = products[site.key].sum(0, keepdim=True) if one_number else products[site.key]
                slope, n_tokens = _of_examples(model, site, batch, product, len(losses))
            slopes.append((slope.mean(0, keepdim=True) if per == "batch" else slope).cpu())
            tokens.append(n_tokens.cpu())
        uncoupled = uncoupled or check
        saturated = watched if saturated is None else saturated
        ran = torch.tensor([site.key in products for site in selected])
        return {"ran": ran, "slopes": torch.cat(slopes, 1), "tokens": torch.stack(tokens, 1)}

    parts, rows = list(run(per_batch, each_batch(model, batches))), {}
    check_all_ran(parts, selected, "the loss does not depend on {} in any batch (check the loss and the batches)")
    slopes, tokens = (torch.cat([part[name] for part in parts]) for name in ("slopes", "tokens"))  # (n, all heads)
    by_site = slopes.split([site.heads for site in selected], 1)
    for site, row, n_tokens in zip(selected, by_site, tokens.unbind(1), strict=True):
        row = row.contiguous() if signed else row.abs()
        row = linearised_ratio(row, n_tokens) if per == "position" else row
        rows[site.key] = linearised_direction(row) if normalise else row
    if not replace and saturated:
        _warn_of_saturation(attending, rows, saturated)
    name = ["signed"] if signed else []
    name += ["gradient by secant" if replace else "gradient"]
    name += [] if per == "example" else [f"per {per}"]
    name = " ".join(name) + (", layer-normalised" if normalise else "")
    return HeadScores.from_rows(rows, name, minimum=None if signed else 0.0)


def _warn_of_saturation(attending: Sequence[Site], rows: Mapping[tuple, Tensor], saturated: Mapping) -> None:
    """Name the heads with a slope near 0 below heads whose softmax lets nothing pass."""
    shares = [(s, saturated[s.key].saturated) for s in attending if s.key in saturated]  # of queries, (H,), or None
    blind = [(site, share > MOSTLY) for site, share in shares if share is not None and (share > MOSTLY).any()]
    means = {key: row.abs().mean(0) for key, row in rows.items()}  # (H,)
    largest = max(mean.max() for mean in means.values())
    lost = [
        f"{site.label}.{head}"
        for place, site in enumerate(attending)
        if site.key in means and blind and attending.index(blind[-1][0]) > place
        for head in (means[site.key] < LOST * largest).nonzero().flatten().tolist()
    ]
    if lost:
        names = [f"{site.label}.{head}" for site, heads in blind for head in heads.nonzero().flatten().tolist()]
        warnings.warn(
            f"the softmax of {', '.join(names)} is saturated, so that no gradient passes to the heads that write its "
            f"queries and keys: the small slopes of {', '.join(lost)} say nothing about their worth. Write "
            'softmax="secant", or measure with ablation()',
            stacklevel=3,
        )


def _check_uncoupled(of_all: Tensor, of_half: Tensor) -> None:
    """Raise ``ValueError`` where the gradient of every second loss by z (B, ...) is not that of its own rows alone."""
    own = of_all.clone()
    own[1::2] = 0
    if ((of_half - own).abs() > 0.01 * of_all.abs().max()).any():
        raise ValueError(COUPLED)


def _of_examples(model: nn.Module, site: Site, batch: dict, product: Tensor, n_losses: int) -> tuple[Tensor, Tensor]:
    """Return slopes (B, H), absolute and summed over real tokens where they come by position, and their number (B,)."""
    if len(product) != n_losses:
        raise ValueError(
            f"{site.label} ran with {len(product)} rows for {n_losses} losses, so its rows are not the examples: "
            'return one loss per example, write per="batch", or leave the site out with sites=[...]'
        )
    if not product.isfinite().all():
        raise ValueError(f"the gradient at {site.label} holds NaN or infinity; is the loss finite?")
    if product.dim() == 2:
        return product, product.new_ones(n_losses)
    real = real_tokens(model, site, batch, product.shape[:2]).to(product.device)
    return (product.abs() * real[..., None]).sum(1), real.sum(1)
