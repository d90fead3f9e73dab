"""The sections of a report, each a function from a subject to HTML; where one cannot be made, its error says why."""

from __future__ import annotations

import math
from typing import Any

import torch

from headtools._report import figures as draw
from headtools._report.page import paragraph, table
from headtools._report.subject import Subject, example, losses
from headtools.geometry._calibration import random_like
from headtools.geometry.circuits import ov
from headtools.geometry.subspaces import effective_rank, overlap
from headtools.heads.bootstrap import MIN_EXAMPLES
from headtools.heads.record import record
from headtools.heads.sites import sites
from headtools.lesson.plain import escape
from headtools.roles.conventions import VOITA
from headtools.roles.head_functions import NONE, holders
from headtools.roles.taxonomy import taxonomy
from headtools.sparse.pruning_curve import curves, random_order

TOP = 10  # heads in a table
SHOWN = 8  # heads whose maps are drawn
FEW = f"no interval: fewer than {MIN_EXAMPLES} examples"
BY_LOSS = (
    "Importance: mean over examples of |dL/dgate| at gate 1 (Michel et al. 2019, equation 2), without the division by "
    "layer."
)
BY_OUTPUT = (
    "Importance: this model has no logits and so no loss; its heads are weighed by how far its output moves, over the "
    "output's own length, by the slope of random projections of the output at gate 1."
)
LETTERS_SAY = "P positional, S syntactic, R rare word, C coreference, A alignment, O itself, E end mark or punctuation"


def roles(subject: Subject) -> str:
    """The role map of every kind of attention, and the scores behind it."""
    if not subject.sentences or subject.tokenizer is None:
        raise ValueError("roles are measured on sentences and need a tokenizer: pass sentences and tokenizer=")
    scored, fitted = subject.measured_on, subject.chosen_on
    ask = {"conventions": VOITA, "times": 300, "seed": subject.seed}
    frame = taxonomy(subject.model, subject.tokenizer, scored, fitted, **ask)
    luck = taxonomy(subject.model, subject.tokenizer, scored, fitted, shuffle=True, **ask)
    heads, dealt = holders(frame), holders(luck)
    subject.tables["roles"] = frame
    drawn = []
    for key, some in heads.groupby([name for name in ("stack", "kind") if name in heads], sort=False):
        names = list(_key(heads))
        own, same = (frame[names] == list(key)).all(axis=1), (dealt[names] == list(key)).all(axis=1)
        held, by_luck = (some.function != NONE).sum(), (dealt[same].function != NONE).sum()
        claim = (
            f"{held} of {len(some)} {' '.join(key)} heads have a function that holds; with each row's weights dealt "
            f"out at random {by_luck} would. Measured on {subject.measured}."
        )
        drawn.append(draw.roles(frame[own], key[-1], claim))
    held = frame[frame.holds & frame.role.isin(", ".join(heads.roles).split(", "))]
    columns = [*_key(heads), "layer", "head", "role", "score", "low", "high", "baseline", "chance", "n"]
    top = held.sort_values("score", ascending=False).groupby("role", sort=False).head(2)[columns]
    return (
        "".join(drawn)
        + paragraph(LETTERS_SAY, note=True)
        + (
            table(
                top,
                "The one or two best heads for each role, with 95 % intervals, beside the best fixed offset and "
                f"chance; measured on {subject.measured}",
            )
            if len(top)
            else paragraph("No head holds a role by its interval.")
        )
    )


def worth(subject: Subject) -> str:
    """Importance by gradient, with intervals."""
    scores = subject.gradient(subject.halves[1])
    subject.tables["importance"] = frame = scores.to_frame()
    places = {head: place for place, head in enumerate(scores)}
    top = frame.iloc[[places[head] for head in subject.choice.top(min(TOP, len(scores)))]]
    claim = (
        f"The heads that lean hardest, chosen on one half of the {subject.unit}s and measured on the other; the first "
        f"is {draw.say(subject.choice.top(1)[0])}. Measured on {subject.measured}: {subject.weighed_by}."
    )
    intervals = FEW if scores.low is None else "with 95 % intervals"
    if subject.by_output:
        label = "relative change of the output"
        what = "How far the model's output would move without the head, over the output's own length, to first order"
    else:
        label = "mean |slope of the loss|"
        what = "Mean of the absolute slope of the loss with respect to the head's gate"
    caption = f"{what}; {subject.weighed_by}, mean over {subject.measured}, {intervals}"
    return "".join(draw.grids(scores, claim, label)) + table(top, caption)


