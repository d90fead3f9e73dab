"""Exercises of lesson 12: an honest choice of the best head, and a report on every head of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.course import my_heads
from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, number
from headtools.course.exercises.lesson_00 import tiny_translator

Rows = Mapping[tuple, Tensor]

# --- the honest choice ------------------------------------------------------------------------------------------------

_CHOICE = ("head", "promised", "score", "low", "high", "any")


def _honest(answer: Any) -> str | None:
    """honest_choice(choosing, measuring): the best head by some rows, and its score by others."""
    for choosing, measuring in _halves():
        given = {"choosing": choosing, "measuring": measuring}
        got = _read(call(answer, **given), _CHOICE)
        where = f"\nSee it for{_written_out(given)}"
        right, luck, other = (
            my_heads.honest_choice(*halves) for halves in ((choosing, measuring), (choosing,) * 2, (measuring,) * 2)
        )
        best = right["head"]
        head = tuple(got["head"]) if isinstance(got["head"], Sequence) else (got["head"],)
        if head != best:
            return _other_head(head, best, other["head"], choosing) + where
        mistakes = {
            "promised": {
                "That is its mean where it was not chosen. Promised is what it scored where it was.": right["score"],
                "That is the mean of all heads there.": luck["any"],
            },
            "score": {
                "That is its mean on the half that chose it, which flatters it. Measure on the other half.": (
                    luck["score"]
                ),
                "That is the best score of the other half, by another head. Read the chosen head there.": (
                    other["score"]
                ),
                "That averages both halves, and one of them made the choice.": (luck["score"] + right["score"]) / 2,
            },
            "low": {
                "The interval is that of the half that chose. It belongs to the score: the other half.": luck["low"],
                "Low and high are exchanged.": right["high"],
            },
            "high": {
                "The interval is that of the half that chose. It belongs to the score: the other half.": luck["high"],
                "Low and high are exchanged.": right["low"],
            },
            "any": {
                "That is the mean over heads of the half that chose. Measure it where the score is measured.": luck[
                    "any"
                ],
                "That is the mean of this head's own layer. Any head of the model could have been drawn.": (
                    measuring[best[:2]].mean().item()
                ),
            },
        }
        rule = "Find the largest mean of choosing; then read the same head's rows in measuring, and nothing else."
        for name in _CHOICE[1:]:
            if hint := _off(got[name], right[name], mistakes[name], rule):
                return f"{name!r}: {hint}{where}\nwhere you say {got[name]:.4g}."
    return None


def _halves() -> list[tuple[dict[tuple, Tensor], dict[tuple, Tensor]]]:
    """Rows of few heads, in two halves that call different heads the best."""
    one = {
        ("encoder", 0): [[1.0, 2.0]] * 5,
        ("encoder", 1): [[4.0, 1.0], [6.0, 2.0], [5.0, 0.0], [4.0, 1.0], [6.0, 1.0]],
    }
    two = {
        ("encoder", 0): [[2.0, 7.0], [1.0, 8.0], [3.0, 9.0], [2.0, 8.0], [1.0, 7.0], [3.0, 9.0]],
        ("encoder", 1): [[2.0, 1.0], [3.0, 0.0], [4.0, 2.0], [3.0, 1.0], [2.0, 1.0], [4.0, 1.0]],
    }
    first, second = ({key: torch.tensor(rows) for key, rows in half.items()} for half in (one, two))
    return [(first, second), (second, first)]


def _other_head(got: tuple, best: tuple, other: tuple, choosing: Rows) -> str:
    if got == other:
        return f"'head': {got} is the best of the half that measures. Choose on the first, measure on the second."
    if len(got) != len(best) or got[:-1] not in choosing:
        return f"'head': {got} is no head. Its name has a kind, a layer and a number within the layer, as {other}."
    if got[:-1] != best[:-1]:
        return f"'head': {got} is in another layer than the best, whose mean over the texts is the largest of all."
    return f"'head': {got} is not the one with the largest mean over the texts of choosing."


def _written_out(given: Mapping[str, Rows]) -> str:
    lines = [f"{name}[{key}] = {rows.tolist()}" for name, half in given.items() for key, rows in half.items()]
    return "".join(f"\n    {line}" for line in lines)


# --- the report -------------------------------------------------------------------------------------------------------


def _report(answer: Any) -> str | None:
    """report(model, texts, roles): one line a head, the costliest first."""
    model, texts, roles = _case()
    result = call(answer, model=model, texts=texts, roles=roles)
    lines = result.to_dict("records") if hasattr(result, "to_dict") else result
    if not isinstance(lines, Sequence) or isinstance(lines, str):
        raise Hint(f"A list of lines is asked for, one dict a head, or a DataFrame; this is {article(result)}.")
    expected, mistakes = _expected()
    names = list(next(iter(expected.values())))
    found = {}
    for line in lines:
        read = _read(line, ["kind", "layer", "head", *names])
        found[read["kind"], int(read["layer"]), int(read["head"])] = read
    if set(found) != set(expected):
        kinds = sorted({head[0] for head in found})
        return (
            f"There are lines for {len(set(found) & set(expected))} of the {len(expected)} heads, of the kinds "
            f"{', '.join(kinds) or 'none'}. mine.sites(model) has them all: a line for each head of each site."
        )
    for name in names:
        for head, right in expected.items():
            wrong = {hint: table[head] for hint, table in mistakes[name].items()}
            if hint := _off(found[head][name], right[name], wrong, _rule(name), 1e-5):
                return f"{name!r}: {hint}\nSee it for head {head}, where you say {float(found[head][name]):.5f}."
    order = [found[head]["cost"] for head in found]
    if order != sorted(order, reverse=True):
        return "All numbers are right. The lines are in another order: the costliest head comes first."
    return None


class _Texts(list):
    def __repr__(self) -> str:
        return f"{len(self)} batches of short texts"


class _Roles(dict):
    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: (batches, score)" for name in self) + "}"


def previous(maps: Tensor) -> Tensor:
    """Return the mean weight on the previous token: maps (B, H, query, key) -> (B, H)."""
    return maps.diagonal(-1, -2, -1).mean(-1)


def first(maps: Tensor) -> Tensor:
    """Return the mean weight of all queries on the first token: maps (B, H, query, key) -> (B, H)."""
    return maps[..., 0].mean(-1)


@cache
def _case() -> tuple[nn.Module, _Texts, _Roles]:
    """A small translator, six texts in two batches, and two roles on batches without padding."""
    model, _ = tiny_translator()
    rows = [[3, 7, 5, 2, 1], [4, 9, 1, 0, 0], [8, 2, 6, 1, 0], [5, 5, 10, 3, 1], [11, 4, 1], [6, 9, 1]]
    targets = [[6, 4, 1], [7, 2, 1], [9, 1, 0], [3, 8, 1], [10, 5, 1], [2, 1, 0]]
    texts = _Texts()
    for some in (slice(0, 4), slice(4, 6)):
        ids, labels = torch.tensor(rows[some]), torch.tensor(targets[some])
        mask = (ids != 0).long()
        texts.append({"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(labels == 0, -100)})
    whole = [
        {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}
        for ids, labels in (
            ([[3, 7, 5, 2, 1], [5, 5, 10, 3, 1], [2, 8, 9, 4, 1]], [[6, 4, 1], [3, 8, 1], [7, 3, 1]]),
            ([[11, 4, 1], [6, 9, 1]], [[10, 5, 1], [2, 7, 1]]),
        )
    ]
    return model, texts, _Roles({"previous": (_Texts(whole), previous), "first": (_Texts(whole), first)})


@cache
def _expected() -> tuple[dict[tuple, dict[str, float]], dict[str, dict[str, dict[tuple, float]]]]:
    """What each line should hold, {head: {column: number}}, and what known mistakes give, by column and hint."""
    model, texts, roles = _case()
    expected, rows = {}, {}
    for line in my_heads.report(model, texts, roles):
        expected[line.pop("kind"), line.pop("layer"), line.pop("head")] = line
    slopes, cost = (_each(measure(model, texts)) for measure in (my_heads.gradient, my_heads.ablation))
    wrong: dict[str, dict[str, dict[tuple, float]]] = {
        "importance": {
            "The slopes keep their sign, so texts cancel. First the size of each, then the mean.": _means(slopes),
            "That is the size of the mean slope, in which texts cancel. First the size of each, then the mean.": (
                {head: abs(mean) for head, mean in _means(slopes).items()}
            ),
        },
        "cost": {
            "The sign is turned: a head that the model needs has a positive cost.": (
                {head: -mean for head, mean in _means(cost).items()}
            ),
            "That is the size of the cost. Its sign says whether the loss rises: keep it.": _means(
                {head: each.abs() for head, each in cost.items()}
            ),
        },
        "confidence": {},
    }
    rows |= {"importance": {head: each.abs() for head, each in slopes.items()}, "cost": cost}
    rows["confidence"] = _each(my_heads.confidence(model, texts))
    for name, (batches, score) in roles.items():
        parts = [_both(model, batch, score) for batch in batches]
        own, even, all_keys = (
            _each({key: torch.cat([part[i][key] for part in parts]) for key in parts[0][0]}) for i in range(3)
        )
        rows[f"{name} gain"] = {head: each - even[head] for head, each in own.items()}
        by_batch = _means(_each({key: torch.stack([part[0][key].mean(0) for part in parts]) for key in parts[0][0]}))
        wrong[name] = {
            "That is the mean of the means of batches, and these have different sizes. Put the examples of all batches "
            "below each other, then take the mean.": by_batch,
            "That is the score of the even map. Here the head's own map is asked for.": _means(even),
        }
        wrong[f"{name} even"] = {
            "The even map shares a query's weight among all keys, also those that it may not see. Where a map is 0, a "
            "mask was: share it among the others.": _means(all_keys),
            "That is the score of the head's own map. Its baseline is the score of a map that has no preference.": (
                _means(own)
            ),
        }
        wrong[f"{name} gain"] = {
            "The sign is turned: what the head has beyond the even map.": _means(even, minus=own),
            "That is the score itself. Its baseline is still to be taken off.": _means(own),
        }
        for end in (0, 1):
            unpaired = {head: _ends(each)[end] - _means(even)[head] for head, each in own.items()}
            wrong[f"{name} gain {('low', 'high')[end]}"] = {
                "That is the interval of the score, moved by the mean baseline. The baseline differs from text to "
                "text: take it off text by text, and the interval is that of the differences.": unpaired
            }
    for name, of_heads in rows.items():
        for end, (which, other) in enumerate((("low", "high"), ("high", "low"))):
            wrong.setdefault(f"{name} {which}", {})
            wrong[f"{name} {which}"] |= {
                "Low and high are exchanged.": {head: expected[head][f"{name} {other}"] for head in expected},
                "That is where the examples lie. An interval of their mean is asked for: mine.bootstrap.": (
                    {head: each.quantile((0.025, 0.975)[end]).item() for head, each in of_heads.items()}
                ),
            }
    return expected, wrong


def _both(model: nn.Module, batch: Mapping, score: Any) -> tuple[Rows, Rows, Rows]:
    """Scores of a batch's maps, of even maps, and of maps that are even over all keys."""
    with torch.no_grad(), ht.record(model, want="maps") as seen:
        model(**batch)
    maps = {site.key: seen[site.key].maps for site in ht.sites(model)}
    even = {key: (each > 0).float() / (each > 0).sum(-1, keepdim=True) for key, each in maps.items()}
    everywhere = {key: torch.full_like(each, 1 / each.shape[-1]) for key, each in maps.items()}
    return tuple({key: score(each) for key, each in some.items()} for some in (maps, even, everywhere))


