"""The sections of a report, each a function from a subject to HTML.

A section that does not apply to a model raises an error, whose message the page shows instead of the section.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from headtools._report import figures
from headtools._report.page import paragraph, table
from headtools._report.subject import Subject, example, losses
from headtools.geometry.circuits import ov, random_like
from headtools.geometry.subspaces import effective_rank, overlap
from headtools.heads.bootstrap import MIN_EXAMPLES
from headtools.heads.record import record
from headtools.heads.sites import sites
from headtools.lesson.plain import escape
from headtools.roles.conventions import VOITA
from headtools.roles.head_functions import NONE, head_functions
from headtools.roles.taxonomy import taxonomy
from headtools.sparse.pruning_curve import curves, random_order

N_TABLE = 10  # heads in a table
N_MAPS = 8  # heads whose maps are drawn
NO_INTERVAL = f"no interval: fewer than {MIN_EXAMPLES} examples"
BY_LOSS = (
    "Importance: mean over examples of |dL/dgate| at gate 1 (Michel et al. 2019, equation 2), without the division by "
    "layer."
)
BY_OUTPUT = (
    "Importance: this model has no logits and so no loss; the importance of a head is the change of the output, "
    "relative to its norm, estimated from the gradient of random projections of the output at gate 1."
)
LEGEND = (
    "P positional, S syntactic, R rare word, C coreference, A alignment, O the query's own position, "
    "E special token (such as EOS) or punctuation"
)


def roles(subject: Subject) -> str:
    """Return the role map of each kind of attention, and the scores behind it."""
    if not subject.sentences or subject.tokenizer is None:
        raise ValueError("roles are measured on sentences and need a tokenizer: pass sentences and tokenizer=")
    test, fitted = subject.test_sentences, subject.selection_sentences
    options = {"conventions": VOITA, "times": 300, "seed": subject.seed}
    frame = taxonomy(subject.model, subject.tokenizer, test, fitted, **options)
    # The control: the same verdicts on maps whose rows are shuffled, so what holds there holds by chance.
    control = taxonomy(subject.model, subject.tokenizer, test, fitted, shuffle=True, **options)
    heads, control_heads = head_functions(frame), head_functions(control)
    subject.tables["roles"] = frame
    columns = _kind_columns(heads)
    role_maps = []
    for kind, heads_of_kind in heads.groupby(columns, sort=False):
        rows = (frame[columns] == list(kind)).all(axis=1)
        control_rows = (control_heads[columns] == list(kind)).all(axis=1)
        n_heads = (heads_of_kind.function != NONE).sum()
        n_control = (control_heads[control_rows].function != NONE).sum()
        claim = (
            f"{n_heads} of {len(heads_of_kind)} {' '.join(kind)} heads have a function; with each row of the maps "
            f"shuffled at random {n_control} would. Measured on {subject.test_text}."
        )
        role_maps.append(figures.roles(frame[rows], kind[-1], claim))
    passed = frame[frame.holds & frame.role.isin(", ".join(heads.roles).split(", "))]
    columns = [*columns, "layer", "head", "role", "score", "low", "high", "baseline", "chance", "n"]
    top = passed.sort_values("score", ascending=False).groupby("role", sort=False).head(2)[columns]
    return (
        "".join(role_maps)
        + paragraph(LEGEND, note=True)
        + (
            table(
                top,
                "The best one or two heads for each role, with 95 % intervals, the best fixed offset as baseline, and "
                f"chance; measured on {subject.test_text}",
            )
            if len(top)
            else paragraph("No head has a role by the lower end of its interval.")
        )
    )


def importance(subject: Subject) -> str:
    """Return importance by gradient, with intervals."""
    scores = subject.gradient(subject.halves[1])
    subject.tables["importance"] = frame = scores.to_frame()
    row_of = {head: row for row, head in enumerate(scores)}
    top = frame.iloc[[row_of[head] for head in subject.selection_scores.top(min(N_TABLE, len(scores)))]]
    claim = (
        f"The most important heads, chosen on one half of the {subject.unit}s and measured on the other; the first is "
        f"{figures.head_name(subject.selection_scores.top(1)[0])}. Measured on {subject.test_text}: "
        f"{subject.measure_text}."
    )
    intervals = NO_INTERVAL if scores.low is None else "with 95 % intervals"
    if subject.uses_output_change:
        label = "relative change of the output"
        quantity = "Change of the model's output without the head, relative to the output's norm, to first order"
    else:
        label = "mean |gradient of the loss|"
        quantity = "Mean absolute gradient of the loss with respect to the head's gate"
    caption = f"{quantity}; {subject.measure_text}, mean over {subject.test_text}, {intervals}"
    return "".join(figures.grids(scores, claim, label)) + table(top, caption)


def geometry(subject: Subject) -> str:
    """Return the effective rank of W_OV and the overlap of what heads write, compared with random heads."""
    rows, grids, left_out = [], [], []
    for kind in sites(subject.model).kinds:
        try:
            circuits = ov(sites(subject.model)[kind])
            ranks, chance = effective_rank(circuits), effective_rank(random_like(circuits, subject.seed)).flat().mean()
            overlaps = overlap(circuits)
        except ValueError as error:
            left_out.append(f"{kind}: {error}")
            continue
        between = overlaps.values[~torch.eye(len(overlaps.values), dtype=torch.bool)]  # of different heads
        mean_overlap = float(between.mean()) if len(between) else 0.0
        rows.append((kind, float(ranks.flat().mean()), float(chance), mean_overlap, overlaps.chance))
        grids += figures.grids(
            ranks,
            f"The {kind} heads use {ranks.flat().mean():.1f} directions on average, random heads {chance:.1f}.",
            "effective rank of W_OV",
        )
    if not rows:
        raise ValueError("; ".join(left_out))
    import pandas as pd

    columns = ["kind", "effective rank", "of random heads", "write overlap of two heads", "chance"]
    subject.tables["geometry"] = frame = pd.DataFrame(rows, columns=columns)
    notes = "".join(paragraph(f"Left out: {reason}", note=True) for reason in left_out)
    return (
        table(frame, "What the heads move, on average, and what random factors of the same shape would")
        + "".join(grids)
        + notes
    )


def pruning(subject: Subject) -> str:
    """Return the pruning curve, least important heads first, compared with random orders."""
    random_orders = {f"random {i}": random_order(sites(subject.model), subject.seed + i) for i in range(subject.orders)}
    test = subject.halves[1]
    loss = subject.loss_of(test)  # before any head is off, since it may compare with the outputs of the full model
    frame = curves(
        subject.model, {"gradient": subject.selection_scores} | random_orders, lambda model: losses(model, test, loss)
    )
    frame = frame.drop_duplicates(["order", "kept"], ignore_index=True)  # with few heads, two fractions are one count
    subject.tables["pruning"] = frame
    curve = frame[frame.order == "gradient"].set_index("kept")
    total = len(subject.selection_scores)
    half = min(curve.index, key=lambda kept: abs(kept - total / 2))
    random = frame[frame.order != "gradient"].groupby("kept").metric.mean()
    low, high = curve.low[half], curve.high[half]
    interval = NO_INTERVAL if math.isnan(low) else f"95 % interval {low:.2f} to {high:.2f}"
    claim = (
        f"With {half} of {total} heads the {subject.metric} is {curve.metric[half]:.2f} ({interval}), "
        f"with all {curve.metric[total]:.2f}"
        + (f"; in random order {random[half]:.2f}." if len(random) else ".")
        + f" Measured on {subject.test_text}: {subject.measure_text}."
    )
    return figures.pruning(frame, claim, subject.metric) + paragraph(
        "Heads are switched off, those of least gradient importance first. Nothing is trained in between, so with "
        "further training more heads could be removed.",
        note=True,
    )


def maps(subject: Subject) -> str:
    """Return the attention maps, on one example, of heads that have a role or are important."""
    reasons: dict[tuple, str] = {}  # head: why it is shown
    if "roles" in subject.tables:
        frame = subject.tables["roles"]
        frame = frame[frame.holds]
        for row in frame.loc[frame.groupby("family").low.idxmax()].itertuples() if len(frame) else ():
            stack = (row.stack,) if "stack" in frame else ()
            reasons.setdefault((*stack, row.kind, row.layer, row.head), row.role)
    if subject.has_importance:
        for head in subject.selection_scores.top(min(N_MAPS, len(subject.selection_scores))):
            reasons.setdefault(head, "importance")
    if not reasons:
        raise ValueError("no head has a role and importance could not be measured, so there are no maps to show")
    reasons = dict(list(reasons.items())[:N_MAPS])
    batch, queries, keys = example(subject)
    with torch.no_grad(), record(subject.model, want="maps", only=[*{head[:-1] for head in reasons}]) as captured:
        subject.model(**batch)
    head_maps = {head: captured[head[:-1]].maps[0, head[-1]] for head in reasons}  # (query, key)
    return figures.maps(head_maps, reasons, queries, keys) + paragraph(
        "A map shows what a head attends to. How important the head is, only the sections above can tell.", note=True
    )


def conventions(subject: Subject) -> str:
    """Return what was counted, and how."""
    import transformers

    lines = [
        "A head's output is what the output projection reads; a head that is off has this output at 0, and the "
        "projection's bias stays.",
        f"Roles: at the level of {VOITA.granularity}s; special tokens are neither keys nor queries in argmax scores; "
        f"the lower end of the 95 % interval must be {VOITA.margin:.2f} above the best fixed offset for a relation, "
        f"0.9 for a position, on {VOITA.min_queries} queries or more. Verdicts are not corrected for multiple testing: "
        "compare their number with that of shuffled maps.",
        f"Measured on {subject.corpus_text}. Geometry is of the weights; the maps are of one {subject.unit}.",
        BY_OUTPUT if subject.uses_output_change else f"{BY_LOSS} Loss: {subject.measure_text}.",
        "Effective rank: exp of the entropy of the singular values (Roy and Vetterli 2007).",
        f"Intervals: 95 %, bootstrap over examples. Seed {subject.seed}.",
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}.",
    ]
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in lines)}</ul>"


def _kind_columns(heads: Any) -> list[str]:
    return [name for name in ("stack", "kind") if name in heads]
