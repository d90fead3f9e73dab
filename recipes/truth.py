"""Which measure of importance finds the heads that are known to matter? ``python -m recipes.truth``

Twelve circuits are written by hand into models of two or three layers of four heads, beside decoys that write a little,
busy heads that write much where nobody reads, and idle ones. That the circuits are what they are said to be is checked
by removal. Then every measure ranks the heads: ``auroc`` is the probability that it puts a head of the circuit above
another one (.5 is chance), CPR and CMD are those of ``_faithfulness``. Results: ``truth.json``.
"""

import math
import platform
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import typer
from torch import Tensor
from tqdm import tqdm

import headtools as ht
from headtools.heads.record import contributions
from headtools.heads.scores import HeadScores
from headtools.importance.loss import each_loss
from headtools.organism.written_models import STARTS, SYMBOLS, WrittenModel, write_head, write_induction
from recipes._faithfulness import faithfulness
from recipes._results import ASSETS, write

FILE = ASSETS / "truth.json"
EXAMPLES, PERIOD, SEEDS = 64, 10, 3
CHANCE = math.log(SYMBOLS)
BUDGETS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0)  # MIB's ten are made for models of 100 heads and more
Head = tuple[str, int, int]


class Circuit(NamedTuple):
    """A written model and its truth: ``heads`` do the task, and the task's sequences are of one ``kind``."""

    model: WrittenModel
    heads: list[tuple[int, int]]
    kind: str = "repeats"
    rare: tuple[int, int] | None = None  # the head that only rare examples need


# --- the circuits -----------------------------------------------------------------------------------------------------


def _with_decoys(model: WrittenModel) -> WrittenModel:
    """Write two decoys in each layer: one writes a twentieth of an answer, one much where nobody reads."""
    for layer in range(len(model.layers)):
        write_head(model, layer, 2, match=2 + layer, into="answer", size=0.4)
        write_head(model, layer, 3, match=3 + layer, into="nowhere", size=8.0)
    return model


def induction(gain: float, **options: object) -> Circuit:
    """A previous-token head and an induction head."""
    model = _with_decoys(WrittenModel(2, **options))
    write_induction(model, gain)
    return Circuit(model, [(0, 0), (1, 0)])


def two_previous_token_heads(size: float, rest: float) -> Circuit:
    """The symbol before is written twice: with size 1 either does, with size .5 only both reach above ``rest``."""
    model = induction(100.0).model
    for head in (0, 1):
        write_head(model, 0, head, match=1, into="before", size=size)
    write_head(model, 1, 0, match=("token", "before"), into="answer", size=8.0, gain=100.0, rest=rest)
    return Circuit(model, [(0, 0), (0, 1), (1, 0)])


def rare() -> Circuit:
    """Sequences that begin with symbol 1, one in twenty, need another head, which rests in all others."""
    model = induction(100.0).model
    write_head(model, 1, 0, ("token", "before"), "answer", size=8.0, gain=100.0, rest={0: 0.5, 1: 10.0})
    write_head(model, 1, 1, match=3, into="answer", size=8.0, rest={0: 2.0})
    return Circuit(model, [(0, 0), (1, 0), (1, 1)], "rare", (1, 1))


def suppressor() -> Circuit:
    """A head finds the answer, too, and lowers it: without it the model is better."""
    model = induction(100.0).model
    write_head(model, 1, 1, ("token", "before"), "answer", size=-4.0, gain=100.0, rest=0.5)
    return Circuit(model, [(0, 0), (1, 0)])


def cancelled() -> Circuit:
    """A head writes a wrong answer, and another one in the next layer takes it away again."""
    model = induction(100.0).model
    for layer, size in ((0, 8.0), (1, -8.0)):
        write_head(model, layer, 1, match=2, into="answer", size=size)
    return Circuit(model, [(0, 0), (1, 0)])


