"""transformers 4.57, the last line with ``head_mask`` and ``prune_heads``: what heads could be done with in it.

``head_mask`` is a factor on the maps, so it needs eager attention, and its gradient at 1 is a head's importance. BERT
and GPT-2 take a mask for each example if one writes it with all five axes; Marian's layers take one number a head, so
that per-example slopes ask for a pass and a backward pass of every example. Both ways are the ones that give the
numbers of Michel et al. (2019). "gradient" differentiates as users do, weights and all; "gradient, weights frozen"
does what the library does not, by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import common
import subjects
import torch
from torch import Tensor

NAMES = {"encoder": "head_mask", "decoder": "decoder_head_mask", "cross": "cross_attn_head_mask"}


def works(kind: str, size: str) -> dict[str, Callable]:
    """Gradient and leave-one-out by ``head_mask``, maps by ``output_attentions``, a pass after ``prune_heads``."""
    subject = common.subject(kind, size)
    model, few = subject.model, subject.part(common.EXACT_ROWS)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    smaller = copy.deepcopy(model)
    shape = subject.size.layers, subject.size.heads
    kinds = list(NAMES) if kind == "marian" else ["decoder" if kind == "gpt2" else "encoder"]
    names = NAMES if kind == "marian" else dict.fromkeys(kinds, "head_mask")

    def losses(batch: dict, labels: Tensor, masks: dict[str, Tensor]) -> Tensor:
        out = eager(**batch, **{names[which]: mask for which, mask in masks.items()})
        return subjects.loss(out.logits, labels)

    def gradient() -> dict:
        rows = [subject] if kind != "marian" else [one(subject, i) for i in range(subject.size.rows)]
        total: dict[str, Tensor] = {}
        for some in rows:
            count = len(some.labels)
            wide = (*shape,) if kind == "marian" else (shape[0], count, shape[1], 1, 1)
            masks = {which: torch.ones(wide, requires_grad=True) for which in kinds}
            losses(some.batch, some.labels, masks).sum().backward()
            for which, mask in masks.items():
                slopes = mask.grad.abs() if kind == "marian" else mask.grad[..., 0, 0].abs().sum(1)
                total[which] = total.get(which, 0) + slopes / subject.size.rows
        eager.zero_grad(set_to_none=True)
        return common.by_head((which, n, row) for which, rows in total.items() for n, row in enumerate(rows))

    def frozen() -> dict:
        eager.requires_grad_(False)
        try:
            return gradient()
        finally:
            eager.requires_grad_(True)

    @torch.no_grad()
    def ablation() -> tuple[dict, float]:
        ones = {which: torch.ones(shape) for which in kinds}
        base = losses(few.batch, few.labels, ones)

        def rises(which: str, layer: int, head: int) -> Tensor:
            mask = torch.ones(shape)
            mask[layer, head] = 0
            return losses(few.batch, few.labels, {**ones, which: mask}) - base

        return common.exact(rises, subject, kind)

    @torch.no_grad()
    def maps() -> dict:
        out = eager(**subject.batch, output_attentions=True)
        fields = (
            ["encoder_attentions", "decoder_attentions", "cross_attentions"] if kind == "marian" else ["attentions"]
        )
        found = [getattr(out, field) for field in fields]
        parts = dict(zip(kinds, found, strict=True))
        return common.last_weights((which, n, each) for which, some in parts.items() for n, each in enumerate(some))

    found = {
        "plain": lambda: common.logits(model, subject),
        "plain, 2 rows": lambda: common.logits(model, few),
        "gradient": gradient,
        "gradient, weights frozen": frozen,
        "leave-one-out": ablation,
        "maps": maps,
    }
    if kind != "marian":
        smaller.prune_heads({n: common.half(shape[1]) for n in range(shape[0])})
        found["pruned"] = lambda: common.logits(smaller, subject)
    return found


def one(subject: subjects.Subject, row: int) -> subjects.Subject:
    """The subject with one example."""
    batch = {name: v[row : row + 1] if isinstance(v, Tensor) else v for name, v in subject.batch.items()}
    return subjects.Subject(subject.name, subject.model, batch, subject.labels[row : row + 1], subject.size)
