"""The organism's measured tables, as frames: what the recipes found and what the lessons plot.

>>> shipped("sweep").columns.tolist()[:4]
['over', 'penalty', 'seed', 'kept']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from headtools._engine.store import read_json
from headtools.heads.scores import HeadScores
from headtools.organism._checksums import ASSETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# Table, the file that holds it, and the recipe that makes it again: python -m recipes.NAME.
_TABLES: dict[str, tuple[str, str, Callable[[dict], list[dict]]]] = {
    "sweep": ("sweep", "sweep", lambda file: file["runs"]),
    "sweep summary": ("sweep", "sweep", lambda file: [_summary(run) for run in file["runs"]]),
    "orders": ("orders", "orders", lambda file: file["curves"]),
    "scratch": ("scratch", "scratch", lambda file: file["runs"]),
    "merging": ("merging", "merging", lambda file: file["models"]),
    "latency": ("latency", "latency", lambda file: file["rows"]),
    "gates": ("pruning", "gates", lambda file: file["gates"]),
    "encoder curve": ("pruning", "gates", lambda file: file["curve"]),
    "snapshots": ("growth", "growth", lambda file: file["snapshots"]),
    "seeds": ("growth", "growth", lambda file: file["seeds"]),
    "sizes": ("growth", "growth", lambda file: file["sizes"]),
    "translation": ("scores", "scorecard", lambda file: file["translation"]),
    "roles": ("scores", "scorecard", lambda file: file["roles"]),
    "heads with a role": ("scores", "scorecard", lambda file: [
        {"head": head, "roles": roles, "strong": head in file["strong"]} for head, roles in file["heads"].items()
    ]),
    "role use": ("scores", "scorecard", lambda file: file["usage"]["groups"]),
    "one head off": ("worth", "head_importance", lambda file: [
        {"head": head, "bleu_change": change, "p": p} for head, (change, p) in file["alone"].items()
    ]),
    "one head left": ("worth", "head_importance", lambda file: [
        {"layer": layer, "head": head, "split": split, "bleu_change": change, "p": p}
        for layer, by_split in file["only"].items() for split, rows in by_split.items()
        for head, (change, p) in enumerate(rows)
    ]),
    "pairs": ("worth", "head_importance", lambda file: [
        {"a": pair.split()[0], "b": pair.split()[1], "interaction": value} for pair, value in file["pairs"].items()
    ]),
}  # fmt: skip
TABLES = tuple(_TABLES)
# How the sweep trains its gates: half a minute on one core, after which nearly every gate is clearly open or closed.
LIVE_GATES = {"steps": 400, "start": 1.5, "gate_rate": 0.25, "weight_rate": 8e-4, "decay": 0.3}
LIVE_TOKENS = 448  # padded source and target tokens a batch
_METADATA = ("setting", "before", "sentences", "bleu", "threads", "processor", "torch")  # what is said of a whole file


def shipped(table: str) -> pd.DataFrame:
    """Return one of the organism's measured tables, a row for each thing measured.

    ``frame.attrs`` has what is said of the whole table: the settings it was made with, the model before pruning, the
    recipe. Each is made again by a recipe in the repository: ``python -m recipes.sweep``. A list of all tables:
    ``headtools.organism.shipped.TABLES``.

    Raises ``ValueError`` for a table that does not ship.

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
        raise ValueError(f"{path} tells of something else: it has no {error}; {remedy}") from error
    frame.attrs = {key: value for key, value in file.items() if key in _METADATA} | {"recipe": recipe}
    return frame


def _summary(run: dict) -> dict:
    """Return one run of the sweep in numbers: how many heads stay, of which kinds, and how well they translate."""
    bleu, low, high = run["bleu"]
    kinds = [name.split()[0] for name in run["kept"]]
    return {
        "over": run["over"], "penalty": run["penalty"], "seed": run["seed"], "kept": len(kinds), "bleu": bleu,
        "low": low, "high": high, "accuracy": run["accuracy"][0], "decided": run["decided"], "seconds": run["seconds"],
        **{kind: kinds.count(kind) for kind in ("encoder", "decoder", "cross")},
    }  # fmt: skip


def shipped_ablation(model: nn.Module | None = None) -> HeadScores:
    """Return how much the loss rises without each of the 144 heads, in nats, on 200 validation sentences.

    Raises ``ValueError`` if ``model`` is given and has other heads.

    >>> shipped_ablation().top(1)
    [('encoder', 5, 1)]
    """
    from headtools.importance.saved_scores import load_scores

    return load_scores(ASSETS / "ablation.safetensors", model)


def heads_with_role() -> frozenset[str]:
    """Return the names of the encoder heads that have a role: "5.1" and others.

    >>> "5.1" in heads_with_role()
    True
    """
    return frozenset(shipped("heads with a role")["head"])
