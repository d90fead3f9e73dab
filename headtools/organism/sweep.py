"""How many heads the organism keeps at every price: ``python -m headtools.organism.sweep`` (``make sweep``).

One run trains Hard Concrete gates for one penalty and seed, cuts the heads that closed, translates, and looks which
roles the survivors hold. There are runs with gates on the encoder's heads while the decoder is frozen, as Voita et al.
2019 (section 6.2) have it, and with gates on all heads while all weights learn (section 6.3); a penalty of 0 is the
control. Each finished run is a file in a folder, whole or not at all; started again, the command makes only what is
missing. What it finds is gathered into ``assets/sweep.json``.

>>> rows = sweep()
>>> sorted({row["over"] for row in rows}), rows[0]["penalty"], len(rows[0]["history"])
(['all', 'encoder'], 0.0, 21)
"""

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools.heads.files import read_json, signed
from headtools.heads.whole import written_bytes
from headtools.organism.accuracy import token_accuracy
from headtools.organism.jobs import in_turn, side_by_side
from headtools.organism.pruning import TrainingBatches
from headtools.organism.publish import ASSETS
from headtools.organism.roles_found import roles
from headtools.organism.score import bleu
from headtools.organism.train import head_of
from headtools.roles.corpus import Sentence
from headtools.sparse.fit import Fit, fit_gates

if TYPE_CHECKING:
    import pandas as pd

