"""The training loop of ``fit_gates`` and ``recover``: what it is given, its steps, its checkpoints.

- A run that was stopped and is started again ends at the same weights as one that never stopped. So everything random
  in a step follows from the seed and the step's number (``step_generator``), the batch of a step can be asked for by
  its number, and weights, moments and history are saved together.
- The caller's model is never left half trained: flags, modes and gradients come back after an exception
  (``training_mode``), and weights are trained in a copy, which the caller of this module makes.
- Autocast caches half-precision copies of weights for as long as its region lasts, so the cache is cleared around each
  optimizer step: otherwise later steps would compute with weights from before it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools._engine.loop import progress as show_progress
from headtools._engine.store import fingerprint, read_tensors, write_tensors
from headtools.heads._checks import check_has_backward, check_not_compiled, check_weights, nonfinite_weights
from headtools.heads._hooks import claimed
from headtools.heads.gates import gates as gates_on
from headtools.importance._inputs import each_batch
from headtools.importance.loss import Loss, check_loss, each_loss
from headtools.sparse.hard_concrete import HardConcrete

FILE = "gates.safetensors"  # in the folder that ``checkpoint`` names
SAVE_EVERY = 50  # steps
CLIP = 1.0  # largest norm of the weights' gradient; gates are not clipped
_MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's running means of the gradient and of its square
Batches = Callable[[int], Mapping] | Mapping | Iterable[Mapping]


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


# --- what a run is given ----------------------------------------------------------------------------------------------


def trained_weights(model: nn.Module, weights: str | Collection[str] | None) -> dict[str, nn.Parameter]:
    """Return the parameters that learn, as ``fit_gates`` describes ``weights``; ``ValueError`` where there is none."""
    if weights is None:
        return {}
    selected = dict(model.named_parameters())
    if weights == "encoder":
        encoder = model.get_encoder() if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else None
        prefix = next((f"{name}." for name, module in model.named_modules() if module is encoder), None)
        if prefix is None:
            raise ValueError(f'{type(model).__name__} has no encoder of its own: use weights="all" or weights=None')
        # With duplicates: a tied weight is listed under each of its names, so one outside the encoder shows that it is
        # shared, even where named_parameters() would list it under its encoder name alone.
        all_names = model.named_parameters(remove_duplicate=False)
        shared = {id(p) for name, p in all_names if not name.startswith(prefix)}
        selected = {name: p for name, p in selected.items() if name.startswith(prefix) and id(p) not in shared}
    elif weights != "all":
        prefixes = (weights,) if isinstance(weights, str) else tuple(weights)
        selected = {name: p for name, p in selected.items() if name.startswith(prefixes)}
    if not selected:
        raise ValueError(
            f"no weight of {type(model).__name__} matches weights={weights!r}: write the beginnings of names such as "
            f"{next(iter(dict(model.named_parameters())), 'those of named_parameters()')!r}"
        )
    trainable = {name: p for name, p in selected.items() if p.requires_grad}
    if not trainable:
        raise ValueError(
            f"all {len(selected)} weights that weights={weights!r} means are frozen, {min(selected)} among them: let "
            "some learn first, model.requires_grad_(True), or train gates alone, weights=None"
        )
    return trainable


def check_checkpointing(model: nn.Module) -> None:
    """Raise ``ValueError`` for reentrant gradient checkpointing, under which gates and some weights learn nothing.

    The reentrant kind passes gradients only to a layer's arguments. A gate is no argument of the layer, so it would
    get none; nor would the weights of a layer whose arguments need none, since all weights below it are frozen.
    """
    for name, module in model.named_modules():
        run = getattr(module, "_gradient_checkpointing_func", None)
        if getattr(module, "gradient_checkpointing", False) and getattr(run, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                f"{name or type(module).__name__} checkpoints its gradients by use_reentrant=True, which gives gates "
                "and layers behind frozen ones no gradient: write model.gradient_checkpointing_enable("
                'gradient_checkpointing_kwargs={"use_reentrant": False})'
            )


def batches_from(model: nn.Module, batches: Batches, first_step: int) -> Iterator[Mapping]:
    """Yield the batch of each step from ``first_step`` on: ``batches(step)``, or one or several in endless rotation.

    Raises ``ValueError`` where there are no batches or an iterator ran out, and as ``each_batch`` does.
    """
    if callable(batches):
        return each_batch(model, map(batches, count(first_step)))
    rotation = _rotation([batches] if isinstance(batches, Mapping) else batches)
    return each_batch(model, islice(rotation, first_step, None))


def _rotation(batches: Iterable[Mapping]) -> Iterator[Mapping]:
    while True:  # not itertools.cycle: a loader may shuffle its batches anew in every round
        n = 0
        for n, batch in enumerate(batches, 1):  # noqa: B007
            yield batch
        if not n:
            raise ValueError(
                "got no batches, or a generator that is used up: pass a list of dicts, which can be gone through again"
            )


def batch_size(batch: Mapping) -> int:
    """Return the number of examples of a batch."""
    return next(len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim())


def task_loss(model: nn.Module, batch: Mapping, loss: Loss | None) -> Tensor:
    """Return the mean loss of a batch."""
    if loss is None:
        value = getattr(model(**batch), "loss", None)
    else:
        check_loss(loss)
        value = each_loss(model, batch, loss) if isinstance(loss, str) else loss(model(**batch), batch)
    if not isinstance(value, Tensor):
        raise TypeError(
            f"got {value!r} as the loss; expected a tensor: write batches with labels, so that model(**batch).loss is "
            "there, or loss=function(outputs, batch) -> (B,)"
        )
    if value.shape not in ((), (batch_size(batch),)):
        raise ValueError(
            f"got a loss of shape {tuple(value.shape)}; expected (), or one number per example, ({batch_size(batch)},)"
        )
    return value.mean()


# --- its checkpoint, one safetensors file -----------------------------------------------------------------------------


def save_training(
    path: Path,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    metadata: Mapping[str, Any],
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Write parameters, moments and ``extra`` tensors, and ``metadata`` with the number of steps done, "step"."""
    tensors = dict(extra or {})
    for name, parameter in parameters.items():
        tensors[f"weight|{name}"] = parameter.detach()
        state = optimizer.state.get(parameter, {})  # empty before the parameter's first gradient
        tensors |= {f"{moment}|{name}": state[moment] for moment in _MOMENTS if moment in state}
    write_tensors(path, tensors, metadata)


