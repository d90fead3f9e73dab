"""Let a trained model close the heads it can do without: ``fit_gates``, and ``recover`` after they are cut."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headtools._renamed import old_arguments
from headtools.heads._interventions import refuse_inside
from headtools.heads.prune import cut_heads
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Which
from headtools.heads.sites import sites as find_sites
from headtools.importance.loss import Loss
from headtools.sparse._loop import Loop
from headtools.sparse._training import Batches, refuse_without_gradients, trained_weights, warn_of_old_loss
from headtools.sparse.hard_concrete import START, STRETCH, TEMPERATURE, HardConcrete

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """What ``fit_gates`` found for one penalty.

    ``model``: the model with its trained weights, all heads still in it and no gate on them. ``gates``: the trained
    ``HardConcrete``. ``history``: a frame with a row for each step, 0 being the start, and a column for each gate,
    (kind, layer, head), that holds its log alpha. ``losses``: a frame with ``loss`` (the task's, nats), ``l0`` (the
    expected number of open gates) and ``open`` (gates open by Voita's rule), a row a step. ``seconds``: of training.
    """

    model: nn.Module
    gates: HardConcrete
    penalty: float
    history: pd.DataFrame
    losses: pd.DataFrame
    seconds: float

    @property
    def open_heads(self) -> list[tuple]:
        """Return the heads that stay, by Voita's rule: [("encoder", 2, 0), ...]."""
        return self.gates.open_heads()

    @property
    def closed_heads(self) -> list[tuple]:
        """Return the heads that go."""
        stay = set(self.open_heads)
        return [head for head in self.gates.heads if head not in stay]

    @property
    def scores(self) -> HeadScores:
        """Return log alpha as a score of every head, so that ``scores.order()`` says which would go first."""
        return self.gates.scores()

    def values(self, rule: str = "voita") -> dict[tuple, Tensor]:
        """Return the fixed gates, {site: (H,)}, for ``headtools.gates(fit.model, fit.values())``."""
        return self.gates.split(self.gates.test_gates(rule))

    def cut(self) -> nn.Module:
        """Return a copy of the model from which the closed heads are cut; equal to the model under ``values()``."""
        model = copy.deepcopy(self.model)
        cut_heads(model, self.closed_heads)
        return model

    def __repr__(self) -> str:
        steps, n = len(self.history) - 1, len(self.gates.heads)
        return f"<Fit: {len(self.open_heads)} of {n} heads open after {steps} steps at penalty {self.penalty:g}>"


@old_arguments(over="sites", run="checkpoint", quiet="progress")
def fit_gates(
    model: nn.Module,
    batches: Batches,
    penalty: float | Sequence[float],
    *,
    steps: int = 400,
    sites: Which = None,
    weights: str | Collection[str] | None = "all",
    loss: Loss | str | None = None,
    per: str = "batch",
    temperature: float = TEMPERATURE,
    stretch: tuple[float, float] = STRETCH,
    start: float | Mapping[tuple, Tensor] = START,
    gate_rate: float = 0.1,
    weight_rate: float = 3e-4,
    ramp: float = 0.0,
    decay: float = 0.0,
    settled: float | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    save_every: int = 50,
    in_place: bool = False,
    progress: bool = True,
) -> Fit | list[Fit]:
    """Go on training a model with a gate on every head and a price on open gates; return which heads stay.

    The objective is the task's loss plus ``penalty`` times the expected number of open gates (Voita et al. 2019, eq. 9
    and section 6.1); start from a model that is trained. ``penalty`` may be a sequence when no weight learns
    (``weights=None``): all its values are then tried in one run, on the batch repeated that often, and a list of
    results comes back, each as if run alone.

    - ``batches``: one dict of the model's arguments or several, gone through again and again, or ``batches(step)``.
    - ``loss``: ``loss(outputs, batch) -> (B,)``, or one number that is a mean; "causal" or "aligned", as in
      ``label_loss``; left out: ``model(**batch).loss``.
    - ``sites``: which heads get gates: "encoder", ("cross", 3), a list of such, or all of the model's.
    - ``weights``: which weights learn with the gates: "all", "encoder" (the decoder and what it shares stay frozen,
      so that functions cannot move there), None, or beginnings of names. What is frozen (``requires_grad=False``),
      as the base under PEFT's adapters, stays frozen. With any, the model is in training mode.
    - ``per``: one draw a "batch" or an "example". ``temperature``, ``stretch``, ``start``: ``HardConcrete``.
    - ``gate_rate``, ``weight_rate``: learning rates of AdamW. ``ramp``: share of the steps in which the penalty rises
      from 0. ``decay``: share at the end in which both rates fall towards 0.
    - ``settled``: stop early once every gate has been 0 or 1 with this probability for 20 steps, such as 0.9.
    - ``seed``: all that is random in a step follows from it and the step's number. ``checkpoint``: folder of
      checkpoints, written every ``save_every`` steps; the same call goes on from the last one and ends at the same
      numbers.
    - ``progress``: show a progress bar.

    The model is left as it is and a trained copy returned; with ``in_place`` its weights are replaced at the very end,
    so an exception on the way changes nothing. With ``weights=None`` nothing is copied, since nothing changes.

    Raises ``ValueError`` or ``TypeError`` for arguments, batches or a loss that do not fit, ``RuntimeError`` under
    ``torch.no_grad`` or ``inference_mode``, and ``FloatingPointError`` for a loss that is no number.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    >>> fit = fit_gates(BertForMaskedLM(tiny), [batch], penalty=5.0, steps=60, progress=False)
    >>> fit
    <Fit: 0 of 8 heads open after 60 steps at penalty 5>
    """
    several = not isinstance(penalty, Real)
    penalties = [float(x) for x in (penalty if several else [penalty])]
    _check(penalties, several, weights, steps, ramp, decay, settled)
    refuse_without_gradients(model)
    warn_of_old_loss(loss)
    if in_place:
        refuse_inside(model, "fit_gates(in_place=True)")
    student = model if weights is None else copy.deepcopy(model)
    trained = trained_weights(student, weights)
    gates = HardConcrete(
        find_sites(student).pick(sites), temperature=temperature, stretch=stretch, start=start,
        sets=len(penalties) if several else None,
    ).to(next(student.parameters()).device)  # fmt: skip
    settings = {
        "penalty": penalties, "steps": steps, "heads": gates.heads, "weights": sorted(trained), "per": per,
        "temperature": temperature, "stretch": list(stretch), "gate_rate": gate_rate, "weight_rate": weight_rate,
        "ramp": ramp, "decay": decay, "settled": settled, "seed": seed,
    }  # fmt: skip
    loop = Loop(student, trained, gates, penalties, loss, settings)
    rows = loop.go(batches, None if checkpoint is None else Path(checkpoint), save_every, progress)
    if in_place and student is not model:
        _put(student, model)
        student = model
    results = [_result(student, gates, rows, k if several else None, x) for k, x in enumerate(penalties)]
    return results if several else results[0]


@old_arguments(run="checkpoint", quiet="progress")
def recover(
    model: nn.Module,
    batches: Batches,
    *,
    steps: int = 100,
    weights: str | Collection[str] = "all",
    loss: Loss | str | None = None,
    rate: float = 3e-4,
    decay: float = 1.0,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    save_every: int = 50,
    in_place: bool = False,
    progress: bool = True,
) -> nn.Module:
    """Train a model on for some steps after heads were cut, and return the trained copy.

    The arguments are those of ``fit_gates``, and so is what is promised: a seed, a run to go on with, a model that is
    replaced at the very end or not at all.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    >>> type(recover(BertForMaskedLM(tiny), [batch], steps=2, progress=False)).__name__
    'BertForMaskedLM'
    """
    _check([], False, weights, steps, 0.0, decay, None)
    refuse_without_gradients(model)
    warn_of_old_loss(loss)
    if in_place:
        refuse_inside(model, "recover(in_place=True)")
    student = copy.deepcopy(model)
    trained = trained_weights(student, weights)
    settings = {
        "steps": steps, "weights": sorted(trained), "weight_rate": rate, "ramp": 0.0, "decay": decay, "settled": None,
        "seed": seed,
    }  # fmt: skip
    Loop(student, trained, None, [], loss, settings).go(
        batches, None if checkpoint is None else Path(checkpoint), save_every, progress
    )
    if in_place:
        _put(student, model)
    return model if in_place else student


def _check(
    penalties: list[float], several: bool, weights: object, steps: int, ramp: float, decay: float, settled: float | None
) -> None:
    if (several and not penalties) or any(not 0 <= x < float("inf") for x in penalties):
        raise ValueError(f"a penalty is a number from 0 on, or a list of them, got {penalties}")
    if several and weights is not None:
        raise ValueError(
            "several penalties in one run would train the same weights: add weights=None, or call fit_gates for each"
        )
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    for name, share in (("ramp", ramp), ("decay", decay)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} is a share of the steps, 0 to 1, got {share}")
    if settled is not None and not 0.5 < settled < 1:
        raise ValueError(f"settled is a probability between 0.5 and 1, such as 0.9, got {settled}")


def _put(student: nn.Module, model: nn.Module) -> None:
    """Give the model the weights of its trained copy."""
    model.load_state_dict(student.state_dict())
    torch.clear_autocast_cache()


def _result(model: nn.Module, gates: HardConcrete, rows: Mapping[str, Tensor], k: int | None, penalty: float) -> Fit:
    """Return what one set of gates came to."""
    import pandas as pd

    history, number = rows["log_alpha"], 0 if k is None else k
    if k is not None:
        history = history[:, k]
        one = HardConcrete(gates.sizes, temperature=gates.temperature, stretch=gates.stretch)
        one.log_alpha.data = gates.log_alpha.detach()[k].clone()
        gates = one
    steps = pd.RangeIndex(len(history), name="step")
    names = ["kind", "layer", "head"] if len(gates.heads[0]) == 3 else ["stack", "kind", "layer", "head"]
    columns = pd.MultiIndex.from_tuples(gates.heads, names=names)
    opened = (gates.p_one(history) > gates.p_zero(history)).sum(1)
    loss = rows["loss"][:, number]
    loss = loss.to(torch.promote_types(loss.dtype, torch.float32))  # numpy has no bfloat16
    losses = {"loss": loss, "l0": gates.expected_l0(history)[:-1], "open": opened[:-1]}
    return Fit(
        model, gates, penalty, pd.DataFrame(history.numpy(), steps, columns),
        pd.DataFrame({name: value.detach().numpy() for name, value in losses.items()}, steps[:-1]),
        float(rows["seconds"].sum()),
    )  # fmt: skip