def geometry(subject: Subject) -> str:
    """Effective rank of what the heads move, and how much they write to the same place, beside random heads."""
    rows, pictures, refused = [], [], []
    for kind in sites(subject.model).kinds:
        try:
            circuits = ov(sites(subject.model)[kind])
            ranks, chance = effective_rank(circuits), effective_rank(random_like(circuits, subject.seed)).flat().mean()
            write = overlap(circuits)
        except ValueError as error:
            refused.append(f"{kind}: {error}")
            continue
        off = write.values[~torch.eye(len(write.values), dtype=torch.bool)]
        rows.append(
            (kind, float(ranks.flat().mean()), float(chance), float(off.mean()) if len(off) else 0.0, write.chance)
        )
        pictures += draw.grids(
            ranks,
            f"The {kind} heads use {ranks.flat().mean():.1f} directions on the mean, random heads {chance:.1f}.",
            "effective rank of W_OV",
        )
    if not rows:
        raise ValueError("; ".join(refused))
    import pandas as pd

    columns = ["kind", "effective rank", "of random heads", "write overlap of two heads", "chance"]
    subject.tables["geometry"] = frame = pd.DataFrame(rows, columns=columns)
    notes = "".join(paragraph(f"Left out: {reason}", note=True) for reason in refused)
    return (
        table(frame, "What the heads move, on the mean, beside random factors of the same shape")
        + "".join(pictures)
        + notes
    )


def pruning(subject: Subject) -> str:
    """The loss with fewer and fewer heads, least important first, beside random orders."""
    blind = {f"random {i}": random_order(sites(subject.model), subject.seed + i) for i in range(subject.orders)}
    test = subject.halves[1]
    loss = subject.loss_of(test)  # made before any head is off
    frame = curves(subject.model, {"gradient": subject.choice} | blind, lambda model: losses(model, test, loss))
    frame = frame.drop_duplicates(["order", "kept"], ignore_index=True)  # of few heads, two shares are one number
    subject.tables["pruning"] = frame
    found = frame[frame.order == "gradient"].set_index("kept")
    middle = min(found.index, key=lambda kept: abs(kept - len(subject.choice) / 2))
    luck = frame[frame.order != "gradient"].groupby("kept").metric.mean()
    low, high = found.low[middle], found.high[middle]
    spread = FEW if math.isnan(low) else f"95 % interval {low:.2f} to {high:.2f}"
    claim = (
        f"With {middle} of {len(subject.choice)} heads the {subject.metric} is {found.metric[middle]:.2f} ({spread}), "
        f"with all {found.metric[len(subject.choice)]:.2f}"
        + (f"; in random order {luck[middle]:.2f}." if len(luck) else ".")
        + f" Measured on {subject.measured}: {subject.weighed_by}."
    )
    return draw.pruning(frame, claim, subject.metric) + paragraph(
        "Heads are switched off, those of least gradient importance first; nothing is trained in between, so this is "
        "the least that can be removed.",
        note=True,
    )


def maps(subject: Subject) -> str:
    """The attention maps of heads that hold a role or lean hardest, on one example."""
    chosen: dict[tuple, str] = {}
    if "roles" in subject.tables:
        frame = subject.tables["roles"]
        frame = frame[frame.holds]
        for row in frame.loc[frame.groupby("family").low.idxmax()].itertuples() if len(frame) else ():
            key = (row.stack,) if "stack" in frame else ()
            chosen.setdefault((*key, row.kind, row.layer, row.head), row.role)
    if subject.can_weigh:
        for head in subject.choice.top(min(SHOWN, len(subject.choice))):
            chosen.setdefault(head, "importance")
    if not chosen:
        raise ValueError("no head has a role and none has an importance, so none is to be looked at first")
    picked = dict(list(chosen.items())[:SHOWN])
    batch, queries, keys = example(subject)
    with torch.no_grad(), record(subject.model, want="maps", only=[*{head[:-1] for head in picked}]) as seen:
        subject.model(**batch)
    return draw.maps({head: seen[head[:-1]].maps[0, head[-1]] for head in picked}, picked, queries, keys) + paragraph(
        "A map shows where a head looks. What it is worth, only the sections above can tell.", note=True
    )


def conventions(subject: Subject) -> str:
    """What was counted, and how."""
    import transformers

    said = [
        "A head's output is what the output projection reads; a head that is off has this output at 0, and the "
        "projection's bias stays.",
        f"Roles: at the level of {VOITA.level}s; marks are no keys and no queries for arg-max scores; a relation needs "
        f"{VOITA.margin:.2f} above its best fixed offset, a position 0.9, by the lower end of the 95 % interval, in "
        f"{VOITA.fewest} looks or more. Verdicts are not corrected for their number: see the random deal.",
        f"Measured on {subject.described}. Geometry is of the weights; the maps are of one {subject.unit}.",
        BY_OUTPUT if subject.by_output else f"{BY_LOSS} Loss: {subject.weighed_by}.",
        "Effective rank: exp of the entropy of the singular values (Roy and Vetterli 2007).",
        f"Intervals: 95 %, bootstrap over examples. Seed {subject.seed}.",
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}.",
    ]
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>"


def _key(heads: Any) -> list[str]:
    return [name for name in ("stack", "kind") if name in heads]


