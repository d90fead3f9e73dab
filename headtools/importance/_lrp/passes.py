"""The passes of relevance over one batch: forward under the rules, then backward once for every step to explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_has_backward
from headtools.heads._devices import to_float64
from headtools.heads._hooks import edit_outputs
from headtools.heads._tokens import model_inputs
from headtools.heads.sites import Site, sites
from headtools.importance._inputs import collect_products, frozen
from headtools.importance._lrp.operations import active
from headtools.importance._lrp.rule_set import Rules
from headtools.importance._lrp.rules import rules
from headtools.importance._lrp.targets import Score, Targets, find_targets


def relevance_of_heads(
    model: nn.Module,
    batch: dict,
    score: Score | None,
    name_or_rules: str | Rules,
    measured_sites: Sequence[Site],
) -> tuple[Targets, list[tuple[dict[tuple, Tensor], Tensor]]]:
    """Return what is explained and, for each step, {key: R (B, H)} with the relevance of (inputs, constants).

    Each backward pass starts from the sign of the explained numbers, so that conservation can be summed over examples
    without cancelling. Rules are linear in the relevance that they pass on, so one pass serves all examples: the R of
    an example comes from its own number only.
    """
    check_has_backward(model, "relevance()")
    products: dict[tuple, Tensor] = {}
    inputs = {name: _leaf(name, value) for name, value in model_inputs(model, batch).items()}
    edits = {site: _tap(site, products) for site in measured_sites}
    with frozen(model), torch.inference_mode(False), torch.enable_grad(), edit_outputs(model, "relevance()", edits):
        with rules(name_or_rules, model, position_tables(model)) as propagation:
            outputs = model(**inputs)
            propagation.in_score = True
            targets = find_targets(model, outputs, batch, score)
        leaves = [*propagation.inputs, *(value for value in inputs.values() if active(value))]
        ends = leaves + propagation.constants
        sign = torch.where(targets.values.detach() < 0, -1.0, 1.0).to(targets.values.dtype)
        steps = []
        for step in range(targets.values.shape[1]):
            products.clear()
            try:
                gradients = torch.autograd.grad(
                    targets.values[:, step],
                    ends,
                    (sign * targets.counted)[:, step],
                    retain_graph=step + 1 < targets.values.shape[1],
                    allow_unused=True,
                )
            except RuntimeError as error:  # CheckpointError is one
                if "torch.utils.checkpoint" not in str(error):
                    raise
                raise ValueError(
                    "the model uses torch.utils.checkpoint, which runs its layers once more in the backward pass, "
                    "where no rule of relevance reaches them: call the layers without it (models of transformers do "
                    "so by themselves)"
                ) from error
            totals = [_total(tensor, g) for tensor, g in zip(ends, gradients, strict=True)]
            arrived = torch.tensor([sum(totals[: len(leaves)]), sum(totals[len(leaves) :])], dtype=torch.double)
            relevance = {
                site.key: _checked(site, products[site.key], targets, sign[:, step])
                for site in measured_sites
                if site.key in products
            }
            if not arrived.isfinite().all():
                raise ValueError("the relevance of the input is NaN or infinite; try rules='cp' or a model in float32")
            steps.append((relevance, arrived))
        # Detached, or the graph of this batch would stay in memory until the next one has run.
        return Targets(targets.values.detach(), targets.counted), steps


def _tap(site: Site, products: dict[tuple, Tensor]) -> Callable[[Tensor], Tensor]:
    """Return z as it is; R(z) = z * g, summed over tokens and features, is added to ``products``."""

    def tap(z: Tensor) -> Tensor:
        if z.requires_grad:
            collect_products(site, z, products)
        return z

    return tap


def _checked(site: Site, product: Tensor, targets: Targets, sign: Tensor) -> Tensor:
    if len(product) != len(targets.values):
        raise ValueError(
            f"{site.label} ran with {len(product)} rows for {len(targets.values)} scores, so its rows are not the "
            "examples: return one score per example, or leave the site out with sites=[...]"
        )
    if not product.isfinite().all():
        raise ValueError(f"the relevance at {site.label} is NaN or infinite; try rules='cp' or a model in float32")
    return (product * sign[:, None]).cpu()


def _leaf(name: str, value: Any) -> Any:
    """Return an input; one of real numbers, such as an image, as a leaf in which relevance ends."""
    if isinstance(value, Tensor) and value.is_floating_point() and "mask" not in name:
        return value.detach().clone().requires_grad_()
    return value


def position_tables(model: nn.Module) -> set[int]:
    """Return the ids of the embedding weights inside attention layers: position biases, which are not an input."""
    inside = (module for site in sites(model) for module in site.module.modules())
    return {id(module.weight) for module in inside if isinstance(module, nn.Embedding)}


def _total(tensor: Tensor, g: Tensor | None) -> float:
    """Return the sum of a tensor's relevance; entries of minus infinity, as in masks, whose g is 0, count as 0."""
    if g is None:
        return 0.0
    tensor, g = to_float64(tensor.detach()).flatten(), to_float64(g).flatten()
    total = torch.dot(tensor, g).item()
    if total != total:  # NaN: -inf * 0
        total = (tensor * g).masked_fill(tensor.isinf() & (g == 0), 0.0).sum().item()
    return total
