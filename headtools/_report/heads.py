"""What the page knows of every head, as one object for JSON: what ``browser.js`` draws, and what is exported."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from headtools._report.measures import Results
from headtools._report.subject import Subject
from headtools.course.pictures import head_name
from headtools.course.plain import plain
from headtools.course.role_map import COLOURS
from headtools.heads.prune import pruned
from headtools.heads.scores import Head, HeadScores, head_columns
from headtools.heads.sites import sites
from headtools.roles.head_functions import LETTERS, head_functions
from headtools.roles.head_functions import function as function_of
from headtools.roles.induction import INDUCTION

FORMAT = "headtools heads, version 1"
ABOUT = {
    "importance": "mean over examples of |dL/dgate| at gate 1, by one backward pass",
    "importance by output": "change of the output without the head, estimated from gradients",
    "rise": "rise of the loss without the head, to first order; below 0, the loss would fall",
    "cost": "rise of the loss without the head, measured by switching it off",
    "largest weight": "mean over queries of the largest weight of the row of the map",
    "entropy (nats)": "mean over queries of the entropy of the row of the map",
    "own position": "mean weight of a query on its own position",
    "previous token": "mean weight of a query on the token before it",
    "distance": "mean distance from query to key, by weight, in tokens",
    "variance of distance": "variance of the distance from query to key, by weight",
    "first token": "mean weight on the first token",
    "induction": "weight on the token after the earlier copy, on random tokens that repeat",
    "rank of W_OV": "effective rank of what the head moves: exp of the entropy of its singular values",
}
N_ROLES = 12  # of a head, those with the highest score


def head_data(subject: Subject, results: Results, title: str, about: str) -> dict[str, Any]:
    """Return all that was measured, head by head; every number is finite or None."""
    scores = dict(_scores(subject, results))
    roles, functions = _roles(results)
    shown = results.get("examples", {})
    of_words = results.get("words", {})
    replaced = results["cost"]["replaced"] if "cost" in results else {}
    columns = {name: _by_head(frame, "cost") for name, frame in replaced.items()}
    heads = []
    for head, original in _original(subject):
        near = [(head_name(other), round(value, 3)) for other, value in shown.get("near", {}).get(head, ())]
        function, letters = functions.get(head, ("none", ""))
        heads.append(
            {
                "name": head_name(head),
                "was": head_name(original),
                "group": head_name(head).rsplit(" ", 1)[0],
                "kind": head[-3],
                "layer": head[-2],
                "head": head[-1],
                "function": function,
                "letters": letters,
                "roles": roles.get(head, []),
                "scores": {name: of[head] for name, of in scores.items() if head in of},
                "replaced": {name: of[head] for name, of in columns.items() if head in of},
                "words": _words_of(of_words.get("words", {}).get(head)),
                "near": near,
                "examples": [_example(shown, head, each) for each in shown.get("shown", {}).get(head, ())],
            }
        )
    curve = results["pruning"]["table"] if "pruning" in results else None
    return {
        "format": FORMAT,
        "title": plain(title),
        "about": plain(about),
        "unit": subject.unit,
        "measured on": subject.test_text,
        "loss": subject.metric,
        "measures": {name: _about(subject, name) for name in scores},
        "functions": {name: {"letter": LETTERS.get(name, ""), "colour": colour} for name, colour in COLOURS.items()},
        "chance of words": _finite(of_words.get("chance")),
        "heads": heads,
        "texts": [
            {part: list(map(plain, tokens)) for part, tokens in shown["texts"].get(i, {}).items()}
            for i in range(len(shown["texts"]) if shown else 0)
        ],
        "curve": [] if curve is None else _curve(curve),
    }


def _original(subject: Subject) -> Iterator[tuple[Head, Head]]:
    """Each head, and its name before heads were pruned, under which another report of the model knows it."""
    gone = set(pruned(subject.model))
    for site in sites(subject.model):
        if not site.empty:
            before = [i for i in range(site.heads + len(gone)) if (*site.key, i) not in gone]
            for head in range(site.heads):
                yield (*site.key, head), (*site.key, before[head])


def _scores(subject: Subject, results: Results) -> Iterator[tuple[str, dict[Head, list]]]:
    """Every measure with a number a head: {head: [score, low, high]}."""
    if "importance" in results:
        importance = results["importance"]
        yield "importance", _of_scores(importance["scores"])
    if "cost" in results:
        yield "cost", _by_head(results["cost"]["table"], "cost")
    if "importance" in results and results["importance"]["rises"] is not None:
        yield "rise", _of_scores(results["importance"]["rises"])
    for name, scores in results.get("attention", {}).get("scores", {}).items():
        yield name, _of_scores(scores)
    if "sinks" in results:
        yield "first token", _by_head(results["sinks"]["table"], "score")
    if "induction" in results:
        frame = results["induction"]["table"]
        yield "induction", _by_head(frame[frame.role == INDUCTION], "score")
    if "geometry" in results:
        yield "rank of W_OV", _of_scores(results["geometry"]["ranks"])


def _of_scores(scores: HeadScores) -> dict[Head, list]:
    ends = [None if by_site is None else by_site for by_site in (scores.low, scores.high)]
    return {
        head: [
            _finite(scores[head]),
            *(None if end is None else _finite(float(end[head[:-1]][head[-1]])) for end in ends),
        ]
        for head in scores
    }


def _by_head(frame: Any, column: str) -> dict[Head, list]:
    """Return a column of a table, one row a head, with its interval."""
    names = head_columns(frame)
    numbers = frame[[column, "low", "high"]].itertuples(index=False, name=None)
    heads = frame[names].itertuples(index=False, name=None)
    return {tuple(head): list(map(_finite, row)) for head, row in zip(heads, numbers, strict=True)}


def _finite(value: float | None) -> float | None:
    """Return a number with six digits, or None for what is none: JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _roles(results: Results) -> tuple[dict[Head, list[dict]], dict[Head, tuple[str, str]]]:
    """Return the best roles of each head with what they are compared with, and its function."""
    if "roles" not in results:
        return {}, {}
    frame = results["roles"]["table"]
    names = head_columns(frame)
    found: dict[Head, list[dict]] = {}
    frame = frame[frame.role.map(function_of).notna()]
    best = frame.sort_values(["passes", "score"], ascending=False, kind="stable")
    for row in best.to_dict("records"):
        of_head = found.setdefault(tuple(row[name] for name in names), [])
        if len(of_head) < N_ROLES:
            numbers = {name: _finite(row[name]) for name in ("score", "low", "high", "baseline", "chance")}
            of_head.append({"role": row["role"], "passes": bool(row["passes"]), "n": int(row["n"]), **numbers})
    functions = {
        tuple(row[name] for name in names): (row["function"], row["letters"])
        for row in head_functions(results["roles"]["table"]).to_dict("records")
    }
    return found, functions


