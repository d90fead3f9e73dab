"""How well the heads that a score ranks first do the whole model's work, at ten budgets (MIB)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import pandas as pd
import torch
from torch import nn

from headtools.heads._tokens import model_inputs
from headtools.heads.patch import patch
from headtools.heads.record import record
from headtools.heads.scores import HeadScores
from headtools.importance._inputs import each_batch, evaluating
from headtools.importance.loss import Loss, each_loss

BUDGETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # MIB's, as parts of all heads


def faithfulness(
    model: nn.Module,
    clean: Mapping,
    counterfactual: Mapping,
    scores: HeadScores,
    loss: Loss | None = None,
    budgets: Sequence[float] = BUDGETS,
) -> pd.DataFrame:
    """Return for each budget how much of the model's work is done by that part of its heads, the highest scores first.

    The other heads' outputs are replaced by those of the ``counterfactual`` batch, position by position. With L the
    mean loss, ``faithfulness`` is (L(none) - L(kept)) / (L(none) - L(all)): 0 with all heads replaced, 1 with none.
    ``attrs["cpr"]`` is the area under it by budget, ``attrs["cmd"]`` the area between it and 1 (Mueller et al. 2025,
    arXiv:2504.13151, section 3.2; trapezoids, from 0 heads on). Raises ``ValueError`` where replacing all heads changes
    nothing, and as ``patch`` does.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids, model = torch.tensor([[1, 2, 3]]), BertForMaskedLM(tiny)
    >>> any_order = HeadScores({("encoder", 0): torch.rand(4), ("encoder", 1): torch.rand(4)})
    >>> faithfulness(model, {"input_ids": ids, "labels": ids}, {"input_ids": ids + 1}, any_order)["heads"].tolist()
    [0, 0, 0, 0, 0, 0, 1, 2, 4, 8]
    """
    (clean,), (counterfactual,) = each_batch(model, clean), each_batch(model, counterfactual)
    order = sorted(scores, key=lambda head: -scores[head])
    with evaluating(model), torch.no_grad():
        with record(model, want="z") as source:
            model(**model_inputs(model, counterfactual))

        def mean_loss(replaced: list[tuple]) -> float:
            with patch(model, replaced, source) if replaced else nullcontext():
                return each_loss(model, clean, loss).mean().item()

        kept = [round(budget * len(order)) for budget in budgets]
        losses = {n: mean_loss(order[n:]) for n in {0, len(order), *kept}}
    span = losses[0] - losses[len(order)]
    if not span:
        raise ValueError("the counterfactual batch changes no loss: pass inputs with other answers")
    worked = [(losses[0] - losses[n]) / span for n in kept]
    frame = pd.DataFrame({"budget": budgets, "heads": kept, "faithfulness": worked})
    x, y = torch.tensor([0.0, *budgets]), torch.tensor([0.0, *worked])
    frame.attrs = {"cpr": torch.trapezoid(y, x).item(), "cmd": torch.trapezoid((1 - y).abs(), x).item()}
    return frame