def three_steps() -> Circuit:
    """What induction finds is not the answer, but what a third head looks for: it writes that head's queries."""
    model = _with_decoys(WrittenModel(3))
    write_head(model, 0, 0, match=1, into="before")
    write_head(model, 1, 0, ("token", "before"), "middle", gain=100.0, rest=0.5)
    write_head(model, 2, 0, ("middle", "token"), "answer", size=8.0, gain=100.0, rest=0.5)
    return Circuit(model, [(0, 0), (1, 0), (2, 0)])


def copying() -> Circuit:
    """One head copies what stood three before."""
    model = _with_decoys(WrittenModel(2))
    write_head(model, 0, 0, match=3, into="answer", size=8.0)
    return Circuit(model, [(0, 0)], "three back")


CIRCUITS: dict[str, Callable[[], Circuit]] = {
    "copying": copying,
    "induction, soft": lambda: induction(3.0),
    "induction, sharp": lambda: induction(10.0),
    "induction, saturated": lambda: induction(100.0),
    "three steps": three_steps,
    "either of two": lambda: two_previous_token_heads(1.0, 0.5),
    "both of two": lambda: two_previous_token_heads(0.5, 0.75),
    "one in twenty": rare,
    "suppressor": suppressor,
    "cancelled": cancelled,
    "grouped queries": lambda: induction(100.0, kv_heads=2),
    "encoder": lambda: induction(100.0, causal=False),
}


def batch_of(kind: str, seed: int) -> dict[str, Tensor]:
    """Return sequences (64, 21): a start, ten letters, the same ten again; labels in the second half, -100 elsewhere.

    The label of a symbol is what follows it, or what stood three before it (``kind`` "three back", and those sequences
    of "rare" that begin with symbol 1: the first three of 64).
    """
    generator = torch.Generator().manual_seed(seed)
    half = torch.stack([torch.randperm(SYMBOLS - len(STARTS), generator=generator)[:PERIOD] for _ in range(EXAMPLES)])
    ids = torch.nn.functional.pad(torch.cat([half, half], 1) + len(STARTS), (1, 0))
    back, labels = ids.roll(3, 1), torch.full_like(ids, -100)
    labels[:, PERIOD + 1 : -1] = ids[:, PERIOD + 2 :]
    if kind == "rare":
        ids[:3, 0] = 1
    changed = {"repeats": 0, "rare": 3, "three back": EXAMPLES}[kind]
    labels[:changed, PERIOD + 1 : -1] = back[:changed, PERIOD + 1 : -1]
    return {"input_ids": ids, "labels": labels}


def removal(circuit: Circuit, seed: int = 0) -> dict[str, float]:
    """Return the mean loss with all heads, without all others, without the circuit's heads, and without any of these.

    ``without_one`` is the smallest loss without one head of the circuit, on the examples that need it.
    """
    model, batch = circuit.model, batch_of(circuit.kind, seed)
    every = [(f"{site.kind}", site.layer, h) for site in ht.sites(model) for h in range(site.heads)]
    own = [head for head in every if head[1:] in circuit.heads]

    def losses(off: list[Head]) -> Tensor:
        with torch.no_grad(), ht.ablate(model, off):
            return each_loss(model, batch, "aligned")

    one = []
    for head in own:
        of_head = losses([head])
        rare_head = circuit.rare is not None and head[1:] == circuit.rare
        one.append((of_head[:3] if rare_head else of_head[3:]).mean().item())
    with torch.no_grad():
        full = each_loss(model, batch, "aligned").mean().item()
    others = losses([head for head in every if head not in own]).mean().item()
    return {"full": full, "without_others": others, "without": losses(own).mean().item(), "without_one": min(one)}


# --- the measures: (model, clean batch, counterfactual batch, seed) -> scores -----------------------------------------


def _flat(model: WrittenModel, values: Tensor, name: str) -> HeadScores:
    """Return scores of a tensor (layers, heads), or of as many numbers."""
    parts = values.detach().reshape(len(model.layers), -1)
    return HeadScores({site.key: row.clone() for site, row in zip(ht.sites(model), parts, strict=True)}, name)