@torch.no_grad()
def restore_training(
    path: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, **required: Any
) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Load what ``save_training`` wrote; return metadata and extra tensors, or None where there is no file.

    ``required``: entries that the metadata must have. Raises ``ValueError``, before anything is changed, for a damaged
    file, or one of another run or other weights.
    """
    if not path.exists():
        return None
    try:
        tensors, metadata = read_tensors(path)
        step = torch.tensor(float(metadata["step"]))
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and the run starts anew") from error
    required = json.loads(json.dumps(required))  # as the metadata come back: tuples are lists there
    differ = sorted(name for name, value in required.items() if metadata.get(name) != value)
    weights = {f"weight|{name}": parameter.shape for name, parameter in parameters.items()}
    if weights != {name: tensor.shape for name, tensor in tensors.items() if name.startswith("weight|")}:
        differ.append("another model's weights")
    if differ:
        raise ValueError(
            f"{path.parent} holds another run (other than now: {', '.join(differ)}): use another, empty folder"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors.pop(f"weight|{name}"))
        if f"{_MOMENTS[0]}|{name}" in tensors:
            moments = {moment: tensors.pop(f"{moment}|{name}").to(parameter, copy=True) for moment in _MOMENTS}
            optimizer.state[parameter] = {"step": step.clone(), **moments}
    return metadata, tensors
