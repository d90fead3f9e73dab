"""Second derivatives of the loss by two heads' gates: how the slope of one changes when the other begins to close."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headtools._engine.progress import progress as show_progress
from headtools.heads._weights import check_has_backward
from headtools.heads.gates import gates
from headtools.heads.scores import Head
from headtools.heads.sites import sites
from headtools.importance._inputs import each_batch, frozen
from headtools.importance.loss import Loss, each_loss


def curvature(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    pairs: Sequence[tuple[Head, Head]],
    loss: Loss | None = None,
    progress: bool = False,
    per: str = "example",
) -> Tensor:
    """Return d2L / dgate_a dgate_b at gates of 1 for every example and pair: (n, len(pairs)) float64, on the CPU.

    Exact, by differentiating twice: one pass back for all heads together and one for each different first head of a
    pair. Fused attention knows no second derivative, so torch's plain one is taken; the numbers are the same. To second
    order, the interaction of two heads is this number. Kinks have no part in it: a model with ReLUs bends at them, too.
    With ``per="batch"`` rows are batches, and gates those of all their examples.

    Raises ``ValueError`` where the loss depends on no head of the pairs, and for a loss of another shape or NaN.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> pairs = [(("encoder", 0, 1), ("encoder", 1, 3))]
    >>> curvature(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, pairs).shape
    torch.Size([2, 1])
    """
    batches = list(each_batch(model, batches))
    shown = show_progress(batches, "differentiating twice") if progress else batches
    return torch.cat([_of_batch(model, batch, pairs, loss, per) for batch in shown])


def _of_batch(
    model: nn.Module, batch: Mapping, pairs: Sequence[tuple[Head, Head]], loss: Loss | None, per: str
) -> Tensor:
    check_has_backward(model, "a second derivative")
    found = sites(model)
    with torch.no_grad(), frozen(model):
        rows = len(each_loss(model, batch, loss, per=per))
    gates_of = (rows,) if per == "example" else ()  # one for each example, or one for all
    with ExitStack() as stack:
        for context in (frozen(model), torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH)):
            stack.enter_context(context)
        keys = list(dict.fromkeys(head[:-1] for pair in pairs for head in pair))
        weight = next(model.parameters())
        wide = torch.promote_types(weight.dtype, torch.float32)
        values = {
            key: torch.ones(*gates_of, found[key].heads, device=weight.device, dtype=wide, requires_grad=True)
            for key in keys
        }
        stack.enter_context(gates(model, values))
        total = each_loss(model, batch, loss, per=per).sum()
        if not total.requires_grad:
            raise ValueError("the loss depends on no head of the pairs: compute it from the outputs, with gradients on")
        slopes = dict(zip(keys, _slopes(total, list(values.values()), keep=True), strict=True))
        second = torch.zeros(rows, len(pairs), dtype=torch.float64)
        for first in dict.fromkeys(pair[0] for pair in pairs):
            slope = slopes[first[:-1]][..., first[-1]]
            if not slope.requires_grad:  # the loss is linear in this gate
                continue
            bends = dict(zip(keys, _slopes(slope.sum(), list(values.values())), strict=True))
            for column, (a, b) in enumerate(pairs):
                if a == first:
                    second[:, column] = bends[b[:-1]][..., b[-1]].detach().cpu()
    return second


def _slopes(number: Tensor, values: list[Tensor], keep: bool = False) -> list[Tensor]:
    """Return the gradient by each of the values, zeros where there is none; the graph stays for the next one."""
    found = torch.autograd.grad(number, values, create_graph=keep, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(found, values, strict=True)]