FILE = ASSETS / "sweep.json"
# The live setting: a run of half a minute on one core, after which nearly every gate is clearly open or closed.
TOKENS = 448  # padded source and target tokens a batch
SETTING = {"steps": 400, "start": 1.5, "gate_rate": 0.25, "weight_rate": 8e-4, "decay": 0.3}
PENALTIES = {  # nats for one open gate; 0 is the control: as many steps, no price
    "encoder": (0.0, 0.0005, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "all": (0.0, 0.002, 0.01, 0.03, 0.1, 0.3),
}
LEARNS = {"encoder": "encoder", "all": "all"}  # which weights learn beside the gates
SEEDS = (0, 1, 2)
SENTENCES = 500  # of the test split, translated; roles are picked on as many of validation
MOMENTS = 21  # of a run, kept of its log alpha
DECIDED = 0.9  # P(0) or P(1) of a gate that is clearly closed or open


def fitted(model: nn.Module, penalty: float, seed: int = 0, over: str = "encoder", **changes: object) -> Fit:
    """Train gates by the live setting, on heads of the "encoder" or on "all"; ``changes`` goes to ``fit_gates``.

    With "encoder" only the encoder's weights learn, so that no function can move to the decoder; with "all" all do.
    Raises ``ValueError`` for another ``over``.

    >>> fitted(ht.load()[0], 0.05, steps=1, quiet=True)
    <Fit: 48 of 48 heads open after 1 steps at penalty 0.05>
    """
    if over not in LEARNS:
        raise ValueError(f'over is "encoder" or "all", got {over!r}')
    settings = SETTING | {"weights": LEARNS[over]} | changes
    return fit_gates(
        model, TrainingBatches(seed, TOKENS), penalty, over=None if over == "all" else over, seed=seed, **settings
    )


def one(
    model: nn.Module,
    tokenizer: object,
    penalty: float,
    seed: int = 0,
    over: str = "encoder",
    sentences: int = SENTENCES,
    **changes: object,
) -> dict:
    """Train gates for one penalty, cut, and measure on the first ``sentences`` test sentences: a row fit for JSON.

    ``kept``: the heads that stay ("encoder 5.1"). ``bleu`` (0 to 100) and ``accuracy`` (share of words right, given
    the right words so far), each with the ends of its 95 % bootstrap interval. ``decided``: share of the gates that are
    0 or 1 with a probability of .9 or more. ``roles``: by surviving encoder head, the roles it has now, after
    :func:`headtools.organism.roles_found.roles`. ``log_alpha``: at the end, in the order of the model's heads.
    ``moments``, ``history`` and ``losses``: some steps, with log alpha of every gate and the task's loss at each.
    ``seconds``: of processor time, for the training. The model is left as it is.

    >>> row = one(*ht.load(), penalty=0.05, sentences=4, steps=1, quiet=True)
    >>> len(row["kept"]), row["moments"], len(row["history"][0])
    (48, [0, 1], 48)
    """
    began = time.process_time()
    fit = fitted(model, penalty, seed, over, **{"quiet": True} | changes)
    seconds = time.process_time() - began
    sure = torch.maximum(fit.gates.p_zero(), fit.gates.p_one()) >= DECIDED
    last = len(fit.losses)
    moments = sorted({round(last * i / (MOMENTS - 1)) for i in range(MOMENTS)})
    return {
        "over": over, "penalty": penalty, "seed": seed, "kept": [label(head) for head in fit.open_heads],
        **quality(fit.cut().eval(), tokenizer, ht.corpus("organism", "test", sentences)),
        "decided": round(sure.float().mean().item(), 4),
        "roles": survivors_roles(fit, tokenizer, sentences),
        "log_alpha": [round(x, 2) for x in fit.gates.log_alpha.tolist()],
        "moments": moments,
        "history": [[round(x, 1) for x in fit.history.iloc[step].tolist()] for step in moments],
        "losses": [round(float(fit.losses.loss.iloc[max(0, step - 20) : step + 20].mean()), 4) for step in moments],
        "seconds": round(seconds, 1),
    }  # fmt: skip


def quality(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> dict[str, list[float]]:
    """Return ``bleu`` (0 to 100) and ``accuracy`` (0 to 1), each with the ends of its 95 % interval, fit for JSON."""
    right = token_accuracy(model, sentences)
    return {
        "bleu": [round(x, 2) for x in bleu(model, tokenizer, sentences)],
        "accuracy": [round(float(x), 4) for x in (right.mean(), *ht.bootstrap(right))],
    }


def survivors_roles(fit: Fit, tokenizer: object, sentences: int = SENTENCES) -> dict[str, list[str]]:
    """Return the roles of the encoder heads that stay, measured again with the others' gates at 0: {"5.1": [...]}."""
    stay = {label(head).split()[1] for head in fit.open_heads if head[0] == "encoder"}
    splits = [ht.corpus("organism", split, sentences) for split in ("validation", "test")]
    fit.model.eval()
    with ht.gates(fit.model, fit.values()):
        frame = roles(fit.model, tokenizer, *splits)
    found = frame[frame.found & frame["head"].isin(stay)]
    return {head: sorted(some.role) for head, some in found.groupby("head")}


def label(head: tuple) -> str:
    """Return the name of a head.

    >>> label(("encoder", 5, 1)), head_of("encoder 5.1")
    ('encoder 5.1', ('encoder', 5, 1))
    """
    kind, layer, number = head
    return f"{kind} {layer}.{number}"


# --- many runs --------------------------------------------------------------------------------------------------------


def plan(penalties: Mapping[str, Iterable[float]] = PENALTIES, seeds: Iterable[int] = SEEDS) -> list[dict]:
    """Return the runs to make, the most useful first: all penalties of a seed before the next seed.

    >>> plan({"encoder": [0.1], "all": [0.2]}, seeds=[0, 1])[1:3]
    [{'over': 'all', 'penalty': 0.2, 'seed': 0}, {'over': 'encoder', 'penalty': 0.1, 'seed': 1}]
    """
    return [{"over": over, "penalty": penalty, "seed": seed}
            for seed in seeds for over, some in penalties.items() for penalty in some]  # fmt: skip


def make(run: dict, folder: Path, sentences: int, steps: int) -> dict:
    """Return one run of the plan: read from its file in ``folder`` if it is finished, else made and written there.

    Raises ``ValueError`` for a file of another setting.
    """
    setting = SETTING | {"steps": steps, "tokens": TOKENS, "sentences": sentences}
    file = folder / f"{run['over']}-{run['penalty']:g}-{run['seed']}.json"
    if file.exists():
        again = "delete it, and the run is made again"
        told = read_json(file, "setting", "row", remedy=again)
        if told["setting"] != setting:
            raise ValueError(f"{file} was made with {told['setting']}, not {setting}; use another folder: --runs NEW")
        if any(told["row"].get(name) != value for name, value in run.items()):
            raise ValueError(f"{file} holds another run than its name says: {again}")
        return told["row"]
    row = one(*ht.load(), **run, sentences=sentences, steps=steps)
    dump({"setting": setting, "row": row}, file)
    return row


def dump(told: Mapping, file: Path) -> None:
    """Write a JSON file as ``publish.write``: one run a line, so that the file stays small and its changes readable."""
    text = json.dumps(signed(told), ensure_ascii=False, separators=(",", ":"))
    written_bytes(file, (text.replace('{"over"', '\n{"over"') + "\n").encode("utf-8"))


def gather(rows: Iterable[dict], sentences: int, steps: int) -> dict:
    """Return what ships: the setting, the model before, all runs in order; only the first seed keeps its history."""
    slim = [row if row["seed"] == SEEDS[0] else {k: v for k, v in row.items() if k not in ("history", "losses")}
            for row in sorted(rows, key=lambda row: (row["over"] == "all", row["seed"], row["penalty"]))]  # fmt: skip
    return {
        "setting": SETTING | {"steps": steps, "tokens": TOKENS, "sentences": sentences},
        "before": quality(*ht.load(), ht.corpus("organism", "test", sentences)),
        "runs": slim,
    }


def before(file: Path = FILE) -> dict[str, list[float]]:
    """Return ``bleu`` and ``accuracy`` of the model before any training of gates, as in the rows of :func:`one`.

    >>> sorted(before())
    ['accuracy', 'bleu']
    """
    return read_json(file, "before")["before"]


def sweep(file: Path = FILE) -> list[dict]:
    """Return the runs that ship: rows of :func:`one`, those with gates on the encoder first, by seed and penalty."""
    return read_json(file, "runs")["runs"]


def frame(rows: Iterable[dict]) -> "pd.DataFrame":
    """Return runs as a table: over, penalty, seed, kept (a count), bleu, low, high, accuracy, decided, seconds.

    ``encoder``, ``decoder`` and ``cross`` count the heads of each type that stay.
    """
    import pandas as pd

    lines = []
    for row in rows:
        score, low, high = row["bleu"]
        kinds = [head_of(name)[0] for name in row["kept"]]
        lines.append({
            "over": row["over"], "penalty": row["penalty"], "seed": row["seed"], "kept": len(kinds), "bleu": score,
            "low": low, "high": high, "accuracy": row["accuracy"][0], "decided": row["decided"],
            "seconds": row["seconds"], **{kind: kinds.count(kind) for kind in ("encoder", "decoder", "cross")},
        })  # fmt: skip
    return pd.DataFrame(lines)


def main(words: list[str] | None = None) -> None:
    """The command: make the runs that are missing, several at a time, and gather all."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.sweep", description=__doc__)
    parser.add_argument("--over", nargs="+", choices=tuple(LEARNS), default=tuple(LEARNS))
    parser.add_argument("--penalty", nargs="+", type=float, help="instead of those of the shipped sweep")
    parser.add_argument("--seed", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=SETTING["steps"])
    parser.add_argument("--limit", type=int, default=SENTENCES, help="test sentences translated")
    parser.add_argument("--runs", type=Path, default=Path("sweep-runs"), help="folder of finished runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each on one core; -1 for all")
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    options = parser.parse_args(words)
    runs = plan({over: options.penalty or PENALTIES[over] for over in options.over}, options.seed)
    folder = options.runs.resolve()  # a worker may be started in another folder
    made = side_by_side(make, [(run, folder, options.limit, options.steps) for run in runs], options.jobs)
    rows = list(tqdm(made, total=len(runs), desc="runs"))
    dump(in_turn(gather, rows, options.limit, options.steps), options.file)
    print(frame(rows).to_string(index=False))


if __name__ == "__main__":
    main()
