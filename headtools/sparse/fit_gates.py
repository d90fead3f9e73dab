"""Gates that close the heads a trained model does not need (``fit_gates``); ``recover`` trains what is left of it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headtools.heads._hooks import check_no_open_context
from headtools.heads.prune import prune
from headtools.heads.scores import HeadScores
from headtools.heads.sites import SiteSelection
from headtools.heads.sites import sites as find_sites
from headtools.importance.loss import Loss
from headtools.sparse._trainer import Trainer
from headtools.sparse._training_inputs import Batches, check_gradients, trained_weights
from headtools.sparse.hard_concrete import START, STRETCH, TEMPERATURE, HardConcrete

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """The result of ``fit_gates`` for one penalty.

    ``model``: the model with its trained weights, with all its heads and without gates. ``gates``: the trained
    ``HardConcrete``. ``history``: a frame of log alpha, a row for each step (0 is the start) and a column for each
    gate, (kind, layer, head). ``losses``: a frame with a row for each step and the columns ``loss`` (the task's, nats),
    ``l0`` (the expected number of open gates) and ``open`` (gates open by the rule of Voita et al.). ``seconds``: the
    duration of the training.
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
        open_heads = set(self.open_heads)
        return [head for head in self.gates.heads if head not in open_heads]

    @property
    def scores(self) -> HeadScores:
        """Return log alpha as the score of each head; ``scores.order()`` is a ranking to prune by."""
        return self.gates.scores()

    def values(self, rule: str = "voita") -> dict[tuple, Tensor]:
        """Return the fixed gates, {site: (H,)}, for ``headtools.gates(fit.model, fit.values())``."""
        return self.gates.split(self.gates.test_gates(rule))

    def cut(self) -> nn.Module:
        """Return a copy of the model from which the closed heads are cut; equal to the model under ``values()``."""
        model = copy.deepcopy(self.model)
        if self.closed_heads:
            prune(model, self.closed_heads)
        return model

    def __repr__(self) -> str:
        steps, n = len(self.history) - 1, len(self.gates.heads)
        return f"<Fit: {len(self.open_heads)} of {n} heads open after {steps} steps at penalty {self.penalty:g}>"


def fit_gates(
    model: nn.Module,
    batches: Batches,
    penalty: float | Sequence[float],
    *,
    steps: int = 400,
    sites: SiteSelection = None,
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
    """Train a model further with a gate on each head and a penalty on open gates, and return which heads stay open.

    The objective is the task's loss plus ``penalty`` times the expected number of open gates (Voita et al. 2019, eq. 9
    and section 6.1); start from a trained model. ``penalty`` may be a sequence when no weights learn
    (``weights=None``): all its values are then tried in one run, on a batch repeated that many times, and a list of
    results comes back, each as a run with this penalty alone would give it.

    - ``batches``: a dict of the model's arguments, or several, which are repeated as needed, or ``batches(step)``.
    - ``loss``: ``loss(outputs, batch) -> (B,)``, or one number that is a mean; "causal" or "aligned", as in
      ``label_loss``; by default ``model(**batch).loss``.
    - ``sites``: which heads get gates: "encoder", ("cross", 3), a list of such; by default all of the model's.
    - ``weights``: which weights learn with the gates: "all", "encoder" (the decoder and what it shares stay frozen,
      so that functions cannot move there), None, or prefixes of names. A frozen weight (``requires_grad=False``),
      such as the base under PEFT's adapters, stays frozen. Unless ``weights`` is None the model is in training mode.
    - ``per``: draw gates once per "batch" or per "example". ``temperature``, ``stretch``, ``start``: as in
      ``HardConcrete``.
    - ``gate_rate``, ``weight_rate``: learning rates of AdamW. ``ramp``: fraction of the steps in which the penalty
      rises from 0. ``decay``: fraction of the steps, at the end, in which both rates fall towards 0.
    - ``settled``: a probability, such as 0.9; stop early once each gate has been 0, or 1, with this probability for 20
      steps.
    - ``seed``: everything random in a step follows from it and the step's number. ``checkpoint``: a folder for
      checkpoints, written every ``save_every`` steps; the same call continues from the last one and ends at the same
      numbers.
    - ``progress``: show a progress bar.

    The model is left as it is and a trained copy returned; with ``in_place`` its weights are replaced at the very end,
    so that an exception before then changes nothing. With ``weights=None`` nothing is copied, since nothing changes.

    Raises ``ValueError`` or ``TypeError`` for arguments, batches or a loss that do not fit, ``RuntimeError`` under
    ``torch.no_grad`` or ``inference_mode``, and ``FloatingPointError`` for a loss that is NaN or infinite.

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
    _check_options(penalties, several, weights, steps, ramp, decay, settled)
    check_gradients(model)
    if in_place:
        check_no_open_context(model, "fit_gates(in_place=True)")
    # Without weights to train the model stays as it is, and no copy of it is needed.
    student = model if weights is None else copy.deepcopy(model)
    trained = trained_weights(student, weights)
    gates = HardConcrete(
        find_sites(student).pick(sites),
        temperature=temperature,
        stretch=stretch,
        start=start,
        sets=len(penalties) if several else None,
    ).to(next(student.parameters()).device)
    settings = {
        "penalty": penalties,
        "steps": steps,
        "heads": gates.heads,
        "weights": sorted(trained),
        "per": per,
        "temperature": temperature,
        "stretch": list(stretch),
        "gate_rate": gate_rate,
        "weight_rate": weight_rate,
        "ramp": ramp,
        "decay": decay,
        "settled": settled,
        "seed": seed,
    }
    trainer = Trainer(student, trained, gates, penalties, loss, settings)
    history = trainer.run(batches, None if checkpoint is None else Path(checkpoint), save_every, progress)
    if in_place and student is not model:
        _copy_weights(student, model)
        student = model
    results = [_result(student, gates, history, k if several else None, x) for k, x in enumerate(penalties)]
    return results if several else results[0]


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
    """Train a model for some more steps after heads were cut, and return the trained copy.

    The arguments are those of ``fit_gates`` (``rate`` is its ``weight_rate``), and so are the guarantees: a seed
    decides the result, a stopped run continues, and with ``in_place`` the weights are replaced at the very end or not
    at all.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    >>> type(recover(BertForMaskedLM(tiny), [batch], steps=2, progress=False)).__name__
    'BertForMaskedLM'
    """
    _check_options([], False, weights, steps, 0.0, decay, None)
    check_gradients(model)
    if in_place:
        check_no_open_context(model, "recover(in_place=True)")
    student = copy.deepcopy(model)
    trained = trained_weights(student, weights)
    settings = {
        "steps": steps,
        "weights": sorted(trained),
        "weight_rate": rate,
        "ramp": 0.0,
        "decay": decay,
        "settled": None,
        "seed": seed,
    }
    trainer = Trainer(student, trained, None, [], loss, settings)
    trainer.run(batches, None if checkpoint is None else Path(checkpoint), save_every, progress)
    if in_place:
        _copy_weights(student, model)
    return model if in_place else student


def _check_options(
    penalties: list[float], several: bool, weights: object, steps: int, ramp: float, decay: float, settled: float | None
) -> None:
    if (several and not penalties) or any(not 0 <= x < float("inf") for x in penalties):
        raise ValueError(f"a penalty is a number of at least 0, or a list of them, got {penalties}")
    if several and weights is not None:
        raise ValueError(
            "several penalties in one run would train the same weights: add weights=None, or call fit_gates for each"
        )
    if steps < 1:
        raise ValueError(f"steps must be 1 or more, got {steps}")
    for name, fraction in (("ramp", ramp), ("decay", decay)):
        if not 0 <= fraction <= 1:
            raise ValueError(f"{name} is a fraction of the steps, 0 to 1, got {fraction}")
    if settled is not None and not 0.5 < settled < 1:
        raise ValueError(f"settled is a probability between 0.5 and 1, such as 0.9, got {settled}")


def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    target.load_state_dict(source.state_dict())
    torch.clear_autocast_cache()  # an autocast region around the caller may hold copies of the old weights


def _result(model: nn.Module, gates: HardConcrete, history: Mapping[str, Tensor], k: int | None, penalty: float) -> Fit:
    """Return the result for set ``k`` of the gates, or for the only one if ``k`` is None."""
    import pandas as pd

    log_alpha = history["log_alpha"]  # (steps + 1, n_heads), or (steps + 1, sets, n_heads)
    if k is not None:
        log_alpha = log_alpha[:, k]
        start = gates.split(gates.log_alpha.detach()[k])
        gates = HardConcrete(gates.sizes, temperature=gates.temperature, stretch=gates.stretch, start=start)
    steps = pd.RangeIndex(len(log_alpha), name="step")
    names = ["kind", "layer", "head"] if len(gates.heads[0]) == 3 else ["stack", "kind", "layer", "head"]
    columns = pd.MultiIndex.from_tuples(gates.heads, names=names)
    n_open = (gates.p_one(log_alpha) > gates.p_zero(log_alpha)).sum(1)
    loss = history["loss"][:, k or 0]
    loss = loss.to(torch.promote_types(loss.dtype, torch.float32))  # numpy has no bfloat16
    # log alpha has one row more than there are steps: its state at the start.
    losses = {"loss": loss, "l0": gates.expected_l0(log_alpha)[:-1], "open": n_open[:-1]}
    return Fit(
        model,
        gates,
        penalty,
        pd.DataFrame(log_alpha.numpy(), steps, columns),
        pd.DataFrame({name: value.detach().numpy() for name, value in losses.items()}, steps[:-1]),
        float(history["seconds"].sum()),
    )
