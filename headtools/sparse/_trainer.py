"""The training loop of ``fit_gates`` and ``recover``.

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
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.loop import progress as show_progress
from headtools._engine.store import fingerprint
from headtools.heads._checks import check_has_backward, check_not_compiled, check_weights, nonfinite_weights
from headtools.heads._hooks import claimed
from headtools.heads.gates import gates as gates_on
from headtools.importance.loss import Loss
from headtools.sparse._checkpoint import restore_training, save_training
from headtools.sparse._training_inputs import Batches, batch_size, batches_from, check_checkpointing, task_loss
from headtools.sparse.hard_concrete import HardConcrete

FILE = "gates.safetensors"  # in the folder that ``checkpoint`` names
SAVE_EVERY = 50  # steps
CLIP = 1.0  # largest norm of the weights' gradient; gates are not clipped


@dataclass
class Trainer:
    """One training run of the weights ``trained`` and, unless ``gates`` is None, of a gate on each head.

    ``penalty``: the price of an open gate. ``decay``: the fraction of the steps, at the end, in which the learning
    rates fall towards 0. ``per``: as in ``HardConcrete.sample``.
    """

    model: nn.Module
    trained: dict[str, nn.Parameter]
    loss: Loss | None
    steps: int
    weight_rate: float
    decay: float = 0.0
    seed: int = 0
    gates: HardConcrete | None = None
    penalty: float = 0.0
    gate_rate: float = 0.0
    per: str = "batch"

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.decay <= 1:
            raise ValueError(
                f"steps must be 1 or more, and decay a fraction of them, 0 to 1; got steps={self.steps}, "
                f"decay={self.decay}"
            )
        check_has_backward(self.model, "training")
        check_not_compiled(self.model)
        check_weights(self.model)
        if self.trained:  # a model in eval mode checkpoints nothing
            check_checkpointing(self.model)
        self.device = next(self.model.parameters()).device
        self.parameters, groups = dict(self.trained), []
        if self.trained:
            rate, weights = self.weight_rate, list(self.trained.values())
            groups.append({"params": weights, "initial_lr": rate, "betas": (0.9, 0.98), "weight_decay": 0.01})
        if self.gates is not None:
            groups.append({"params": [self.gates.log_alpha], "initial_lr": self.gate_rate, "weight_decay": 0.0})
            self.parameters["log_alpha"] = self.gates.log_alpha
        self.optimizer = torch.optim.AdamW(groups)

    def run(self, batches: Batches, folder: str | Path | None, progress: bool) -> dict[str, Tensor]:
        """Do the remaining steps and return the history: log_alpha (steps + 1, n_heads), loss (steps,), seconds."""
        history: dict[str, list[Tensor]] = {"log_alpha": [], "loss": [], "seconds": []}
        if self.gates is not None:  # one row more than there are steps: its state at the start
            history["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
        first_step = 0
        if folder is not None:
            file, settings = Path(folder) / FILE, self._settings()
            if saved := restore_training(file, self.parameters, self.optimizer, **settings):
                first_step, history = saved[0]["step"], {name: list(rows) for name, rows in saved[1].items()}
        with training_mode(self.model, self.trained.values()):
            next_batches = batches_from(self.model, batches, first_step)
            label = ("training gates" if self.gates else "recovering") if progress else ""
            for step in show_progress(range(first_step, self.steps), label):
                began = time.perf_counter()
                history["loss"].append(self.step(next(next_batches), step).cpu())
                if self.gates is not None:
                    history["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
                history["seconds"].append(torch.tensor(time.perf_counter() - began))
                if folder is not None and ((step + 1) % SAVE_EVERY == 0 or step + 1 == self.steps):
                    metadata = {**settings, "step": step + 1}
                    save_training(file, self.parameters, self.optimizer, metadata, _stacked(history))
        return _stacked(history)

    def step(self, batch: Mapping, step: int) -> Tensor:
        """Do one step of the optimizer and return the task's loss."""
        torch.clear_autocast_cache()
        rate_factor = min(1.0, (1 - step / self.steps) / self.decay) if self.decay else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate_factor
        values, reached = {}, []
        with step_generator(self.seed, step, self.device) as generator:
            if self.gates is not None:
                values = self.gates.sample(batch_size(batch), per=self.per, generator=generator)
                for gate in values.values() if step == 0 else ():
                    # The hook also runs for a gradient of 0: what counts is that the loss depends on the gate.
                    gate.register_hook(lambda _gradient: reached.append(True))
            with gates_on(self.model, values):
                total = loss = task_loss(self.model, batch, self.loss)
                if self.gates is not None:  # Voita et al. 2019, eq. 9: the loss + lambda times the expected L0 norm
                    total = loss + self.penalty * self.gates.expected_l0()
                if not torch.isfinite(total):
                    reason = nonfinite_weights(self.model)
                    raise FloatingPointError(
                        f"the loss is {total.item()} at step {step}: lower the rates"
                        + (f", or load the model again, because {reason}" if reason else "")
                    )
                total.backward()
        if step == 0 and values and not reached:
            raise ValueError(
                "the loss does not depend on any gate, so nothing but the penalty would move them: let loss(outputs, "
                "batch) come from the model's outputs, with gradients"
            )
        if self.trained:
            torch.nn.utils.clip_grad_norm_(self.trained.values(), CLIP)
        self.optimizer.step()
        torch.clear_autocast_cache()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def _settings(self) -> dict:
        """Return all that the course of the run depends on, but for batches and loss: a checkpoint must have the same.

        To be called before the first step, since the weights at the start belong to it.
        """
        start = [*self.model.named_parameters(), *(self.gates.named_parameters() if self.gates else ())]
        names = ("penalty", "steps", "per", "gate_rate", "weight_rate", "decay", "seed")
        return {name: getattr(self, name) for name in names} | {
            "heads": self.gates.heads if self.gates else [],
            "weights": sorted(self.trained),
            "weights at the start": fingerprint(start),
        }


@contextmanager
def training_mode(model: nn.Module, trained: Collection[nn.Parameter]) -> Iterator[None]:
    """Let only the parameters ``trained`` learn, with dropout on if there are any; restores flags, modes, gradients."""
    trained_ids = set(map(id, trained))
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
