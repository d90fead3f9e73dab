"""How many heads remain at each penalty? ``python -m recipes.sweep``

One run trains Hard Concrete gates for one penalty and seed, cuts the heads whose gates closed, translates, and measures
which roles the remaining heads have. There are runs with gates on the encoder's heads while the decoder is frozen, as
in Voita et al. 2019 (section 6.2), and with gates on all heads while all weights learn (section 6.3). Penalty 0 is the
control. A second table, of a few runs at other rates of the gates, shows why the sweep has the rate it has.
Each finished run is a file in a folder, and the command makes only the runs that are missing. Result: ``sweep.json``.
"""

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

import headtools as ht
from headtools.organism.batches import TrainingBatches
from headtools.organism.evaluate import bleu, token_accuracy
from headtools.organism.roles_found import roles
from headtools.organism.shipped import LIVE_GATES, LIVE_TOKENS
from headtools.roles.sentence import Sentence
from headtools.sparse.fit_gates import Fit
from recipes._parallel import parallel_map
from recipes._results import ASSETS, interval, name_of, read, write

FILE = ASSETS / "sweep.json"
PENALTIES = {  # nats for one open gate; 0 is the control: as many steps, no penalty
    "encoder": (0.0, 0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "all": (0.0, 0.002, 0.01, 0.03, 0.1, 0.3),
}
SEEDS = [0, 1, 2]
RATES = [0.25, 0.1, 0.05, 0.02]  # learning rates of the gates that are compared; the sweep has that of LIVE_GATES
RATES_AT = (0.0, 0.05)  # penalties at which they are, with gates on the encoder's heads
SENTENCES = 500  # of the test split, translated; roles are selected on as many of the validation split
N_SNAPSHOTS = 21  # steps of a run at which its log alpha is stored
SATURATED = 0.9  # P(0) or P(1) of a gate that is clearly closed or open


def one_run(over: str, penalty: float, seed: int, sentences: int = SENTENCES, **changes: object) -> dict:
    """Train gates for one penalty, cut, and measure on the first ``sentences`` test sentences.

    ``over``: gates on the heads of the "encoder", with the decoder frozen so that no function can move there, or on
    "all". ``kept``: the heads that stay. ``bleu`` (0 to 100) and ``accuracy`` (fraction of words right, given the right
    words so far), each with its 95 % interval. ``decided``: fraction of the gates that are 0 or 1 with a probability of
    .9 or more. ``roles``: by surviving encoder head. ``log_alpha``: at the end, in the order of the model's heads.
    ``moments``, ``history``, ``losses``: some steps, with log alpha of every gate and the task's loss. ``seconds``: of
    processor time, for the training.

    >>> row = one_run("encoder", penalty=0.05, seed=0, sentences=5, steps=1)
    >>> len(row["kept"]), row["moments"], len(row["history"][0])
    (48, [0, 1], 48)
    """
    model, tokenizer = ht.load()
    began = time.process_time()
    fit = train_gates(model, over, penalty, seed, **changes)
    seconds = time.process_time() - began
    last = len(fit.losses)
    moments = sorted({round(last * i / (N_SNAPSHOTS - 1)) for i in range(N_SNAPSHOTS)})
    return {
        "over": over,
        "penalty": penalty,
        "seed": seed,
        "kept": [name_of(head) for head in fit.open_heads],
        **quality(fit.cut().eval(), tokenizer, ht.corpus("organism", "test", sentences)),
        "decided": round(fit.gates.saturated(SATURATED).float().mean().item(), 4),
        "roles": roles_of_survivors(fit, tokenizer, sentences),
        "log_alpha": [round(x, 2) for x in fit.gates.log_alpha.tolist()],
        "moments": moments,
        "history": [[round(x, 1) for x in fit.history.iloc[step].tolist()] for step in moments],
        "losses": [round(float(fit.losses.loss.iloc[max(0, step - 20) : step + 20].mean()), 4) for step in moments],
        "seconds": round(seconds, 1),
    }


def train_gates(model: nn.Module, over: str, penalty: float, seed: int, **changes: object) -> Fit:
    """Train gates with the settings of lesson 09."""
    return ht.fit_gates(
        model,
        TrainingBatches(seed, LIVE_TOKENS),
        penalty,
        sites=None if over == "all" else over,
        weights=over,
        seed=seed,
        **{**LIVE_GATES, "progress": False, **changes},
    )


def quality(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> dict[str, list[float]]:
    """Return ``bleu`` (0 to 100) and ``accuracy`` (0 to 1), each with its 95 % interval."""
    return {
        "bleu": [round(x, 2) for x in bleu(model, tokenizer, sentences)],
        "accuracy": interval(token_accuracy(model, sentences)),
    }


def roles_of_survivors(fit: Fit, tokenizer: object, sentences: int) -> dict[str, list[str]]:
    """Return the roles of the remaining encoder heads, measured with the other gates at 0: {"5.1": [...]}."""
    kept = {name_of(head).split()[1] for head in fit.open_heads if head[0] == "encoder"}
    splits = [ht.corpus("organism", split, sentences) for split in ("validation", "test")]
    fit.model.eval()
    with ht.gates(fit.model, fit.values()):
        frame = roles(fit.model, tokenizer, *splits)
    of_kept = frame[frame.passes & frame["head"].isin(kept)]
    return {head: sorted(rows.role) for head, rows in of_kept.groupby("head")}


def finished_run(run: dict, folder: Path, sentences: int, steps: int, rate: float = LIVE_GATES["gate_rate"]) -> dict:
    """Return one run of the sweep, read from its file in ``folder`` or run and written to it."""
    setting = LIVE_GATES | {"gate_rate": rate, "steps": steps, "tokens": LIVE_TOKENS, "sentences": sentences}
    of_rate = "" if rate == LIVE_GATES["gate_rate"] else f"-rate{rate:g}"
    file = folder / f"{run['over']}-{run['penalty']:g}-{run['seed']}{of_rate}.json"
    if stored := read(file):
        if stored["setting"] != setting:
            raise ValueError(f"{file} was made with {stored['setting']}, not {setting}; use another folder: --runs NEW")
        return stored["row"]
    row = one_run(**run, sentences=sentences, steps=steps, gate_rate=rate)
    write({"setting": setting, "row": row}, file)
    return row


def gather(rows: Iterable[dict], rates: Iterable[dict], sentences: int, steps: int) -> dict:
    """Return the shipped tables: the setting, the model before, all runs in order, histories of the first seed only."""
    runs = [
        row if row["seed"] == SEEDS[0] else {k: v for k, v in row.items() if k not in ("history", "losses")}
        for row in sorted(rows, key=lambda row: (row["over"] == "all", row["seed"], row["penalty"]))
    ]
    return {
        "setting": LIVE_GATES | {"steps": steps, "tokens": LIVE_TOKENS, "sentences": sentences},
        "before": quality(*ht.load(), ht.corpus("organism", "test", sentences)),
        "runs": runs,
        "rates": list(rates),
    }


def rate_row(rate: float, row: dict, sentences: int) -> dict:
    """Return a run at one rate of the gates, without its history, and what the closed heads cost the model before.

    ``cost``: fraction of words that the untouched model gets wrong, on top of those it gets wrong anyway, if the heads
    that closed are switched off in it, with the 95 % interval.

    >>> row = {"over": "encoder", "penalty": 0.0, "seed": 0, "kept": [f"encoder 5.{head}" for head in range(8)],
    ...        "bleu": [90, 89, 91], "accuracy": [0.9, 0.8, 1], "decided": 1.0}
    >>> found = rate_row(0.25, row, sentences=5)
    >>> found["rate"], found["cost"][0] > 0.1
    (0.25, True)
    """
    model, _ = ht.load()
    test, kept = ht.corpus("organism", "test", sentences), set(row["kept"])
    closed = [
        (*site.key, h)
        for site in ht.sites(model)[row["over"]]
        for h in range(site.heads)
        if name_of((*site.key, h)) not in kept
    ]
    before = token_accuracy(model, test)
    with ht.ablate(model, closed):
        cost = before - token_accuracy(model, test)
    return {
        "over": row["over"],
        "rate": rate,
        "cost": interval(cost),
        **{key: row[key] for key in ("penalty", "seed", "kept", "bleu", "accuracy", "decided")},
    }


def main(
    over: list[str] = list(PENALTIES),
    penalty: Annotated[list[float] | None, typer.Option(help="instead of those of the shipped sweep")] = None,
    seed: list[int] = SEEDS,
    steps: int = LIVE_GATES["steps"],
    rate: Annotated[list[float], typer.Option(help="of the gates, in the table of rates")] = RATES,
    limit: Annotated[int, typer.Option(help="test sentences translated")] = SENTENCES,
    runs: Annotated[Path, typer.Option(help="folder of finished runs")] = Path("sweep-runs"),
    jobs: Annotated[int, typer.Option(help="runs at a time, each on one core; -1 for all")] = 1,
    file: Path = FILE,
) -> None:
    """Run what is missing, several runs at a time, and write the table."""
    folder = runs.resolve()  # absolute, since a worker may be started in another folder
    # All penalties of one seed before the next seed, so that a run that is stopped early has a complete curve.
    plan = [
        {"over": kind, "penalty": p, "seed": s} for s in seed for kind in over for p in (penalty or PENALTIES[kind])
    ]
    rows = list(parallel_map(finished_run, [(run, folder, limit, steps) for run in plan], jobs))
    compared = [
        ({"over": "encoder", "penalty": p, "seed": s}, folder, limit, steps, r)
        for r in rate
        for p in RATES_AT
        for s in seed
    ]
    of_rates = [
        rate_row(task[-1], row, limit)
        for task, row in zip(compared, parallel_map(finished_run, compared, jobs), strict=True)
    ]
    write(gather(rows, of_rates, limit, steps), file, row_key="over")
    print(
        json.dumps(
            [
                {key: row[key] for key in ("over", "penalty", "seed", "bleu")} | {"kept": len(row["kept"])}
                for row in rows
            ],
            indent=1,
        )
    )


if __name__ == "__main__":
    typer.run(main)