def _each(rows: Rows) -> dict[tuple, Tensor]:
    """Rows by head, {(kind, layer, head): (n,)}."""
    return {(*key, head): each[:, head].double() for key, each in rows.items() for head in range(each.shape[1])}


def _means(each: Rows, minus: Rows | None = None) -> dict[tuple, float]:
    return {head: (rows if minus is None else rows - minus[head]).mean().item() for head, rows in each.items()}


def _ends(rows: Tensor) -> tuple[float, float]:
    low, high = ht.bootstrap(rows)
    return float(low), float(high)


def _rule(name: str) -> str:
    if name.endswith(("low", "high")):
        return "That is not the end of the interval of the mean over texts, as mine.bootstrap gives it."
    rules = {
        "importance": "That is not the mean size of the slopes of mine.gradient.",
        "cost": "That is not the mean of mine.ablation.",
        "confidence": "That is not the mean of mine.confidence.",
    }
    other = "That is not the mean, over the examples of all its batches, of "
    kind = {"even": "the score of the even map.", "gain": "the score less the even map's score."}
    return rules.get(name) or other + kind.get(name.rpartition(" ")[2], "score(maps).")


# --- both -------------------------------------------------------------------------------------------------------------


def _read(given: Any, names: Sequence[str]) -> Mapping:
    """Read a dict that has these names; raises Hint where it has not."""
    if not isinstance(given, Mapping):
        raise Hint(f"A dict with {', '.join(map(repr, names))} is asked for, this is {article(given)}.")
    if given and all(value is ... for value in given.values()):
        raise NotTried
    if missing := [name for name in names if name not in given]:
        raise Hint(f"There is no {', no '.join(map(repr, missing[:6]))}; there are {', '.join(map(repr, given))}.")
    return given


def _off(got: Any, want: float, mistakes: Mapping[str, float], rule: str, tol: float = 1e-6) -> str:
    """The hint for a number that is off; '' where it is right."""
    got = number(got)
    near = {"rel_tol": tol, "abs_tol": tol}
    if math.isclose(got, want, **near):
        return ""
    return next((hint for hint, wrong in mistakes.items() if math.isclose(got, wrong, **near)), rule)


EXERCISES = (
    Exercise("12.report", "a report on every head", _report, "report", ("report",)),
    Exercise("12.honest", "an honest choice", _honest, "honest_choice"),
)
