"""Gates that close the heads a trained model does not need (``fit_gates``); ``recover`` trains what is left of it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads.prune import prune
from headtools.heads.scores import HeadScores
from headtools.heads.sites import SiteSelection
from headtools.heads.sites import sites as find_sites
from headtools.heads.verify import verify_once
from headtools.importance.loss import Loss
from headtools.sparse._trainer import Batches, Trainer, trained_weights
from headtools.sparse.hard_concrete import START, HardConcrete


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """The result of ``fit_gates`` for one penalty.

    ``model``: the model with its trained weights, all heads and no gates. ``gates``: the trained ``HardConcrete``.
    ``history``: a frame of log alpha, a row for each step (0 is the start) and a column for each gate. ``losses``: a
    frame with a row for each step: ``loss`` (the task's, nats), ``l0`` (expected number of open gates) and ``open``
    (gates open by the rule of Voita et al.). ``seconds``: the duration of the training.
    """

    model: nn.Module
    gates: HardConcrete
    penalty: float
    history: pd.DataFrame
    losses: pd.DataFrame
    seconds: float

    @property
    def open_heads(self) -> list[tuple]:
        """Return the heads that stay, by the rule of Voita et al. 2019: [("encoder", 2, 0), ...]."""
        return self.gates.open_heads()

    @property
    def closed_heads(self) -> list[tuple]:
        """Return the other heads, which ``cut`` removes."""
        return [head for head, gate in zip(self.gates.heads, self.gates.test_gates(), strict=True) if not gate]

    @property
    def scores(self) -> HeadScores:
        """Return log alpha as the score of each head; ``scores.order()`` is a ranking to prune by."""
        return self.gates.scores()

    def values(self) -> dict[tuple, Tensor]:
        """Return the fixed gates, {site: (H,)}, for ``headtools.gates(fit.model, fit.values())``."""
        return self.gates.split(self.gates.test_gates())

    def cut(self) -> nn.Module:
        """Return a copy of the model from which the closed heads are cut; equal to the model under ``values()``."""
        model = copy.deepcopy(self.model)
        if self.closed_heads:
            prune(model, self.closed_heads)
        return model

    def __repr__(self) -> str:
        steps, n = len(self.losses), len(self.gates.heads)
        return f"<Fit: {len(self.open_heads)} of {n} heads open after {steps} steps at penalty {self.penalty:g}>"


@torch.inference_mode(False)  # gradients are needed, wherever this is called
@torch.enable_grad()
def fit_gates(
    model: nn.Module,
    batches: Batches,
    penalty: float,
    *,
    steps: int = 400,
    sites: SiteSelection = None,
    weights: str | Collection[str] | None = "all",
    loss: Loss | None = None,
    per: str = "batch",
    start: float | Mapping[tuple, Tensor] = START,
    gate_rate: float = 0.1,
    weight_rate: float = 3e-4,
    decay: float = 0.0,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> Fit:
    """Train a model further with a gate on each head and a penalty on open gates, and return which heads stay open.

    The objective is the task's loss plus ``penalty`` times the expected number of open gates (Voita et al. 2019, eq. 9
    and section 6.1); start from a trained model.

    - ``batches``: a dict of the model's arguments, or several, which are repeated as needed, or ``batches(step)``.
    - ``loss``: ``loss(outputs, batch) -> (B,)``, or one number that is a mean; "causal" or "aligned", as in
      ``label_loss``; by default ``model(**batch).loss``.
    - ``sites``: which heads get gates: "encoder", ("cross", 3), a list of such; by default all of the model's.
    - ``weights``: which weights learn with the gates: "all", "encoder" (the decoder and what it shares stay frozen,
      so that functions cannot move there), None, or prefixes of names. A frozen weight (``requires_grad=False``),
      such as the base under PEFT's adapters, stays frozen. Unless ``weights`` is None the model is in training mode.
    - ``per``: draw gates once per "batch" or per "example". ``start``: log alpha, as in ``HardConcrete``.
    - ``gate_rate``, ``weight_rate``: learning rates of AdamW. ``decay``: fraction of the steps, at the end, in which
      both fall towards 0.
    - ``seed``: everything random in a step follows from it and the step's number. ``checkpoint``: a folder for a
      checkpoint, written every 50 steps; the same call continues from it and ends at the same numbers.
    - ``progress``: show a progress bar.

    The model is left as it is and a trained copy returned; with ``weights=None`` nothing is copied, since nothing
    changes.

    Raises ``ValueError`` or ``TypeError`` for arguments, batches or a loss that do not fit, ``RuntimeError`` for a
    compiled model, and ``FloatingPointError`` for a loss that is NaN or infinite.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    >>> fit = fit_gates(BertForMaskedLM(tiny), [batch], penalty=5.0, steps=60, progress=False)
    >>> fit
    <Fit: 0 of 8 heads open after 60 steps at penalty 5>
    """
    if not isinstance(penalty, Real) or not 0 <= penalty < float("inf"):
        raise ValueError(f"a penalty is a number of at least 0, got {penalty!r}; for several, call this once for each")
    verify_once(model, batches)
    # Without weights to train the model stays as it is, and no copy of it is needed.
    student = model if weights is None else copy.deepcopy(model)
    gates = HardConcrete(find_sites(student).pick(sites), start=start).to(next(student.parameters()).device)
    trainer = Trainer(
        student,
        trained_weights(student, weights),
        loss,
        steps,
        weight_rate,
        decay=decay,
        seed=seed,
        gates=gates,
        penalty=float(penalty),
        gate_rate=gate_rate,
        per=per,
    )
    return _fit(trainer, trainer.run(batches, checkpoint, progress))


def _fit(trainer: Trainer, history: Mapping[str, Tensor]) -> Fit:
    gates, log_alpha, loss = trainer.gates, history["log_alpha"], history["loss"]
    names = ["kind", "layer", "head"] if len(gates.heads[0]) == 3 else ["stack", "kind", "layer", "head"]
    steps = pd.RangeIndex(len(log_alpha), name="step")
    losses = {
        "loss": loss.to(torch.promote_types(loss.dtype, torch.float32)).numpy(),  # numpy has no bfloat16
        "l0": gates.expected_l0(log_alpha)[:-1].numpy(),  # log alpha has one row more than there are steps: its start
        "open": gates.test_gates(log_alpha=log_alpha).sum(1).long()[:-1].numpy(),
    }
    return Fit(
        trainer.model,
        gates,
        trainer.penalty,
        pd.DataFrame(log_alpha.numpy(), steps, pd.MultiIndex.from_tuples(gates.heads, names=names)),
        pd.DataFrame(losses, steps[:-1]),
        float(history["seconds"].sum()),
    )


@torch.inference_mode(False)
@torch.enable_grad()
def recover(
    model: nn.Module,
    batches: Batches,
    *,
    steps: int = 100,
    weights: str | Collection[str] = "all",
    loss: Loss | None = None,
    rate: float = 3e-4,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> nn.Module:
    """Train a model for some more steps after heads were cut, and return the trained copy.

    Arguments and guarantees are those of ``fit_gates``; ``rate``, its ``weight_rate``, falls linearly towards 0.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    >>> type(recover(BertForMaskedLM(tiny), [batch], steps=2, progress=False)).__name__
    'BertForMaskedLM'
    """
    student = copy.deepcopy(model)
    trainer = Trainer(student, trained_weights(student, weights), loss, steps, rate, decay=1.0, seed=seed)
    trainer.run(batches, checkpoint, progress)
    return student
