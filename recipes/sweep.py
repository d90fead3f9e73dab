"""How many heads remain at each penalty? ``python -m recipes.sweep``

One run trains Hard Concrete gates for one penalty and seed, cuts the heads whose gates closed, translates, and measures
which roles the remaining heads have. There are runs with gates on the encoder's heads while the decoder is frozen, as
in Voita et al. 2019 (section 6.2), and with gates on all heads while all weights learn (section 6.3). Penalty 0 is the
control.
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
        "over": over, "penalty": penalty, "seed": seed, "kept": [name_of(head) for head in fit.open_heads],
        **quality(fit.cut().eval(), tokenizer, ht.corpus("organism", "test", sentences)),
        "decided": round(fit.gates.saturated(SATURATED).float().mean().item(), 4),
        "roles": roles_of_survivors(fit, tokenizer, sentences),
        "log_alpha": [round(x, 2) for x in fit.gates.log_alpha.tolist()],
        "moments": moments,
        "history": [[round(x, 1) for x in fit.history.iloc[step].tolist()] for step in moments],
        "losses": [round(float(fit.losses.loss.iloc[max(0, step - 20) : step + 20].mean()), 4) for step in moments],
        "seconds": round(seconds, 1),
    }  # fmt: skip


def train_gates(model: nn.Module, over: str, penalty: float, seed: int, **changes: object) -> Fit:
    """Train gates with the settings of lesson 08."""
    return ht.fit_gates(
        model, TrainingBatches(seed, LIVE_TOKENS), penalty, sites=None if over == "all" else over, weights=over,
        seed=seed, **{**LIVE_GATES, "progress": False, **changes},
    )  # fmt: skip


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
    of_kept = frame[frame.found & frame["head"].isin(kept)]
    return {head: sorted(rows.role) for head, rows in of_kept.groupby("head")}


def finished_run(run: dict, folder: Path, sentences: int, steps: int) -> dict:
    """Return one run of the sweep, read from its file in ``folder`` or run and written to it."""
    setting = LIVE_GATES | {"steps": steps, "tokens": LIVE_TOKENS, "sentences": sentences}
    file = folder / f"{run['over']}-{run['penalty']:g}-{run['seed']}.json"
    if stored := read(file):
        if stored["setting"] != setting:
            raise ValueError(f"{file} was made with {stored['setting']}, not {setting}; use another folder: --runs NEW")
        return stored["row"]
    row = one_run(**run, sentences=sentences, steps=steps)
    write({"setting": setting, "row": row}, file)
    return row


def gather(rows: Iterable[dict], sentences: int, steps: int) -> dict:
    """Return the shipped table: the setting, the model before, all runs in order, histories of the first seed only."""
    runs = [row if row["seed"] == SEEDS[0] else {k: v for k, v in row.items() if k not in ("history", "losses")}
            for row in sorted(rows, key=lambda row: (row["over"] == "all", row["seed"], row["penalty"]))]  # fmt: skip
    return {
        "setting": LIVE_GATES | {"steps": steps, "tokens": LIVE_TOKENS, "sentences": sentences},
        "before": quality(*ht.load(), ht.corpus("organism", "test", sentences)),
        "runs": runs,
    }


def main(
    over: list[str] = list(PENALTIES),
    penalty: Annotated[list[float] | None, typer.Option(help="instead of those of the shipped sweep")] = None,
    seed: list[int] = SEEDS,
    steps: int = LIVE_GATES["steps"],
    limit: Annotated[int, typer.Option(help="test sentences translated")] = SENTENCES,
    runs: Annotated[Path, typer.Option(help="folder of finished runs")] = Path("sweep-runs"),
    jobs: Annotated[int, typer.Option(help="runs at a time, each on one core; -1 for all")] = 1,
    file: Path = FILE,
) -> None:
    """Run what is missing, several runs at a time, and write the table."""
    folder = runs.resolve()  # absolute, since a worker may be started in another folder
    # All penalties of one seed before the next seed, so that a run that is stopped early has a complete curve.
    plan = [{"over": kind, "penalty": p, "seed": s}
            for s in seed for kind in over for p in (penalty or PENALTIES[kind])]  # fmt: skip
    rows = list(parallel_map(finished_run, [(run, folder, limit, steps) for run in plan], jobs))
    write(gather(rows, limit, steps), file, row_key="over")
    print(json.dumps([{key: row[key] for key in ("over", "penalty", "seed", "bleu")} | {"kept": len(row["kept"])}
                      for row in rows], indent=1))  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
