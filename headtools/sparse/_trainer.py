"""The training loop of ``fit_gates`` and ``recover``.

What the loop guarantees, and what each part of it is there for:

- A run that was stopped and is started again ends at the same weights as one that never stopped. So everything random
  in a step follows from the seed and the step's number (``step_generator``), the batch of a step can be asked for by
  its number, and weights, moments and history are saved together.
- The caller's model is never left half trained: flags, modes and gradients come back after an exception
  (``training_mode``), and weights are trained in a copy, which the caller of this module makes.
- Autocast caches half-precision copies of weights for as long as its region lasts, so the cache is cleared around each
  optimizer step: otherwise later steps would compute with weights from before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.progress import progress as show_progress
from headtools._engine.store import check_same_settings, fingerprint
from headtools.heads._checks import check_not_compiled, check_weights, nonfinite_weights
from headtools.heads._hooks import claimed
from headtools.heads.gates import gates
from headtools.heads.sites import sites
from headtools.importance.loss import Loss
from headtools.sparse._checkpoint import load_training, missing_weight, read_training, save_training
from headtools.sparse._training_inputs import (
    Batches,
    batch_size,
    batches_from,
    check_checkpointing,
    repeat_batch,
    task_loss,
)
from headtools.sparse.hard_concrete import HardConcrete

FILE = "gates.safetensors"  # in the folder that ``checkpoint`` names
PATIENCE = 20  # steps for which all gates must stay saturated before a run stops early
CLIP = 1.0  # largest norm of the weights' gradient; gates are not clipped


class Trainer:
    """One training run of a model's weights and, unless ``gates`` is None, of a gate on each head.

    ``penalties``: the price of an open gate, one for each set of gates. ``settings``: all numbers that the course of
    the run depends on; a checkpoint is only continued under the same settings.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: dict[str, nn.Parameter],
        gates: HardConcrete | None,
        penalties: list[float],
        loss: Loss | str | None,
        settings: dict,
    ) -> None:
        self.model, self.trained, self.gates, self.loss, self.settings = model, trained, gates, loss, settings
        self.device = next(model.parameters()).device
        self.penalties = torch.tensor(penalties, device=self.device)
        check_not_compiled(model)
        check_weights(model)
        all_weights_learn = len(trained) == len(list(model.parameters()))
        if trained and not (gates is None and all_weights_learn):  # a model in eval mode checkpoints nothing
            check_checkpointing(model)
        model_sites = sites(model)  # looked up once, since a step neither moves nor cuts a head
        self.sites = {key: model_sites[key] for key in (gates.sizes if gates is not None else ())}
        groups = (
            [
                {
                    "params": list(trained.values()),
                    "lr": settings["weight_rate"],
                    "betas": (0.9, 0.98),
                    "weight_decay": 0.01,
                }
            ]
            if trained
            else []
        )
        self.parameters = dict(trained)
        if gates is not None:
            groups.append({"params": [gates.log_alpha], "lr": settings["gate_rate"], "weight_decay": 0.0})
            self.parameters["log_alpha"] = gates.log_alpha
        self.base_rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(groups)

    def run(self, batches: Batches, folder: Path | None, save_every: int, progress: bool) -> dict[str, Tensor]:
        """Do the remaining steps and return the history: log_alpha (steps + 1, ...), loss (steps, sets), seconds."""
        first_step, history = 0, {name: [] for name in ("log_alpha", "loss", "seconds")}
        if self.gates is not None:
            history["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
        settings = self.settings
        if folder is not None:
            start = [*self.model.named_parameters(), *(self.gates.named_parameters() if self.gates else ())]
            settings = settings | {"weights at the start": fingerprint(start)}
            saved = self._restore(folder, settings)
            if saved:
                first_step = saved[0]
                history |= {name: list(values) for name, values in saved[1].items()}
        remaining = range(first_step, settings["steps"])
        with training_mode(self.model, list(self.trained.values())):
            next_batches = batches_from(batches, first_step)
            label = "training gates" if self.gates else "recovering"
            for step in show_progress(remaining, label) if progress else remaining:
                if self._all_saturated(history["log_alpha"], step):
                    break
                began = time.perf_counter()
                history["loss"].append(self.step(next(next_batches), step).cpu())
                if self.gates is not None:
                    history["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
                history["seconds"].append(torch.tensor(time.perf_counter() - began))
                if folder is not None and ((step + 1) % save_every == 0 or step + 1 == settings["steps"]):
                    self._save(folder, history, settings, step + 1)
        return _stacked(history)

    def step(self, batch: Mapping, step: int) -> Tensor:
        """Do one step of the optimizer and return the task's loss, (sets,)."""
        s, gates_with_gradient = self.settings, []
        torch.clear_autocast_cache()
        penalty_factor, rate_factor = schedule(step / s["steps"], s["ramp"], s["decay"])
        for group, rate in zip(self.optimizer.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * rate_factor
        sets = max(1, len(self.penalties))
        with step_generator(s["seed"], step, self.device) as generator:
            values = {}
            if self.gates is not None:
                sample = self.gates.sample(batch_size(batch), per=s["per"], generator=generator)
                values = {self.sites[key]: gate for key, gate in sample.items()}
                for gate in values.values() if step == 0 else ():
                    # The hook also runs for a gradient of 0: what counts is that the loss depends on the gate.
                    gate.register_hook(lambda _gradient: gates_with_gradient.append(True))
            with gates(self.model, values):
                losses = task_loss(self.model, repeat_batch(batch, sets) if sets > 1 else batch, self.loss, sets)
                total = losses.sum()
                if self.gates is not None:  # Voita et al. 2019, eq. 9: the loss + lambda times the expected L0 norm
                    total = total + penalty_factor * (self.penalties * self.gates.expected_l0()).sum()
                if not torch.isfinite(total):
                    reason = nonfinite_weights(self.model)
                    raise FloatingPointError(
                        f"the loss is {total.item()} at step {step}: lower the rates"
                        + (f", or load the model again, because {reason}" if reason else "")
                    )
                total.backward()
        if step == 0 and values and not any(gates_with_gradient):
            raise ValueError(
                "the loss does not depend on any gate, so nothing but the penalty would move them: let loss(outputs, "
                "batch) come from the model's outputs, with gradients"
            )
        if self.trained:
            torch.nn.utils.clip_grad_norm_(self.trained.values(), CLIP)
        self.optimizer.step()
        torch.clear_autocast_cache()
        self.optimizer.zero_grad(set_to_none=True)
        return losses.detach()

    def _all_saturated(self, log_alpha: list[Tensor], step: int) -> bool:
        """Tell whether every gate was nearly always 0, or nearly always 1, in each of the last ``PATIENCE`` steps."""
        s = self.settings
        if s["settled"] is None or step < max(PATIENCE, s["ramp"] * s["steps"]):
            return False
        recent = torch.stack(log_alpha[-PATIENCE:]).to(self.device)
        return bool(self.gates.saturated(s["settled"], recent).all())

    def _save(self, folder: Path, history: Mapping[str, list[Tensor]], settings: dict, step: int) -> None:
        columns = {f"history|{name}": values for name, values in _stacked(history).items()}
        metadata = {"settings": settings, "step": step}
        save_training(folder / FILE, self.parameters, self.optimizer, metadata, columns)

    def _restore(self, folder: Path, settings: dict) -> tuple[int, dict[str, Tensor]] | None:
        """Load a checkpoint; return its step and history, or None if there is none.

        Raises ``ValueError`` for a checkpoint of other settings, or a damaged one, before anything is changed.
        """
        checkpoint = read_training(folder / FILE, "settings")
        if checkpoint is None:
            return None
        tensors, metadata = checkpoint
        check_same_settings(folder, metadata["settings"], settings)
        if name := missing_weight(tensors, self.parameters):
            raise ValueError(f"{folder / FILE} has no such {name}: use another folder, checkpoint='elsewhere'")
        load_training(tensors, self.parameters, self.optimizer, metadata["step"])
        history = {name.removeprefix("history|"): v for name, v in tensors.items() if name.startswith("history|")}
        return metadata["step"], history


def schedule(progress: float, ramp: float, decay: float) -> tuple[float, float]:
    """Return the factors of the penalty and of the learning rates when a fraction ``progress`` of the steps is done.

    The penalty rises linearly from 0 during the first ``ramp`` of the steps; the rates fall linearly towards 0 during
    the last ``decay`` of them.

    >>> schedule(0.25, ramp=0.5, decay=0.5), schedule(0.75, ramp=0.5, decay=0.5), schedule(0.0, 0.0, 0.0)
    ((0.5, 1.0), (1.0, 0.5), (1.0, 1.0))
    """
    return min(1.0, progress / ramp) if ramp else 1.0, min(1.0, (1 - progress) / decay) if decay else 1.0


@contextmanager
def training_mode(model: nn.Module, trained: Collection[nn.Parameter]) -> Iterator[None]:
    """Let only the parameters ``trained`` learn, with dropout on if there are any; restores flags, modes, gradients."""
    trained_ids = {id(p) for p in trained}
    with claimed("training", model.modules(), copyable=True):
        parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
        modes = [(module, module.training) for module in model.modules()]
        try:
            for p, _, _ in parameters:
                p.requires_grad_(id(p) in trained_ids)
                p.grad = None
            model.train(bool(trained_ids))
            yield
        finally:
            for p, requires_grad, gradient in parameters:
                p.grad = None
                p.requires_grad_(requires_grad)
                p.grad = gradient
            for module, mode in modes:  # not model.train(mode): modules may have had different modes
                module.training = mode


@contextmanager
def step_generator(seed: int, step: int, device: torch.device) -> Iterator[torch.Generator]:
    """Seed torch for dropout, and yield a generator for gates, both from ``seed`` and ``step`` alone."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(random.Random(f"dropout {seed} {step}").getrandbits(62))
        yield torch.Generator().manual_seed(random.Random(f"gates {seed} {step}").getrandbits(62))


def _stacked(history: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack(values) for name, values in history.items() if values}