def _recorded(model: WrittenModel, batch: dict, grad: bool = False, want: tuple = ("z",)) -> tuple[list, Tensor]:
    """Return what was recorded in every layer, and the sum of the examples' losses."""
    if grad:
        model.symbol.weight.requires_grad_(True)  # so that there is a graph
    try:
        with torch.set_grad_enabled(grad), ht.record(model, want=want, grad=grad) as run:
            loss = each_loss(model, batch, "aligned").sum()
    finally:
        model.symbol.weight.requires_grad_(False)
    return [run[site] for site in ht.sites(model)], loss


def gradient(**options: object) -> Callable:
    """``ht.gradient``; where signed, a head that lowers the loss has a positive score, as in ablation."""

    def measure(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
        scores = ht.gradient(model, batch, "aligned", **options)
        sign = -1 if options.get("signed") else 1
        return HeadScores({key: sign * value for key, value in scores.values.items()}, scores.name)

    return measure


def leave_one_out(replacement: str) -> Callable:
    """``ht.ablation``."""

    def measure(model: WrittenModel, batch: dict, _other: dict, seed: int) -> HeadScores:
        return ht.ablation(model, batch, "aligned", replacement, seed=seed, progress=False)

    return measure


def patching(model: WrittenModel, batch: dict, other: dict, _seed: int) -> HeadScores:
    """The rise of the loss with one head's output taken from the counterfactual run."""
    found, full = _recorded(model, other)
    source, rises = dict(zip([s.key for s in ht.sites(model)], found, strict=True)), []
    with torch.no_grad():
        full = each_loss(model, batch, "aligned").mean()
        for site in ht.sites(model):
            for head in range(site.heads):
                with ht.patch(model, [(*site.key, head)], source):
                    rises.append(each_loss(model, batch, "aligned").mean() - full)
    return _flat(model, torch.stack(rises), "patching")


def right_answers(outputs: object, batch: dict) -> Tensor:
    """The right answers' logits, summed, (B,): what relevance explains."""
    labels = batch["labels"]
    return (outputs.logits.gather(2, labels.clamp(0)[..., None])[..., 0] * (labels >= 0)).sum(1)


def relevance(rules: str) -> Callable:
    """``ht.relevance`` of the right answers."""
    return lambda model, batch, *_: ht.relevance(model, batch, right_answers, rules)


def direct_logits(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
    """How far each head's own output raises the right answer's logit above the mean of all."""
    found, _loss = _recorded(model, batch)
    rows, labels = [], batch["labels"]
    for site, captured in zip(ht.sites(model), found, strict=True):
        logits = contributions(site, captured.z) @ model.unembed.weight.T  # (B, T, H, V)
        index = labels.clamp(0)[..., None, None].expand(*logits.shape[:3], 1)
        rows.append((logits.gather(3, index)[..., 0] - logits.mean(-1))[labels >= 0].mean(0))
    return _flat(model, torch.stack(rows), "direct logit attribution")


def norm_written(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
    """The mean length of what a head adds to the residual stream."""
    found, _loss = _recorded(model, batch)
    rows = [contributions(site, c.z).norm(dim=-1).mean((0, 1)) for site, c in zip(ht.sites(model), found, strict=True)]
    return _flat(model, torch.stack(rows), "norm")


def trained_gates(penalty: float) -> Callable:
    """``ht.fit_gates`` with fixed weights."""

    def measure(model: WrittenModel, batch: dict, _other: dict, seed: int) -> HeadScores:
        options = {"steps": 60, "weights": None, "loss": "aligned", "seed": seed, "progress": False}
        return ht.fit_gates(model, [batch], penalty, **options).scores

    return measure


def _gated_loss(model: WrittenModel, batch: dict, gates: Tensor) -> Tensor:
    with ht.gates(model, {site.key: row for site, row in zip(ht.sites(model), gates, strict=True)}):
        return each_loss(model, batch, "aligned").mean()


def causal_head_gating(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
    """Two fits of gates, one drawn open and one drawn shut: facilitating heads stay open in both (arXiv:2505.13737)."""
    fits = []
    for sign in (1, -1):
        logits = torch.zeros(len(model.layers), 4, requires_grad=True)
        optimiser = torch.optim.Adam([logits], lr=0.2)
        for _step in range(40):
            gates = logits.sigmoid()
            optimiser.zero_grad()
            (_gated_loss(model, batch, gates) - sign * 0.05 * gates.sum()).backward()
            optimiser.step()
        fits.append(logits.detach().sigmoid())
    return _flat(model, fits[0] * fits[1], "causal head gating")


def random_subsets(model: WrittenModel, batch: dict, _other: dict, seed: int) -> HeadScores:
    """A lasso of the loss on which heads are there, over 128 random halves of the heads (arXiv:2603.03335)."""
    from sklearn.linear_model import LassoCV

    kept = torch.rand(128, len(model.layers), 4, generator=torch.Generator().manual_seed(seed)) < 0.5
    with torch.no_grad():
        losses = [_gated_loss(model, batch, gates.float()).item() for gates in kept]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a path that has not converged to the last digit
        fit = LassoCV(cv=5, random_state=0).fit(kept.flatten(1).numpy().astype(float), np.array(losses))
    return _flat(model, torch.tensor(-fit.coef_), "random subsets")


def integrated_gates(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
    """Integrated gradients of the loss along gates from 0 to 1, all at once, in 16 steps."""
    total = torch.zeros(len(model.layers), 4)
    for step in range(16):
        gates = torch.full_like(total, (step + 0.5) / 16).requires_grad_()
        total -= torch.autograd.grad(_gated_loss(model, batch, gates), gates)[0] / 16
    return _flat(model, total, "integrated gradients")


def atp_star(model: WrittenModel, batch: dict, other: dict, _seed: int) -> HeadScores:
    """Attribution patching with queries and keys repaired: the largest of the effects by output, query and key.

    The softmax is recomputed with the counterfactual run's queries, or keys (arXiv:2403.00745, section 3.1).
    """
    want = ("z", "q", "k", "v", "maps", "visible")
    found, loss = _recorded(model, batch, True, want)
    changed, _loss = _recorded(model, other, False, want)
    slopes = torch.autograd.grad(loss, [c.z for c in found], allow_unused=True)
    rows = []
    for a, b, slope in zip(found, changed, slopes, strict=True):
        slope = torch.zeros_like(a.z) if slope is None else slope

        def effect(z: Tensor, a: object = a, slope: Tensor = slope) -> Tensor:  # (B, T, H, value_dim) -> (H,)
            return ((z - a.z) * slope).sum((1, 3)).abs().mean(0)

        def attend(q: Tensor, k: Tensor, a: object = a) -> Tensor:
            scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~a.visible, -torch.inf)
            return (scores.softmax(-1) @ a.v).transpose(1, 2)

        rows.append(torch.stack([effect(b.z), effect(attend(b.q, a.k)), effect(attend(a.q, b.k))]).amax(0))
    return _flat(model, torch.stack(rows), "AtP*")


LRP = ("attnlrp", "cp", "epsilon", "alphabeta", "zplus", "voita", "ratio", "gradient")
# Each with its cost in forward passes, a pass back counted as one; "H" is the number of heads.
MEASURES: dict[str, tuple[Callable, str]] = {
    "gradient": (gradient(), "2"),
    "gradient, signed": (gradient(signed=True), "2"),
    "gradient per position": (gradient(per="position"), "2"),
    "gradient per batch": (gradient(per="batch"), "2"),
    "gradient by secant": (gradient(softmax="secant"), "2"),
    "gradient by secant, signed": (gradient(softmax="secant", signed=True), "2"),
    "leave one out, zero": (leave_one_out("zero"), "H + 1"),
    "leave one out, mean": (leave_one_out("mean"), "H + 2"),
    "leave one out, resample": (leave_one_out("resample"), "H + 2"),
    "leave one out, uniform": (leave_one_out("uniform"), "H + 1"),
    "leave one out, counterfactual": (patching, "H + 2"),
    "AtP*": (atp_star, "3"),
    "integrated gradients": (integrated_gates, "32"),
    "direct logit attribution": (direct_logits, "1"),
    "norm of what is written": (norm_written, "1"),
    "confidence": (lambda model, batch, *_: ht.confidence(model, batch), "1"),
    **{f"relevance, {rules}": (relevance(rules), "2") for rules in LRP},
    **{f"trained gates, penalty {x}": (trained_gates(x), "120") for x in (0.03,)},
    "causal head gating": (causal_head_gating, "160"),
    "random subsets, lasso": (random_subsets, "128"),
}


SLOW = ("trained gates, penalty 0.03", "causal head gating", "random subsets, lasso")  # measured for one seed


def auroc(scores: HeadScores, circuit: Circuit) -> float:
    """Return how probably a head of the circuit has a higher score than another; equal scores count half."""
    own = torch.tensor([head[1:] in circuit.heads for head in scores])
    values = scores.flat()
    difference = values[own][:, None] - values[~own]
    return ((difference > 0).double() + 0.5 * (difference == 0).double()).mean().item()


def cell(name: str, measure: str, seed: int) -> dict:
    """Return one row of the table: what a measure says of a circuit, on the sequences of one seed."""
    circuit = CIRCUITS[name]()
    model, batch = circuit.model, batch_of(circuit.kind, seed)
    other = batch_of(circuit.kind, 1_000 + seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the softmax of")  # that it is saturated is what is tried here
        scores = MEASURES[measure][0](model, batch, other, seed)
    area = faithfulness(model, batch, other, scores, "aligned", BUDGETS).attrs
    row = {"circuit": name, "measure": measure, "seed": seed, "auroc": auroc(scores, circuit), **area}
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()} | {
        "scores": [float(f"{x:.3g}") for x in scores.flat().tolist()]
    }


def pairs(name: str) -> dict:
    """Return what ``ht.interaction`` says of the two previous-token heads of a circuit."""
    circuit = CIRCUITS[name]()
    two = [(("decoder", 0, 0), ("decoder", 0, 1))]
    found = ht.interaction(circuit.model, batch_of("repeats", 0), two, "aligned", progress=False).iloc[0]
    return {"circuit": name} | {key: round(float(found[key]), 4) for key in ("interaction", "low", "high")}


def main(seeds: int = SEEDS, file: Annotated[Path, typer.Option(help="where results go")] = FILE) -> None:
    """Measure every cell of the table."""
    torch.set_num_threads(1)
    truth = [{"circuit": c, **{k: round(x, 4) for k, x in removal(make()).items()}} for c, make in CIRCUITS.items()]
    two, runs = [pairs(name) for name in ("either of two", "both of two")], []
    for seed in range(seeds):
        cells = [(c, m, seed) for m in MEASURES if m not in SLOW or seed == 0 for c in CIRCUITS]
        runs += [cell(*some) for some in tqdm(cells, desc=f"seed {seed}")]
        about = {"examples": EXAMPLES, "seeds": seed + 1, "chance": round(CHANCE, 4), "budgets": BUDGETS}
        results = {"setting": about, "threads": 1, "processor": platform.machine(), "torch": torch.__version__}
        costs = {name: cost for name, (_measure, cost) in MEASURES.items()}
        write(results | {"truth": truth, "pairs": two, "costs": costs, "runs": runs}, file, row_key="circuit")


if __name__ == "__main__":
    typer.run(main)
