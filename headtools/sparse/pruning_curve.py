"""Pruning curves: how good a model still is when its heads are removed one after another by some ranking."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads._checks import check_weights, nonfinite_weights
from headtools.heads.ablate import ablate
from headtools.heads.intervals import bounds
from headtools.heads.scores import Head, HeadScores
from headtools.heads.sites import Sites, select, sites
from headtools.heads.verify import verify_once
from headtools.importance._inputs import evaluating

Order = HeadScores | Sequence[Head]  # a ranking: the head that is removed first, second, ...
Evaluate = Callable[[nn.Module], Any]  # model -> (B,) tensor, (score, low, high), or a number
FRACTIONS = tuple(tenths / 10 for tenths in range(10, -1, -1))


def curve(
    model: nn.Module, order: Order, evaluate: Evaluate, keep: Iterable[float] = FRACTIONS, draws: int = 0
) -> pd.DataFrame:
    """Return how good the model is when only the last heads of an order remain: kept, metric, low, high.

    ``order`` is a list of heads, of which the first is removed first, or scores, of which the lowest is; heads that are
    not in it stay. Heads are removed by ``ablate``; nothing is trained in between, and the model is left as it was.
    ``keep`` says how many of the order remain: integers are counts, floats fractions (1 is one head, 1.0 all of them).

    ``evaluate(model)`` is called without gradients and dropout. It returns a tensor (B,) of one score per sentence,
    whose mean is the metric, with a 95 % interval; or (score, low, high), as ``headtools.organism.evaluate.bleu`` does;
    or one number. Bounds of one number, and of fewer than five sentences, are missing (NaN). They hold for the order
    that is given. How the metric moves with the examples that scores were measured on is seen from ``draws=20``: their
    rows are drawn as often with replacement, and ``draws_low`` and ``draws_high`` are the least and greatest metric.

    Raises ``ValueError`` for counts beyond the order, an empty ``keep``, NaN scores or ``draws`` without rows,
    ``TypeError`` for another kind of score, and as ``ablate`` does for heads that are not there or named twice.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> curve(ToyDecoder(), [("decoder", 0, 0)], lambda model: 0.5, keep=[1, 0.0]).kept.tolist()
    [1, 0]
    """
    return curves(model, {"": order}, evaluate, keep, draws).drop(columns="order")


def curves(
    model: nn.Module, orders: Mapping[str, Order], evaluate: Evaluate, keep: Iterable[float] = FRACTIONS, draws: int = 0
) -> pd.DataFrame:
    """Return several curves in one frame, as :func:`curve` does, of {name: order}; the first column is ``order``.

    A set of heads that occurs several times, such as none or all, is measured once. Random orders are the baseline:
    ``{f"random {s}": random_order(sites, s) for s in range(5)}``. Orders that are no scores with rows have no draws.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> curves(ToyDecoder(), {"by hand": [("decoder", 0, 0)]}, lambda model: 0.5, keep=[0]).order.tolist()
    ['by hand']
    """
    check_weights(model)
    verify_once(model)
    with_rows = {name for name, order in orders.items() if draws and getattr(order, "rows", None)}
    if draws and not with_rows:
        raise ValueError("draws need scores with rows, one number per example: order=ht.gradient(model, batches)")
    keep, points = list(keep), []  # name of the order, number of heads kept, heads removed by it and by each draw
    for name, order in orders.items():
        heads = _heads(order)
        select(sites(model), heads)  # raises for heads that are not there, before anything is measured
        redrawn = [some.order() for some in order.redrawn(draws)] if name in with_rows else []
        for entry in keep:
            n_kept = _count(entry, len(heads))
            points.append((name, n_kept, *(frozenset(some[: len(some) - n_kept]) for some in (heads, *redrawn))))
    if not points:
        raise ValueError("nothing to measure: pass an order and at least one number in keep, e.g. keep=[1.0, 0.5, 0.0]")

    @cache
    def measure(removed: frozenset[Head]) -> tuple[float, float, float]:
        with evaluating(model), torch.no_grad(), ablate(model, removed):
            result = evaluate(model)
        return _metric(result, model)

    rows = []
    for name, n_kept, removed, *by_draw in points:
        spread = [measure(some)[0] for some in by_draw] or [math.nan]
        rows.append((name, n_kept, *measure(removed), min(spread), max(spread)))
    columns = ["order", "kept", "metric", "low", "high", "draws_low", "draws_high"]
    return pd.DataFrame(rows, columns=columns)[columns if draws else columns[:-2]]


def random_order(heads: Sites | HeadScores | Iterable[Head], seed: int) -> list[Head]:
    """Return heads in a random order that depends on the seed alone: the baseline for every other order.

    ``heads``: the sites of a model (``sites(model)["encoder"]`` for those of one kind), scores, or a list of heads.
    """
    if isinstance(heads, Sites):
        heads = [(*site.key, head) for site in heads if not site.empty for head in range(site.heads)]
    heads = [tuple(head) for head in heads]
    return [heads[i] for i in torch.randperm(len(heads), generator=torch.Generator().manual_seed(seed)).tolist()]


def greedy_order(model: nn.Module, score: Callable[[nn.Module], HeadScores], step: int = 1) -> list[Head]:
    """Return the order in which heads are removed when scores are measured again after every ``step`` of them.

    ``score(model)``, such as ``lambda m: gradient(m, batches)``, is called while the heads removed so far are off, and
    the lowest of the others go next: it sees that a head matters more once its backup is gone. The model stays as it
    was. Raises ``ValueError`` for a step below 1.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> scores = HeadScores({("decoder", 0): torch.tensor([0.3, 0.1])})
    >>> greedy_order(ToyDecoder(), lambda model: scores)  # constant scores give their own order
    [('decoder', 0, 1), ('decoder', 0, 0)]
    """
    if step < 1:
        raise ValueError(f"step is the number of heads removed between two measurements, 1 or more; got {step}")
    remaining, removed = score(model).order(), []
    while len(remaining) > step:
        removed, remaining = removed + remaining[:step], remaining[step:]
        with ablate(model, removed):
            rescored = score(model).order()
        remaining = [head for head in rescored if head in remaining]
    return removed + remaining


def _heads(order: Order) -> list[Head]:
    if isinstance(order, HeadScores):
        return order.order()
    if isinstance(order, (str, Mapping, Tensor)) or not isinstance(order, Iterable):
        raise TypeError(f"an order is scores or a list of heads, the first to go first; got {type(order).__name__}")
    return [tuple(head) for head in order]


def _count(entry: float, total: int) -> int:
    """Return the number of heads that an entry of ``keep`` keeps, of ``total``."""
    try:
        count = operator.index(entry)  # an integer of Python, numpy or torch
    except TypeError:
        if not 0 <= entry <= 1:
            raise ValueError(f"a fraction lies between 0.0 and 1.0, got {entry!r}; write counts as int") from None
        count = int(total * entry + 0.5)  # not round(), which would round half a head to the even number
    if not 0 <= count <= total:
        raise ValueError(f"the order has {total} heads, so it cannot keep {entry!r}; write fractions as float: 1.0")
    return count


def _metric(result: Any, model: nn.Module) -> tuple[float, float, float]:
    """Return (metric, low, high) of whatever ``evaluate`` returned."""
    if isinstance(result, Tensor) and result.dim() == 1:
        if not len(result):
            raise ValueError("evaluate returned no scores: shape (0,)")
        examples = result.detach().cpu().double()
        result = (examples.mean(), *bounds(examples))
    try:
        metric, low, high = (float(x) for x in (result if isinstance(result, tuple) else (result, math.nan, math.nan)))
    except (TypeError, ValueError):
        shape = f" of shape {tuple(result.shape)}" if isinstance(result, Tensor) else ""
        raise TypeError(
            "evaluate returns a tensor (B,) of scores per sentence, (score, low, high) or one number; got "
            f"{type(result).__name__}{shape}"
        ) from None
    if math.isnan(metric):
        remedy = nonfinite_weights(model) or "leave out the sentences that have no score"
        raise ValueError(f"evaluate returned NaN: {remedy}")
    return metric, low, high
