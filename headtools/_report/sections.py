"""The sections of a report, each a function from a subject to HTML, which also leaves its findings with the subject.

A section that does not apply to a model raises an error, whose message the page shows instead of the section.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from markupsafe import Markup

from headtools._report import figures
from headtools._report.figures import head_name, head_of, number, percent
from headtools._report.page import Finding, items, paragraph, side_by_side, table
from headtools._report.subject import Subject, example
from headtools.geometry.circuits import ov, random_like
from headtools.geometry.subspaces import effective_rank, overlap
from headtools.heads.intervals import MIN_EXAMPLES
from headtools.heads.record import record
from headtools.heads.scores import HeadScores, head_columns
from headtools.heads.sites import sites
from headtools.roles._role_table import MIN_QUERIES
from headtools.roles.head_functions import NONE, function, head_functions
from headtools.roles.role import MARGIN
from headtools.roles.taxonomy import taxonomy
from headtools.sparse.pruning_curve import curves, random_order

_FUNCTIONS = {"mark": "special token or punctuation", "self": "own position", "rare": "rare word"}
N_TABLE = 10  # heads in a table
N_MAPS = 8  # heads whose maps are drawn
RANDOM_POINTS = (0.75, 0.5, 0.25)  # shares of heads kept at which random orders are measured
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
    "E special token (such as EOS) or punctuation. Point at a head to see its roles: “offset -1” is the word before; "
    "“nsubj up” leads from a subject to its verb, “nsubj down” back."
)


def interval(low: float, high: float) -> str:
    """Write an interval, or that there is none.

    >>> interval(0.25, 0.5), interval(float("nan"), float("nan"))
    ('95 % interval 0.25 to 0.5', 'no interval: fewer than 5 examples')
    """
    return NO_INTERVAL if math.isnan(low) else f"95 % interval {number(low)} to {number(high)}"


def roles(subject: Subject) -> Markup:
    """Return the role map of each kind of attention, and the scores behind it."""
    if not subject.sentences or subject.tokenizer is None:
        raise ValueError("roles are measured on sentences and need a tokenizer: pass sentences and tokenizer=")
    test, fitted = subject.test_sentences, subject.selection_sentences
    # The control: the same verdicts on maps whose rows are shuffled, so what holds there holds by chance.
    frame, control = (
        taxonomy(subject.model, subject.tokenizer, test, fitted, times=300, seed=subject.seed, shuffle=shuffle)
        for shuffle in (False, True)
    )
    heads, control_heads = head_functions(frame), head_functions(control)
    subject.tables["roles"] = frame
    columns = head_columns(heads)[:-2]  # stack and kind
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
    passed = frame[frame.passes & frame.role.isin(", ".join(heads.roles).split(", "))]
    top = passed.sort_values("score", ascending=False).groupby("role", sort=False).head(2)
    _find_functions(subject, heads, control_heads)
    _find_best_role(subject, frame, passed)
    return (
        side_by_side(role_maps)
        + paragraph(LEGEND, note=True)
        + (
            table(
                display(top, "role", "score", "low", "high", "baseline", "chance", "n"),
                "The best one or two heads for each role, with 95 % intervals, the best fixed offset as baseline, and "
                f"chance; measured on {subject.test_text}",
            )
            if len(top)
            else paragraph("No head has a role by the lower end of its interval.")
        )
    )


def _find_functions(subject: Subject, heads: Any, control_heads: Any) -> None:
    """Leave the finding on how many heads have a function."""
    with_one = heads[heads.function != NONE]
    n_control = int((control_heads.function != NONE).sum())
    counts = with_one.function.value_counts(sort=True).items()
    kinds = ", ".join(f"{_FUNCTIONS.get(name, name)} {n}" for name, n in counts)
    if len(with_one) > n_control:
        headline = f"{len(with_one)} of {len(heads)} heads have a function."
    else:
        headline = f"No more heads have a function than by chance: {len(with_one)} of {len(heads)}."
    kinds = f"By function: {kinds}. " if kinds else ""
    detail = f"{kinds}With the rows of the maps shuffled {n_control} would. Measured on {subject.test_text}."
    subject.findings["roles"] = Finding(headline, detail, "roles")


def _find_best_role(subject: Subject, frame: Any, passed: Any) -> None:
    """Leave the finding on the head that is furthest above its baseline."""
    candidates = passed if len(passed) else frame[frame.baseline.notna() & (frame.n >= MIN_QUERIES)]
    functions = {role: function(role) for role in candidates.role.unique()}
    named = candidates.role.isin([*filter(functions.get, functions)])
    candidates = candidates[candidates.low.notna() & candidates.baseline.notna() & named]
    unremarkable = [role for role, name in functions.items() if name in ("mark", "self")]
    telling = candidates[~candidates.role.isin(unremarkable)]  # what many heads do anyhow comes last
    candidates = telling if len(telling) else candidates
    if not len(candidates):
        return
    row = candidates.loc[[(candidates.low - candidates.baseline).idxmax()]].to_dict("records")[0]
    head = head_name(head_of(row))
    detail = (
        f"Score {number(row['score'])} ({interval(row['low'], row['high'])}) on {row['n']} queries; the baseline "
        f"({row['baseline_rule']}) has {number(row['baseline'])}, chance {number(row['chance'])}."
    )
    if len(passed):
        headline = f"The clearest role: {head} has “{row['role']}”."
    else:
        headline = f"No head has a role. The nearest is {head} with “{row['role']}”."
    subject.findings["best role"] = Finding(headline, detail, "roles")


def importance(subject: Subject) -> Markup:
    """Return importance by gradient with intervals, absolute and with its sign."""
    scores, increases = subject.slopes(subject.halves[1])
    subject.tables["importance"] = frame = scores.to_frame()
    if increases is not None:
        signed = increases.to_frame()
        frame["rise without"] = signed[increases.name]
        if increases.low is not None:
            frame["rise low"], frame["rise high"] = signed.low, signed.high
    columns = [name for name in frame if name not in head_columns(frame)]
    row_of = {head: row for row, head in enumerate(scores)}
    top = frame.iloc[[row_of[head] for head in subject.selection_scores.top(min(N_TABLE, len(scores)))]]
    claim = (
        f"The most important heads, chosen on one half of the {subject.unit}s and measured on the other; the first is "
        f"{head_name(subject.selection_scores.top(1)[0])}. Measured on {subject.test_text}: "
        f"{subject.measure_text}."
    )
    intervals = NO_INTERVAL if scores.low is None else "with 95 % intervals"
    if subject.uses_output_change:
        label = "change of the output"
        quantity = "Change of the model's output without the head, relative to the output's norm, to first order"
    else:
        label = "mean |gradient|"
        quantity = "Mean absolute gradient of the loss with respect to the head's gate"
    _find_importance(subject, scores, increases)
    caption = f"{quantity}; {subject.measure_text}, mean over {subject.test_text}, {intervals}"
    absolute = figures.grids(scores, label)
    if increases is None:
        return paragraph(claim) + side_by_side(absolute) + table(display(top, *columns), caption)
    signed = figures.grids(increases, "rise without it", signed=True)
    drawings = [absolute + signed] if len(absolute) == 1 else [absolute, signed]
    note = (
        "The absolute value says how much the loss of an example depends on a head; the sign, whether all examples "
        "together are better off with it: the rise of the loss without the head, to first order. Shades grow with "
        "the square root."
    )
    caption += ". “Rise without”: how much the loss would rise without the head, to first order; below 0 it would fall"
    return (
        paragraph(claim)
        + Markup().join(map(side_by_side, drawings))
        + paragraph(note, note=True)
        + table(display(top, *columns), caption)
    )


def _find_importance(subject: Subject, scores: HeadScores, increases: HeadScores | None) -> None:
    """Leave the findings on the most important head and on how unequal, and of which sign, importance is."""
    best, flat = subject.selection_scores.top(1)[0], scores.flat()
    median = float(flat.median())
    low, high = (math.nan if ends is None else float(ends[best[:-1]][best[-1]]) for ends in (scores.low, scores.high))
    value = scores[best]
    clear = median > 0 and (value if math.isnan(low) else low) > 2 * median
    times = f"{value / median:.0f} times" if median > 0 and value / median >= 1.5 else "no more than"
    subject.findings["importance"] = Finding(
        f"{head_name(best)} matters most, {times} the middle head."
        if clear
        else f"No head stands out in importance; first is {head_name(best)}.",
        f"Importance {number(value)} ({interval(low, high)}), the median head's is {number(median)}. The head was "
        f"chosen on the other half of the {subject.unit}s.",
        "importance",
    )
    n_top = max(1, round(len(flat) / 10))
    share = float(flat.sort(descending=True).values[:n_top].sum() / flat.sum()) if float(flat.sum()) > 0 else 0.0
    detail = f"Were all heads equal, it would be {percent(n_top / len(flat))}."
    if increases is not None and increases.high is not None:
        high = torch.cat([increases.high[key] for key in increases.values])
        detail += (
            f" Without {int((high < 0).sum())} of {len(flat)} heads, each alone, the loss would fall (interval below "
            "0, to first order)."
        )
    first = "The first" if n_top == 1 else f"The first {n_top}"
    carries = "carries" if n_top == 1 else "carry"
    subject.findings["spread"] = Finding(
        f"{first} of {len(flat)} heads {carries} {percent(share)} of all importance.", detail, "importance"
    )


def geometry(subject: Subject) -> Markup:
    """Return the effective rank of W_OV and the overlap of what heads write, compared with random heads."""
    rows, left_out, all_ranks = [], [], {}
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
        all_ranks |= ranks.values
    if not rows:
        raise ValueError("; ".join(left_out))
    columns = ["kind", "effective rank", "of random heads", "write overlap of two heads", "chance"]
    subject.tables["geometry"] = frame = pd.DataFrame(rows, columns=columns)
    notes = Markup().join(paragraph(f"Left out: {reason}", note=True) for reason in left_out)
    claim = "; ".join(
        f"the {kind} heads use {rank:.1f} directions on average, random heads {chance:.1f}"
        for kind, rank, chance, _, _ in rows
    )
    kind, rank, chance, shared, expected = max(rows, key=lambda row: abs(row[1] / row[2] - 1) if row[2] else 0.0)
    differs = chance > 0 and abs(rank / chance - 1) > 0.05
    subject.findings["geometry"] = Finding(
        f"The {kind} heads use {rank:.1f} directions each, random ones {chance:.1f}."
        if differs
        else f"What the heads move looks random: {rank:.1f} directions each, random ones {chance:.1f}.",
        f"Two {kind} heads write to subspaces that overlap by {number(shared)}; by chance {number(expected)}. This is "
        "of the weights alone, so it has no interval.",
        "geometry",
    )
    return (
        paragraph(f"{claim[0].upper()}{claim[1:]}.")
        + side_by_side(figures.grids(HeadScores(all_ranks, "effective rank"), "rank of W_OV", from_zero=False))
        + table(frame, "What the heads move, on average, and what random factors of the same shape would")
        + notes
    )


def pruning(subject: Subject) -> Markup:
    """Return the pruning curve, least important heads first, compared with random orders."""
    random_orders = {f"random {i}": random_order(sites(subject.model), subject.seed + i) for i in range(subject.orders)}
    measure = subject.test_losses()
    frame = curves(subject.model, {"gradient": subject.selection_scores}, measure)
    total = len(subject.selection_scores)
    if random_orders:  # their mean is smooth: half as many points will do, and all heads and none they share
        ends = frame[frame.kept.isin([0, total])]
        between = curves(subject.model, random_orders, measure, RANDOM_POINTS)
        frame = pd.concat([frame, *(ends.assign(order=name) for name in random_orders), between])
    frame = frame.drop_duplicates(["order", "kept"])  # with few heads, two fractions are one count
    frame = frame.sort_values(["order", "kept"], ascending=[True, False], ignore_index=True)  # "gradient" comes first
    subject.tables["pruning"] = frame
    curve = frame[frame.order == "gradient"].set_index("kept")
    random = frame[frame.order != "gradient"].groupby("kept").metric.mean()
    half = min(random.index if len(random) else curve.index, key=lambda n_kept: abs(n_kept - total / 2))
    low, high = curve.low[half], curve.high[half]
    within = NO_INTERVAL if math.isnan(low) else f"95 % interval {low:.2f} to {high:.2f}"
    claim = (
        f"With {half} of {total} heads the {subject.metric} is {curve.metric[half]:.2f} ({within}), "
        f"with all {curve.metric[total]:.2f}"
        + (f"; in random order {random[half]:.2f}." if len(random) else ".")
        + f" Measured on {subject.test_text}: {subject.measure_text}."
    )
    _find_pruning(subject, curve, random, half)
    return figures.pruning(frame, claim, subject.metric) + paragraph(
        "Heads are switched off, those of least gradient importance first. Nothing is trained in between, so with "
        "further training more heads could be removed.",
        note=True,
    )


def _find_pruning(subject: Subject, curve: Any, random: Any, half: int) -> None:
    """Leave the finding on how many heads the model needs, and whether the order in which they go matters."""
    total = max(curve.index)
    with_all, with_half, with_none = (float(curve.metric[n_kept]) for n_kept in (total, half, 0))
    low, high = float(curve.low[half]), float(curve.high[half])
    high_with_all = float(curve.high[total])
    threshold = with_all * 1.05 if math.isnan(high_with_all) else high_with_all
    free = total - min(
        n_kept for n_kept in curve.index if all(curve.metric[k] <= threshold for k in curve.index if k >= n_kept)
    )
    unit = f" {subject.metric.removesuffix(' (nats)')}"
    detail = f"With {half} heads it is {number(with_half)} ({interval(low, high)}), with none {number(with_none)}"
    detail += f"; when heads go in random order, {number(float(random[half]))} with {half}." if len(random) else "."
    if with_none <= threshold:
        headline = f"Here the model does not need its heads: its{unit} is {number(with_none)} without any."
    elif free:
        headline = f"{free} of {total} heads can go before the{unit} of {number(with_all)} clearly rises."
    else:
        headline = f"Not even the least important tenth of the heads can go: the{unit} rises from {number(with_all)}."
    if len(random) and not math.isnan(low) and with_none > threshold and not high < float(random[half]):
        detail += " At that point the order is no better than a random one."
    subject.findings["pruning"] = Finding(headline, detail, "pruning")


def maps(subject: Subject) -> Markup:
    """Return the attention maps, on one example, of heads that have a role or are important."""
    reasons: dict[tuple, str] = {}  # head: why it is shown
    if "roles" in subject.tables:
        frame = subject.tables["roles"]
        # Roles that are functions: a class of maps, a distance or an entropy names no head worth a look, and under a
        # causal mask "map diagonal" says nothing at all.
        frame = frame[frame.passes & frame.role.isin([role for role in frame.role.unique() if function(role)])]
        for row in frame.loc[frame.groupby("family").low.idxmax()].to_dict("records") if len(frame) else ():
            reasons.setdefault(head_of(row), row["role"])
    if subject.has_importance:
        for head in subject.selection_scores.top(min(N_MAPS, len(subject.selection_scores))):
            reasons.setdefault(head, "important")
    if not reasons:
        raise ValueError("no head has a role and importance could not be measured, so there are no maps to show")
    reasons = dict(list(reasons.items())[:N_MAPS])
    batch, queries, keys = example(subject)
    with torch.no_grad(), record(subject.model, want="maps", only=[*{head[:-1] for head in reasons}]) as captured:
        subject.model(**batch)
    head_maps = {head: captured[head[:-1]].maps[0, head[-1]] for head in reasons}  # (query, key)
    return figures.maps(head_maps, reasons, queries, keys) + paragraph(
        f"Attention of {len(head_maps)} heads on one {subject.unit}: queries down, keys across, each map on a scale of "
        "its own. A map shows what a head attends to; how important the head is, only the other sections can tell.",
        note=True,
    )


def conventions(subject: Subject) -> Markup:
    """Return what was counted, and how."""
    import transformers

    lines = [
        "A head's output is what the output projection reads; a head that is off has this output at 0, and the "
        "projection's bias stays.",
        "Roles: at the level of words; special tokens are neither keys nor queries in argmax scores; "
        f"the lower end of the 95 % interval must be {MARGIN:.2f} above the best fixed offset for a relation, "
        f"0.9 for a position, on {MIN_QUERIES} queries or more. Verdicts are not corrected for multiple testing: "
        "compare their number with that of shuffled maps.",
        f"Measured on {subject.corpus_text}. Geometry is of the weights; the maps are of one {subject.unit}.",
        BY_OUTPUT if subject.uses_output_change else f"{BY_LOSS} Loss: {subject.measure_text}.",
        "Effective rank: exp of the entropy of the singular values (Roy and Vetterli 2007).",
        f"Intervals: 95 %, bootstrap over examples. Seed {subject.seed}.",
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}.",
    ]
    return items(lines)


def display(frame: Any, *columns: str) -> Any:
    """Return some columns of a table of heads after the names of the heads."""
    shown = frame[list(columns)].copy()
    shown.insert(0, "head", [head_name(tuple(row)) for row in frame[head_columns(frame)].itertuples(index=False)])
    return shown
