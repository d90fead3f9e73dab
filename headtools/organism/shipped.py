"""The organism's measured tables as frames: results of the recipes, which the lessons plot.

>>> shipped("sweep").columns.tolist()[:4]
['over', 'penalty', 'seed', 'kept']
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from scipy.stats import false_discovery_control

from headtools._engine.store import read_json
from headtools.heads.scores import HeadScores
from headtools.heads.sites import sites
from headtools.organism._checksums import ASSETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


def _summary(run: dict) -> dict:
    """Return one run of the sweep in numbers: how many heads of which kinds remain, and how well they translate."""
    kinds = [name.split()[0] for name in run["kept"]]
    return {
        **{key: run[key] for key in ("over", "penalty", "seed")},
        "kept": len(kinds),
        **dict(zip(("bleu", "low", "high"), run["bleu"], strict=True)),
        "accuracy": run["accuracy"][0],
        **{key: run[key] for key in ("decided", "seconds")},
        **{kind: kinds.count(kind) for kind in ("encoder", "decoder", "cross")},
    }


def _heads_with_role(file: dict) -> list[dict]:
    return [{"head": head, "roles": roles, "strong": head in file["strong"]} for head, roles in file["heads"].items()]


def _bleu_change(change_and_p: list, **row: object) -> dict:
    return {**row, "bleu_change": change_and_p[0], "p": change_and_p[1]}


def _one_head_off(file: dict) -> list[dict]:
    return adjusted([_bleu_change(entry, head=head) for head, entry in file["alone"].items()])


def _one_head_left(file: dict) -> list[dict]:
    return [
        _bleu_change(entry, layer=layer, head=head, split=split)
        for layer, by_split in file["only"].items()
        for split, entries in by_split.items()
        for head, entry in enumerate(entries)
    ]


def adjusted(rows: Iterable[dict]) -> list[dict]:
    """Add ``p_adjusted``, each p corrected for the number of rows by Benjamini and Hochberg's method (1995)."""
    rows = list(rows)
    p_adjusted = false_discovery_control([row["p"] for row in rows])
    return [row | {"p_adjusted": float(p)} for row, p in zip(rows, p_adjusted, strict=True)]


def _pairs(file: dict) -> list[dict]:
    return [dict(zip("ab", pair.split(), strict=True)) | {"interaction": x} for pair, x in file["pairs"].items()]


# Table: its file and the rows in it, by key or as a function. Names inside the files are older than those in the code
# (``over`` is ``sites``, ``alone`` is one head off): the files are measurements and are not rewritten.
_TABLES: dict[str, tuple[str, str | Callable[[dict], list[dict]]]] = {
    "sweep": ("sweep", "runs"),
    "sweep summary": ("sweep", lambda file: [_summary(run) for run in file["runs"]]),
    "rates": ("sweep", "rates"),
    "orders": ("orders", "curves"),
    "scratch": ("scratch", "runs"),
    "merging": ("merging", "models"),
    "latency": ("latency", "rows"),
    "sinks": ("sinks", "runs"),
    "truth": ("truth", "runs"),
    "families": ("families", "rows"),
    "written circuits": ("truth", "truth"),
    "compiled truth": ("compiled_truth", "runs"),
    "compiled circuits": ("compiled_truth", "circuits"),
    "truth of peers": ("truth_peers", "runs"),
    "gates": ("pruning", "gates"),
    "encoder curve": ("pruning", "curve"),
    "snapshots": ("growth", "snapshots"),
    "seeds": ("growth", "seeds"),
    "sizes": ("growth", "sizes"),
    "translation": ("scores", "translation"),
    "roles": ("scores", "roles"),
    "heads with a role": ("scores", _heads_with_role),
    "role use": ("scores", lambda file: file["usage"]["groups"]),
    "one head off": ("worth", _one_head_off),
    "one head left": ("worth", _one_head_left),
    "pairs": ("worth", _pairs),
}
TABLES = tuple(_TABLES)
# The recipe that makes a file again, where its name is another (python -m recipes.NAME).
_RECIPES = {"pruning": "gates", "scores": "scorecard", "worth": "head_importance"}
# How the sweep trains its gates, for half a minute on one core. Why at this rate: see shipped("rates") and lesson 09.
LIVE_GATES = {"steps": 400, "start": 1.5, "gate_rate": 0.05, "weight_rate": 8e-4, "decay": 0.3}
LIVE_TOKENS = 448  # padded source and target tokens per batch
# Of a file, not of a row:
_METADATA = ("date", "versions")
_METADATA += ("setting", "before", "sentences", "bleu", "best_loss", "threads", "processor", "torch", "costs", "pairs")


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
    name, rows = _TABLES[table]
    recipe = _RECIPES.get(name, name)
    path, remedy = ASSETS / f"{name}.json", f"remake it with python -m recipes.{recipe}"
    file = read_json(path, remedy=remedy)
    try:
        frame = pd.DataFrame(file[rows] if isinstance(rows, str) else rows(file))
    except KeyError as error:
        raise ValueError(f"{path} holds another table: it has no {error}; {remedy}") from error
    frame.attrs = {key: value for key, value in file.items() if key in _METADATA} | {"recipe": recipe}
    return frame


def shipped_ablation(model: nn.Module | None = None) -> HeadScores:
    """Return the loss increase without each of the 144 heads, in nats, on 200 validation sentences.

    Raises ``ValueError`` if ``model`` is given and has other heads.

    >>> shipped_ablation().top(1)
    [('encoder', 5, 1)]
    """
    scores = HeadScores.load(ASSETS / "ablation.safetensors")
    if model is not None and {s.key: s.heads for s in sites(model)} != {k: len(v) for k, v in scores.values.items()}:
        raise ValueError("these are scores of the organism's 144 heads, and this model has other heads: load()")
    return scores


def heads_with_role() -> frozenset[str]:
    """Return the names of the encoder heads that have a role, such as "5.1".

    >>> "5.1" in heads_with_role()
    True
    """
    return frozenset(shipped("heads with a role")["head"])
