"""What a report says of causal language models alone: attention sinks, repetition, what their cache costs."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from markupsafe import Markup

from headtools._report import figures
from headtools._report.figures import head_name, head_of, number, percent
from headtools._report.page import Finding, paragraph, side_by_side, table
from headtools._report.sections import N_TABLE, display, interval
from headtools._report.subject import Subject
from headtools.heads._devices import on_device
from headtools.heads.groups import cache_size
from headtools.heads.scores import HeadScores, head_columns
from headtools.heads.sites import sites
from headtools.roles._segments import ordinary_tokens
from headtools.roles.attention_sinks import attention_sinks
from headtools.roles.induction import COPYING, INDUCTION, PREFIX, induction_scores
from headtools.sparse.cut_cost import cut_cost, repeated_tokens, warning_of

REPEATED = "repeated random tokens"
N_SEQUENCES, LENGTH, REPEATS = 12, 25, 4  # random segments, their tokens, and how often each stands in a sequence
N_AT_ONCE = 6  # sequences that run together: their maps are kept
INDUCTION_FROM = 0.3  # an induction score from which on a head is counted
SINK_FROM = 0.5  # a share of weight on the first token from which on a head is counted
CUT = 0.2  # share of heads that are switched off to check a ranking
_SOURCE = {INDUCTION: "the token after its earlier copy", "previous-token": "the token before it"}


def sinks(subject: Subject) -> Markup:
    """Return how much weight heads rest on the first token, with a start token before the text and without."""
    batches = [dict(batch) for batch in subject.halves[1]]
    frame = attention_sinks(subject.model, batches)
    start = getattr(subject.tokenizer, "bos_token_id", None)
    has_start = start is not None and all(bool((_first(batch) == start).all()) for batch in batches)
    columns = ["score", "low", "high"]
    if start is not None and not has_start:
        texts = [{name: batch[name] for name in ("input_ids", "attention_mask") if name in batch} for batch in batches]
        frame["with start token"] = attention_sinks(subject.model, texts, start=start).score
        columns.append("with start token")
    subject.tables["sinks"] = frame
    mean, chance = float(frame.score.mean()), float(frame.chance.iloc[0])
    n_above = int((frame.score > SINK_FROM).sum())
    top = frame.sort_values("score", ascending=False, kind="stable").head(N_TABLE)
    best = top.to_dict("records")[0]
    headline = (
        f"Heads rest on the first token: it gets {percent(mean)} of their weight on average."
        if mean > 2 * chance
        else f"No sink on the whole: the first token gets {percent(mean)} of the heads' weight."
    )
    subject.findings["sinks"] = Finding(
        headline,
        f"Weight spread evenly over the tokens so far would give it {percent(chance)}. {n_above} of {len(frame)} heads "
        f"give it more than half; most, {_name(best)}: {number(best['score'])} "
        f"({interval(best['low'], best['high'])}).",
        "sinks",
    )
    texts = "texts that begin with the start token" if has_start else "texts as they are, without a start token"
    claim = (
        f"{n_above} of {len(frame)} heads give the first token more than half of their weight; spread evenly it would "
        f"get {number(chance)}. Measured on {subject.test_text}, {texts}."
    )
    drawings = figures.grids(_scores(frame, "score"), "weight on the first token")
    if "with start token" in frame:
        with_start = number(float(frame["with start token"].mean()))
        claim += f" With a start token before each text: {with_start} on average, without {number(mean)}."
        drawings += figures.grids(_scores(frame, "with start token"), "on the start token")
    return (
        paragraph(claim)
        + side_by_side(drawings)
        + table(
            display(top, *columns, "chance"),
            "Heads with most weight on the first token, with 95 % intervals over texts; chance is weight spread evenly",
        )
    )


def repetition(subject: Subject) -> Markup:
    """Return the scores of heads that look back, on random tokens that repeat, with the first token and without it."""
    length, repeats = _length(subject.model)
    frame = induction_scores(
        subject.model, n=N_SEQUENCES, length=length, repeats=repeats, seed=subject.seed, batch_size=N_AT_ONCE
    )
    subject.tables["induction"] = frame
    columns = head_columns(frame)
    by_role = {
        role: rows.sort_values("score", ascending=False, kind="stable")
        for role, rows in frame.groupby("role", sort=False)
    }
    best = by_role[INDUCTION].to_dict("records")[0]
    held = by_role[INDUCTION][by_role[INDUCTION].low >= INDUCTION_FROM]
    held = held.merge(by_role[COPYING][[*columns, "low", "chance"]], on=columns, suffixes=("", " of copying"))
    n_copy = int((held["low of copying"] > held["chance of copying"]).sum())
    previous = by_role["previous-token"].to_dict("records")[0]
    n = len(by_role[INDUCTION])
    copy = f"Also copying: {n_copy} of {len(held)}." if len(held) else ""
    headline = (
        f"Induction: {len(held)} of {n} heads look for what followed an earlier copy."
        if len(held)
        else f"No induction head: none of {n} has a score of {INDUCTION_FROM} or more."
    )
    subject.findings["induction"] = Finding(
        headline,
        f"The highest is {_name(best)}: {number(best['score'])} ({interval(best['low'], best['high'])}), spread evenly "
        f"{number(best['chance'])}. {copy} Previous token: {_name(previous)}, "
        f"{number(previous['score'])} against {number(previous['chance'])}.",
        "induction",
    )
    drawings, claims = [], []
    for role, where in _SOURCE.items():
        first = by_role[role].to_dict("records")[0]
        uniform = number(first["chance"])
        claims.append(f"Most weight on {where}: {_name(first)}, {number(first['score'])}; spread evenly, {uniform}.")
        drawings += figures.grids(_scores(by_role[role].sort_index(), "score"), role)
    top = pd.concat([rows.head(3) for rows in by_role.values()])
    shown = display(top, "role", "score", "low", "high", "without_sink", "chance")
    shown = shown.rename(columns={"without_sink": "first token left out"})
    return (
        paragraph(" ".join(claims))
        + side_by_side(drawings)
        + table(
            shown,
            f"The three highest heads for each score, on {N_SEQUENCES} sequences of {length} random tokens that "
            "repeat, with 95 % intervals; chance is weight spread evenly, for copying equal logits",
        )
        + paragraph(
            f"{INDUCTION}: weight on the token after the earlier copy, the segment twice. {PREFIX}: the same summed "
            f"over all earlier copies, the segment {repeats} times. {COPYING}: how far the head raises the token it "
            "attends to, from -1 to 1.",
            note=True,
        )
    )


def check(subject: Subject) -> Markup:
    """Return what the least important heads are worth on the corpus of the ranking and on a second one."""
    scores = subject.selection_scores
    heads = scores.order()[: max(1, round(CUT * len(scores)))]
    corpora: dict[str, Any] = {"the corpus of the ranking": subject.halves[1]}
    if subject.check is not None:
        name, sentences, batches = subject.check
        if sentences and subject.objective is None:
            raise ValueError("check has sentences and the report has batches: pass batches as check, too")
        batches = subject.objective.batches(sentences) if sentences else batches
        corpora[name] = [on_device(subject.model, batch) for batch in batches]
    losses = {name: subject.loss_of(batches) for name, batches in corpora.items()}
    if subject.is_causal and subject.loss is None and (subject.objective is None or subject.objective.name == "lm"):
        length, _ = _length(subject.model)
        repeated = repeated_tokens(subject.model, length=length, seed=subject.seed)
        corpora[REPEATED] = on_device(subject.model, repeated)
    if len(corpora) == 1:
        raise ValueError("there is no second corpus to check the ranking on: pass check=")
    subject.tables["check"] = frame = cut_cost(subject.model, heads, corpora, losses)
    worst = frame.iloc[1:].sort_values("rise").iloc[-1]
    here = frame.iloc[0]
    warned = warning_of(frame)
    subject.findings["check"] = Finding(
        f"The ranking holds for its own corpus only: elsewhere the same cut costs {_plus(worst.rise)}."
        if warned
        else "On a second corpus the least important heads cost no more.",
        f"Without these {len(heads)} heads the loss rises by {_plus(worst.rise)} ({_signed(worst)}) on {worst.corpus}, "
        f"and by {_plus(here.rise)} ({_signed(here)}) on the corpus of the ranking.",
        "check",
    )
    shown = frame.rename(columns={"without": f"without {len(heads)} heads"})
    text = (
        f"Careful: {warned}. Heads that look back can be kept: leave them out of prune(...)."
        if warned
        else "On no other corpus do the same heads clearly cost more. That holds for these corpora."
    )
    return table(
        shown,
        f"The loss with all heads and without the {len(heads)} of {len(scores)} that are least important by gradient, "
        "and the rise with its 95 % paired interval",
    ) + paragraph(text)


def cache(subject: Subject) -> Markup:
    """Return what the key-value cache holds for each head and layer, and what sharing saves."""
    model = subject.model
    width = next(model.parameters()).element_size()
    rows = []
    for site in sites(model):
        if site.empty or site.kind != "decoder":
            continue
        if site.latent:
            raise ValueError(
                f"{site.label} keeps one compressed vector for all heads, so that no head has a cache of its own; "
                f"all layers keep {cache_size(model):,} bytes a token"
            )
        one = (site.head_dim + site.value_dim) * width
        share = site.kv_heads / site.heads
        rows.append(
            {
                "layer": site.layer,
                "query heads": site.heads,
                "key-value heads": site.kv_heads,
                "bytes a token and key-value head": one,
                "bytes a token and query head": round(one * share),
                "bytes a token": one * site.kv_heads,
            }
        )
    subject.tables["cache"] = frame = pd.DataFrame(rows)
    total = int(frame["bytes a token"].sum())
    unshared = int((frame["bytes a token"] / frame["key-value heads"] * frame["query heads"]).sum())
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    lengths = [1024, *([limit] if isinstance(limit, int) and limit > 1024 else [])]
    sizes = "; ".join(f"{n:,} tokens take {total * n / 1e6:,.1f} MB" for n in lengths)
    shared = "" if total == unshared else f" Were they not shared, it would be {unshared / total:.3g} times that."
    shown, distinct = frame, frame.drop(columns="layer").drop_duplicates()
    if len(distinct) == 1:
        shown = distinct.assign(layers=len(frame))[["layers", *distinct.columns]]
    text = f"A text costs {total:,} bytes a token for the keys and values of all layers: {sizes}.{shared}"
    caption = f"The key-value cache at {8 * width} bits a number"
    return table(shown, caption) + paragraph(text) + _resting(subject, total)


def _resting(subject: Subject, total: int) -> Markup:
    """Say what the cache could save if heads that rest on the first token kept only a window; nothing without sinks."""
    frame = subject.tables.get("sinks")
    resting = frame[frame.score > SINK_FROM] if frame is not None else ()
    if not len(resting):
        return Markup()
    heads = [tuple(row) for row in resting[head_columns(frame)].values.tolist()]
    tokens = 4096
    saved = 1 - cache_size(subject.model, tokens, streaming=heads) / (total * tokens)
    return paragraph(
        f"Heads that give the first token more than half of their weight: {len(heads)}. If they kept only 4 first and "
        f"64 recent tokens, a text of {tokens:,} tokens would need {percent(saved)} less; a cache shrinks only where "
        "all query heads of a key-value head do so. window(model, heads) shows whether the model can do without the "
        "rest.",
        note=True,
    )


def _length(model: Any) -> tuple[int, int]:
    """Return how many different random tokens fit into the model, repeated, and how often they are."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    limit = limit if isinstance(limit, int) else LENGTH * REPEATS
    length = min(LENGTH, limit // REPEATS, len(ordinary_tokens(model)))
    if length < 3:
        raise ValueError(
            f"random tokens that repeat need 3 different tokens and 12 positions or more; {type(model).__name__} has "
            f"{len(ordinary_tokens(model))} and {limit}"
        )
    return length, REPEATS


def _first(batch: dict) -> torch.Tensor:
    """Return the first real token of each row."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    first = torch.zeros(len(ids), dtype=torch.long) if mask is None or mask.dim() != 2 else mask.long().argmax(-1)
    return ids[torch.arange(len(ids)), first.to(ids.device)]


def _scores(frame: Any, column: str) -> HeadScores:
    """Return a column of a table of heads as scores."""
    values = {
        tuple(key): torch.tensor(rows.sort_values("head")[column].to_numpy())
        for key, rows in frame.groupby(head_columns(frame)[:-1], sort=False)
    }
    return HeadScores(values, column)


def _name(row: dict) -> str:
    return head_name(head_of(row))


def _signed(row: Any) -> str:
    return "no interval" if math.isnan(row.low) else f"95 % interval {_plus(row.low)} to {_plus(row.high)}"


def _plus(value: float) -> str:
    """Write a difference with its sign, and 0.00 without one.

    >>> _plus(0.251), _plus(-0.001)
    ('+0.25', '0.00')
    """
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
