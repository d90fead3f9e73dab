"""The organism's measured tables as frames: results of the recipes, which the lessons plot.

>>> shipped("sweep").columns.tolist()[:4]
['over', 'penalty', 'seed', 'kept']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from headtools._engine.store import read_json
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.organism._checksums import ASSETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# Table: its file, the recipe that makes it again (python -m recipes.NAME), and its rows in the file. Names inside the
# files are older than those in the code (``over`` is ``sites``, ``alone`` is one head off): the files are measurements
# and are not rewritten.
_TABLES: dict[str, tuple[str, str, Callable[[dict], list[dict]]]] = {
    "sweep": ("sweep", "sweep", lambda file: file["runs"]),
    "sweep summary": ("sweep", "sweep", lambda file: [_summary(run) for run in file["runs"]]),
    "rates": ("sweep", "sweep", lambda file: file["rates"]),
    "orders": ("orders", "orders", lambda file: file["curves"]),
    "scratch": ("scratch", "scratch", lambda file: file["runs"]),
    "merging": ("merging", "merging", lambda file: file["models"]),
    "latency": ("latency", "latency", lambda file: file["rows"]),
    "sinks": ("sinks", "sinks", lambda file: file["runs"]),
    "gates": ("pruning", "gates", lambda file: file["gates"]),
    "encoder curve": ("pruning", "gates", lambda file: file["curve"]),
    "snapshots": ("growth", "growth", lambda file: file["snapshots"]),
    "seeds": ("growth", "growth", lambda file: file["seeds"]),
    "sizes": ("growth", "growth", lambda file: file["sizes"]),
    "translation": ("scores", "scorecard", lambda file: file["translation"]),
    "roles": ("scores", "scorecard", lambda file: file["roles"]),
    "heads with a role": (
        "scores",
        "scorecard",
        lambda file: [
            {"head": head, "roles": roles, "strong": head in file["strong"]} for head, roles in file["heads"].items()
        ],
    ),
    "role use": ("scores", "scorecard", lambda file: file["usage"]["groups"]),
    "one head off": (
        "worth",
        "head_importance",
        lambda file: [{"head": head, "bleu_change": change, "p": p} for head, (change, p) in file["alone"].items()],
    ),
    "one head left": (
        "worth",
        "head_importance",
        lambda file: [
            {"layer": layer, "head": head, "split": split, "bleu_change": change, "p": p}
            for layer, by_split in file["only"].items()
            for split, rows in by_split.items()
            for head, (change, p) in enumerate(rows)
        ],
    ),
    "pairs": (
        "worth",
        "head_importance",
        lambda file: [
            {"a": pair.split()[0], "b": pair.split()[1], "interaction": value} for pair, value in file["pairs"].items()
        ],
    ),
}
TABLES = tuple(_TABLES)
# How the sweep trains its gates, for half a minute on one core. Why at this rate: see shipped("rates") and lesson 08.
LIVE_GATES = {"steps": 400, "start": 1.5, "gate_rate": 0.05, "weight_rate": 8e-4, "decay": 0.3}
LIVE_TOKENS = 448  # padded source and target tokens per batch
# Of a file, not of a row:
_METADATA = ("setting", "before", "sentences", "bleu", "best_loss", "threads", "processor", "torch")


def shipped(table: str) -> pd.DataFrame:
    """Return one of the organism's measured tables, with a row for each measurement.

    ``frame.attrs`` has the metadata of the table: its settings, the model before pruning, its recipe. The recipe, in
    the repository, makes the table again: ``python -m recipes.sweep``. ``headtools.organism.shipped.TABLES`` lists all
    tables.

    Raises ``ValueError`` for an unknown table.

    >>> frame = shipped("one head off")
    >>> len(frame), bool(frame.set_index("head").bleu_change["5.1"] < -1)
    (48, True)
    >>> shipped("sweep").attrs["recipe"]
    'sweep'
    """
    if table not in _TABLES:
        raise ValueError(f"got table {table!r}; expected one of {', '.join(map(repr, TABLES))}: write shipped('sweep')")
    name, recipe, rows = _TABLES[table]
    path, remedy = ASSETS / f"{name}.json", f"remake it with python -m recipes.{recipe}"
    file = read_json(path, remedy=remedy)
    try:
        frame = pd.DataFrame(rows(file))
    except KeyError as error:
        raise ValueError(f"{path} holds another table: it has no {error}; {remedy}") from error
    frame.attrs = {key: value for key, value in file.items() if key in _METADATA} | {"recipe": recipe}
    return frame


def _summary(run: dict) -> dict:
    """Return one run of the sweep in numbers: how many heads of which kinds remain, and how well they translate."""
    bleu, low, high = run["bleu"]
    kinds = [name.split()[0] for name in run["kept"]]
    return {
        "over": run["over"],
        "penalty": run["penalty"],
        "seed": run["seed"],
        "kept": len(kinds),
        "bleu": bleu,
        "low": low,
        "high": high,
        "accuracy": run["accuracy"][0],
        "decided": run["decided"],
        "seconds": run["seconds"],
        **{kind: kinds.count(kind) for kind in ("encoder", "decoder", "cross")},
    }


def shipped_ablation(model: nn.Module | None = None) -> HeadScores:
    """Return the loss increase without each of the 144 heads, in nats, on 200 validation sentences.

    Raises ``ValueError`` if ``model`` is given and has other heads.

    >>> shipped_ablation().top(1)
    [('encoder', 5, 1)]
    """
    scores = HeadScores.load(ASSETS / "ablation.safetensors")
    if model is not None and {s.key: s.heads for s in sites(model)} != {k: len(v) for k, v in scores.values.items()}:
        raise ValueError(
            f"the shipped scores are of the 144 heads of ht.load(), and {type(model).__name__} has other heads: "
            "measure them, ht.ablation(model, batches)"
        )
    return scores


def heads_with_role() -> frozenset[str]:
    """Return the names of the encoder heads that have a role, such as "5.1".

    >>> "5.1" in heads_with_role()
    True
    """
    return frozenset(shipped("heads with a role")["head"])
