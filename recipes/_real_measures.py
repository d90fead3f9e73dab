"""What the tables of a real model share: losses of text, random tokens that repeat, and comparisons with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._tokens import model_inputs
from headtools.roles._segments import ordinary_tokens, segments
from recipes._results import interval


@torch.no_grad()
def losses(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return each row's loss in nats a token (B,): over the whole of it, its first half and its second."""
    parts_of_loss: dict[str, list[Tensor]] = {"whole": [], "first": [], "second": []}
    for batch in batches:
        logits = model(**model_inputs(model, batch)).logits[:, :-1].float()
        labels = batch["labels"][:, 1:]
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")
        counted = labels != -100
        half = each.shape[1] // 2  # from here on tokens of the second half are predicted
        for part, piece in (("whole", slice(None)), ("first", slice(half)), ("second", slice(half, None))):
            parts_of_loss[part].append(each[:, piece].sum(1) / counted[:, piece].sum(1).clamp_min(1))
    return {part: torch.cat(rows) for part, rows in parts_of_loss.items()}


def repeated_tokens(model: nn.Module, n: int, length: int, seed: int = 1) -> list[dict[str, Tensor]]:
    """Return random tokens twice, (n, 2 * length), as one batch; only the second copy can be predicted."""
    ids = segments(n, length, 2, ordinary_tokens(model), seed=seed)
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}]


def rank_correlation(a: Tensor, b: Tensor, size_of_b: bool = False) -> list[float]:
    """Return Spearman's correlation of two measures' means over texts (n, heads), with a 95 % interval over texts.

    With ``size_of_b`` the means of the second one lose their sign.
    """

    def spearman(means: Tensor) -> Tensor:
        left, right = means.split(a.shape[1], -1)
        left, right = _ranks(left), _ranks(right.abs() if size_of_b else right)
        return torch.nn.functional.cosine_similarity(left, right, -1)[..., None]

    both = torch.cat([a, b], 1).double()
    low, high = ht.bootstrap(both, statistic=spearman)
    return [round(max(-1.0, min(1.0, float(x))), 3) for x in (spearman(both.mean(0)[None])[0, 0], low, high)]


def _ranks(values: Tensor) -> Tensor:
    ranks = values.argsort(-1).argsort(-1).double()
    return ranks - ranks.mean(-1, keepdim=True)


def compared(name: str, now: Tensor, before: Tensor, **more: Any) -> dict[str, Any]:
    """Return a row: the mean loss, and by how much it rose, row by row, each with a 95 % interval."""
    loss, low, high = interval(now)
    rise, rise_low, rise_high = interval(now - before)
    return {
        "name": name,
        **more,
        "loss": loss,
        "low": low,
        "high": high,
        "rise": rise,
        "rise_low": rise_low,
        "rise_high": rise_high,
    }
