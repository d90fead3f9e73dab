"""The steps of a run that trains gates, or recovers from a cut: resumable, and the same whenever it was stopped."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from headtools._engine.progress import progress as show_progress
from headtools._engine.store import fingerprint
from headtools.heads._checks import check_not_compiled
from headtools.heads._finite import check_weights, nonfinite_weights
from headtools.heads.gates import apply_gates
from headtools.heads.sites import sites
from headtools.importance.loss import Loss
from headtools.sparse import _checkpoint as checkpoint
from headtools.sparse._training import (
    Batches,
    dice,
    in_turn,
    learning,
    refuse_reentrant,
    repeated,
    schedule,
    size,
    task_loss,
)
from headtools.sparse.hard_concrete import HardConcrete

PATIENCE = 20  # steps for which all gates must stay decided before a run stops early
CLIP = 1.0  # greatest norm of the weights' gradient; gates are not clipped


class Loop:
    """One run of steps over a model whose weights may change; ``gates`` is None for a recovery."""

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
        everything_learns = len(trained) == len(list(model.parameters()))
        if trained and not (gates is None and everything_learns):  # a model in eval mode checkpoints nothing
            refuse_reentrant(model)
        found = sites(model)  # once: a step neither moves nor cuts a head
        self.sites = {key: found[key] for key in (gates.sizes if gates is not None else ())}
        groups = [{"params": list(trained.values()), "lr": settings["weight_rate"], "betas": (0.9, 0.98),
                   "weight_decay": 0.01}] if trained else []  # fmt: skip
        self.parameters = dict(trained)
        if gates is not None:
            groups.append({"params": [gates.log_alpha], "lr": settings["gate_rate"], "weight_decay": 0.0})
            self.parameters["log_alpha"] = gates.log_alpha
        self.rates = [group["lr"] for group in groups]
        self.optimizer = torch.optim.AdamW(groups)

    def go(self, batches: Batches, folder: Path | None, save_every: int, progress: bool) -> dict[str, Tensor]:
        """Do the steps that are left; return the history: log_alpha, loss, seconds."""
        first, rows = 0, {name: [] for name in ("log_alpha", "loss", "seconds")}
        if self.gates is not None:
            rows["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
        settings = self.settings
        if folder is not None:
            start = [*self.model.named_parameters(), *(self.gates.named_parameters() if self.gates else ())]
            settings = settings | {"weights at the start": fingerprint(start)}
            saved = checkpoint.restore(folder, self.parameters, self.optimizer, settings)
            if saved:
                first = saved[0]
                rows |= {name: list(value) for name, value in saved[1].items()}
        left = range(first, settings["steps"])
        with learning(self.model, list(self.trained.values())):
            turn = in_turn(batches, first)
            label = "training gates" if self.gates else "recovering"
            for step in show_progress(left, label) if progress else left:
                if self._settled(rows["log_alpha"], step):
                    break
                began = time.perf_counter()
                rows["loss"].append(self.step(next(turn), step).cpu())
                if self.gates is not None:
                    rows["log_alpha"].append(self.gates.log_alpha.detach().cpu().clone())
                rows["seconds"].append(torch.tensor(time.perf_counter() - began))
                if folder is not None and ((step + 1) % save_every == 0 or step + 1 == settings["steps"]):
                    stacked = {name: torch.stack(value) for name, value in rows.items() if value}
                    checkpoint.save(folder, self.parameters, self.optimizer, stacked, settings, step + 1)
        return {name: torch.stack(value) for name, value in rows.items() if value}

    def step(self, batch: Mapping, step: int) -> Tensor:
        """Do one step of the optimizer; return the task's loss, one number a set of gates."""
        s, moved = self.settings, []
        torch.clear_autocast_cache()  # an autocast region around us keeps weights as they were, in half precision
        price, slow = schedule(step / s["steps"], s["ramp"], s["decay"])
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * slow
        sets = max(1, len(self.penalties))
        with dice(s["seed"], step, self.device) as generator:
            values = {}
            if self.gates is not None:
                drawn = self.gates.sample(size(batch), per=s["per"], generator=generator)
                values = {self.sites[key]: gate for key, gate in drawn.items()}
                for gate in values.values() if step == 0 else ():
                    gate.register_hook(lambda _slope: moved.append(True))  # a slope of 0 is one: the gate was reached
            with apply_gates(self.model, values):
                task = task_loss(self.model, repeated(batch, sets) if sets > 1 else batch, self.loss, sets)
                total = task.sum()
                if self.gates is not None:
                    total = total + price * (self.penalties * self.gates.expected_l0()).sum()
                if not torch.isfinite(total):
                    why = nonfinite_weights(self.model)
                    raise FloatingPointError(
                        f"the loss is {total.item()} at step {step}: lower the rates"
                        + (f", or load the model again, because {why}" if why else "")
                    )
                total.backward()
        if step == 0 and values and not any(moved):
            raise ValueError(
                "the loss does not depend on any gate, so nothing but the penalty would move them: let loss(outputs, "
                "batch) come from the model's outputs, with gradients"
            )
        if self.trained:
            torch.nn.utils.clip_grad_norm_(self.trained.values(), CLIP)
        self.optimizer.step()
        torch.clear_autocast_cache()
        self.optimizer.zero_grad(set_to_none=True)
        return task.detach()

    def _settled(self, log_alpha: list[Tensor], step: int) -> bool:
        """Tell whether every gate has been nearly always 0, or nearly always 1, for the last steps."""
        s = self.settings
        if s["settled"] is None or step < max(PATIENCE, s["ramp"] * s["steps"]):
            return False
        late = torch.stack(log_alpha[-PATIENCE:]).to(self.device)
        return bool(self.gates.decided(s["settled"], late).all())