def _words_of(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    lists = {name: found[name] for name in found if name != "share"}
    return {"share": _finite(found["share"])} | {
        name: [list(map(plain, some)), _finite(cosine)] for name, (some, cosine) in lists.items()
    }


def _example(shown: Mapping[str, Any], head: Head, each: Mapping[str, Any]) -> dict[str, Any]:
    """Return one example of a head: its map as bytes, 255 for the largest weight, in base 64."""
    weights = shown["maps"].get((head, each["example"]))
    if weights is None:
        return {**each, "worth": _finite(each["worth"]), "queries": 0, "keys": 0, "top": 0, "map": ""}
    top = float(weights.max()) if weights.numel() else 0.0
    levels = (weights / (top or 1.0) * 255).round().to(torch.uint8)
    return {
        "example": each["example"],
        "rank": each["rank"],
        "worth": _finite(each["worth"]),
        "queries": weights.shape[0],
        "keys": weights.shape[1],
        "top": _finite(top),
        "map": base64.b64encode(levels.numpy().tobytes()).decode(),
    }


def _curve(frame: Any) -> list[dict[str, Any]]:
    return [
        {"order": "random" if row["order"].startswith("random") else "least important first", "kept": int(row["kept"])}
        | {name: _finite(row[name]) for name in ("metric", "low", "high")}
        for row in frame.to_dict("records")
    ]


def _about(subject: Subject, name: str) -> str:
    return ABOUT["importance by output"] if name == "importance" and subject.by_output else ABOUT[name]
