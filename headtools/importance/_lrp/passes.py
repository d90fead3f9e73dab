"""The passes of relevance over one batch: forward through the rules, and back once for every step to explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._hooks import hook_input, intervention
from headtools.heads._precision import to_float64
from headtools.heads._tokens import model_inputs
from headtools.heads._weights import check_has_backward
from headtools.heads.sites import Site, sites
from headtools.importance._inputs import frozen
from headtools.importance._lrp.operations import active
from headtools.importance._lrp.rule_set import Rules
from headtools.importance._lrp.rules import rules
from headtools.importance._lrp.targets import Explained, Score, explained


def relevance_of_heads(
    model: nn.Module, batch: dict, score: Score | None, which: Rules, chosen: list[Site], tables: set[int]
) -> tuple[Explained, list[tuple[dict[tuple, Tensor], Tensor]]]:
    """Return what is explained and, for each step, {key: R (B, H)} with what arrived at (inputs, constants).

    ``tables`` are those of ``position_tables``. Each backward pass starts from the sign of what is explained, so that
    what arrives adds up over examples: rules are linear in what they share, and an example's R is what its own number
    started.
    """
    check_has_backward(model, "relevance()")
    products: dict[tuple, Tensor] = {}
    inputs = {name: _leaf(name, value) for name, value in model_inputs(model, batch).items()}
    with ExitStack() as stack:
        for context in (frozen(model), torch.inference_mode(False), torch.enable_grad()):
            stack.enter_context(context)
        stack.enter_context(intervention(model, "relevance()", chosen))
        for site in chosen:
            stack.callback(hook_input(site.out, _tap(site, products)).remove)
        with rules(which, model, tables) as seen:
            outputs = model(**inputs)
            seen.in_score = True
            told = explained(model, outputs, batch, score)
        leaves = [*seen.inputs, *(value for value in inputs.values() if active(value))]
        sign = torch.where(told.values.detach() < 0, -1.0, 1.0).to(told.values.dtype)
        steps = []
        for step in range(told.values.shape[1]):
            products.clear()
            with _checkpointing_refused():
                back = torch.autograd.grad(
                    told.values[:, step], leaves + seen.constants, (sign * told.counted)[:, step],
                    retain_graph=step + 1 < told.values.shape[1], allow_unused=True,
                )  # fmt: skip
            ends = [_total(tensor, g) for tensor, g in zip(leaves + seen.constants, back, strict=True)]
            arrived = torch.tensor([sum(ends[: len(leaves)]), sum(ends[len(leaves) :])], dtype=torch.double)
            rows = {
                site.key: _checked(site, products[site.key], told, sign[:, step])
                for site in chosen
                if site.key in products
            }
            if not arrived.isfinite().all():
                raise ValueError("the relevance of the input is NaN or infinite; try rules='cp' or a model in float32")
            steps.append((rows, arrived))
        # without its graph, or that of this batch would stay until the next one has run
        return Explained(told.values.detach(), told.counted), steps


@contextmanager
def _checkpointing_refused() -> Iterator[None]:
    """Raise ``ValueError`` where a model runs some layers once more on the way back: that run knows no rules."""
    try:
        yield
    except RuntimeError as error:  # CheckpointError is one
        if "torch.utils.checkpoint" not in str(error):
            raise
        raise ValueError(
            "the model uses torch.utils.checkpoint, which runs its layers once more on the way back, where no rule of "
            "relevance reaches them: call the layers without it (a model of transformers does so by itself here)"
        ) from error


def _tap(site: Site, products: dict[tuple, Tensor]) -> Callable:
    """Return a hook for the output projection that keeps z * g, summed over tokens and features, on the way back."""

    def hook(read: Tensor) -> Tensor | None:
        z = site.split(read)
        if not z.requires_grad:
            return None
        value = z.detach()  # not z itself: a tensor whose hook holds it would never be freed

        def keep(slope: Tensor) -> None:
            wide = torch.promote_types(value.dtype, torch.float32)
            product = (value.to(wide) * slope.to(wide)).sum(-1).flatten(1, -2).sum(1)
            before = products.get(site.key)  # of another call, where layers share one module
            products[site.key] = product if before is None else before + product

        z.register_hook(keep)
        return site.join(z)

    return hook


def _checked(site: Site, product: Tensor, told: Explained, sign: Tensor) -> Tensor:
    if len(product) != len(told.values):
        raise ValueError(
            f"{site.label} ran with {len(product)} rows for {len(told.values)} scores, so its rows are not the "
            "examples: return one score per example, or leave the site out with sites=[...]"
        )
    if not product.isfinite().all():
        raise ValueError(f"the relevance at {site.label} is NaN or infinite; try rules='cp' or a model in float32")
    return (product * sign[:, None]).cpu()


def _leaf(name: str, value: Any) -> Any:
    """Return an input; one of real numbers, such as an image, as the place where relevance ends."""
    if isinstance(value, Tensor) and value.is_floating_point() and "mask" not in name:
        return value.detach().clone().requires_grad_()
    return value


def position_tables(model: nn.Module) -> set[int]:
    """Return the ids of the embedding weights inside attention: position biases, which are no input."""
    inside = (module for site in sites(model) for module in site.module.modules())
    return {id(module.weight) for module in inside if isinstance(module, nn.Embedding)}


def _total(tensor: Tensor, g: Tensor | None) -> float:
    """Return the sum of a tensor's relevance; minus infinity, as in masks, has none."""
    if g is None:
        return 0.0
    tensor, g = to_float64(tensor.detach()).flatten(), to_float64(g).flatten()
    total = torch.dot(tensor, g).item()
    if total != total:
        total = (tensor * g).masked_fill(tensor.isinf() & (g == 0), 0.0).sum().item()
    return total
