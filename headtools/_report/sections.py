"""The sections of a report, each a function of the subject and the results to HTML and the findings for the top."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from markupsafe import Markup

from headtools._report.measures import CACHED, N_SEQUENCES, REPEATS, SINK_FROM, Results, ranking
from headtools._report.page import (
    Finding,
    counted,
    curve,
    every_head,
    items,
    name_of,
    number,
    of_heads,
    paragraph,
    percent,
    table,
)
from headtools._report.subject import Subject
from headtools.course.pictures import head_name
from headtools.heads.intervals import MIN_EXAMPLES
from headtools.heads.scores import HeadScores, head_columns
from headtools.roles._role_table import MIN_QUERIES
from headtools.roles.head_functions import NONE, function, head_functions
from headtools.roles.induction import COPYING, INDUCTION, PREFIX
from headtools.roles.role import MARGIN

Shown = tuple[Markup, dict[str, Finding]]  # a section's HTML, and what it says on top of the page, by name

N_TABLE = 10  # heads in a table
INDUCTION_FROM = 0.3  # an induction score from which on a head is counted
NO_INTERVAL = f"no interval: fewer than {MIN_EXAMPLES} examples"
_FUNCTIONS = {"mark": "special token or punctuation", "self": "own position", "rare": "rare word"}
BY_LOSS = (
    "Importance: mean over examples of |dL/dgate| at gate 1 (Michel et al. 2019, equation 2), without the division by "
    "layer."
)
BY_OUTPUT = (
    "Importance: this model has no logits and so no loss; the importance of a head is the change of the output, "
    "relative to its norm, estimated from the gradient of random projections of the output at gate 1."
)
LEGEND = (
    "“offset -1” is the word before; “nsubj up” leads from a subject to its verb, “nsubj down” back. A head whose "
    "function is a mark attends to a special token (such as EOS) or to punctuation, self to the query's own position."
)
FREE = 0.05  # of what all heads are worth: a cut that costs less counts as small


def interval(low: float, high: float, write: Any = number) -> str:
    """Write an interval, or that there is none.

    >>> interval(0.25, 0.5), interval(float("nan"), float("nan"))
    ('95 % interval 0.25 to 0.5', 'no interval: fewer than 5 examples')
    """
    return NO_INTERVAL if math.isnan(low) else f"95 % interval {write(low)} to {write(high)}"


def roles(subject: Subject, results: Results) -> Shown:
    """How many heads of each kind of attention have a function, and the scores behind it."""
    frame, control = results["roles"]["table"], results["roles"]["control"]
    heads, by_chance = head_functions(frame), head_functions(control)
    columns = head_columns(heads)[:-2]  # stack and kind
    claims = []
    for kind, of_kind in heads.groupby(columns, sort=False):
        shuffled = by_chance[(by_chance[columns] == list(kind)).all(axis=1)]
        n, n_by_chance = ((some.function != NONE).sum() for some in (of_kind, shuffled))
        claims.append(
            f"{n} of {len(of_kind)} {' '.join(kind)} heads have a function; with shuffled rows {n_by_chance} would."
        )
    passed = frame[frame.passes & frame.role.isin(", ".join(heads.roles).split(", "))]
    top = passed.sort_values("score", ascending=False).groupby("role", sort=False).head(2)
    caption = (
        "The best one or two heads for each role, with 95 % intervals, the best fixed offset as baseline, and chance; "
        f"measured on {subject.test_text}"
    )
    scores = (
        of_heads(top, ["role", "score", "low", "high", "baseline", "chance", "n"], caption)
        if len(top)
        else paragraph("No head has a role by the lower end of its interval.")
    )
    findings = {"roles": _functions_found(subject, heads, by_chance)} | _best_role(frame, passed)
    return items(claims) + scores + paragraph(f"Measured on {subject.test_text}. {LEGEND}", note=True), findings


def _functions_found(subject: Subject, heads: pd.DataFrame, by_chance: pd.DataFrame) -> Finding:
    """Say how many heads have a function."""
    with_one = heads[heads.function != NONE]
    n_control = int((by_chance.function != NONE).sum())
    counts = with_one.function.value_counts(sort=True).items()
    kinds = ", ".join(f"{_FUNCTIONS.get(name, name)} {n}" for name, n in counts)
    headline = (
        f"{len(with_one)} of {len(heads)} heads have a function."
        if len(with_one) > n_control
        else f"No more heads have a function than by chance: {len(with_one)} of {len(heads)}."
    )
    kinds = f"By function: {kinds}. " if kinds else ""
    detail = f"{kinds}With the rows of the maps shuffled, {n_control} would. Measured on {subject.test_text}."
    return Finding(headline, detail, "roles")


def _best_role(frame: pd.DataFrame, passed: pd.DataFrame) -> dict[str, Finding]:
    """Name the head that is furthest above its baseline."""
    candidates = passed if len(passed) else frame[frame.baseline.notna() & (frame.n >= MIN_QUERIES)]
    functions = {role: function(role) for role in candidates.role.unique()}
    named = candidates.role.isin([*filter(functions.get, functions)])
    candidates = candidates[candidates.low.notna() & candidates.baseline.notna() & named]
    # What many heads do anyhow, resting on a mark or on themselves, comes last.
    telling = candidates[~candidates.role.isin([r for r, name in functions.items() if name in ("mark", "self")])]
    candidates = telling if len(telling) else candidates
    if not len(candidates):
        return {}
    row = candidates.loc[[(candidates.low - candidates.baseline).idxmax()]].to_dict("records")[0]
    headline = "The clearest role: {} has “{}”." if len(passed) else "No head has a role. The nearest is {} with “{}”."
    detail = (
        f"Score {number(row['score'])} ({interval(row['low'], row['high'])}) on {row['n']} queries; the baseline "
        f"({row['baseline_rule']}) has {number(row['baseline'])}, chance {number(row['chance'])}."
    )
    return {"best role": Finding(headline.format(name_of(row), row["role"]), detail, "roles")}


def importance(subject: Subject, results: Results) -> Shown:
    """Importance by gradient with intervals, absolute and with its sign."""
    frame, scores, rises = results["importance"].values()
    chosen = results["selection"].top(min(N_TABLE, len(scores)))
    row_of = {head: row for row, head in enumerate(scores)}
    top = frame.iloc[[row_of[head] for head in chosen]]
    if subject.by_output:
        quantity = "change of the model's output without the head, relative to the output's norm, to first order"
    else:
        quantity = "mean absolute gradient of the loss with respect to the head's gate"
    few = scores.notes.get("interval")  # where few examples carry scores
    intervals = NO_INTERVAL if scores.low is None else ", ".join(filter(None, ["with 95 % intervals", few]))
    caption = (
        f"The heads that one half chose, measured on {subject.test_text} of the other: {quantity}; "
        f"{subject.measure_text}, {intervals}"
    )
    note = ""
    if rises is not None:
        note = (
            "The absolute value says how much the loss of an example depends on a head; the sign, whether all examples "
            "together are better off with it: the rise of the loss without the head, to first order."
        )
        caption += (
            ". “Rise without”: how much the loss would rise without the head, to first order; below 0 it would fall"
        )
    columns = [name for name in frame if name not in head_columns(frame)]
    html = every_head("importance") + of_heads(top, columns, caption) + paragraph(note, note=True)
    return html, {"importance": _most_important(subject, results), "spread": _spread(scores, rises)}


def _most_important(subject: Subject, results: Results) -> Finding:
    """Name the head that the other half chose, where it is clearly above the median head."""
    scores, best = results["importance"]["scores"], results["selection"].top(1)[0]
    median, value = float(scores.flat().median()), scores[best]
    low, high = (math.nan if ends is None else float(ends[best[:-1]][best[-1]]) for ends in (scores.low, scores.high))
    clear = median > 0 and (value if math.isnan(low) else low) > 2 * median
    times = f"{value / median:.0f} times" if clear else ""
    return Finding(
        f"By the gradient {head_name(best)} matters most, {times} the median head."
        if clear
        else "By the gradient no head stands out.",
        f"The head with the highest gradient on the other half, {head_name(best)}, has importance {number(value)} "
        f"({interval(low, high)}), the median head's is {number(median)}.",
        "importance",
    )


def cost(subject: Subject, results: Results) -> Shown:
    """What heads cost when they are switched off, and when something else takes the place of their output."""
    frame, first, replaced, total, on = (results["cost"][name] for name in ("table", "first", "replaced", "of", "on"))
    measured_on = counted(on, subject.unit)
    frame = frame.sort_values("cost", ascending=False, kind="stable")
    which = "all heads" if len(frame) == total else f"the {len(frame)} heads of highest gradient, chosen on one half"
    unit = subject.metric.removesuffix(" (nats)")
    caption = f"How much the {unit} rises without a head, on {measured_on}: the highest of {which}"
    html = every_head("cost") + of_heads(frame.head(N_TABLE), ["cost", "low", "high"], caption)
    if replaced:
        one = next(iter(replaced.values()))
        names = head_columns(one)
        wide = one[names].merge(frame[[*names, "cost"]].rename(columns={"cost": "by zero"}), on=names)
        for name, other in replaced.items():
            wide[f"by {name}"] = other.cost.to_numpy()
        caption = (
            "The heads that cost most on the other half, when their output is replaced by zero, by its mean, by that "
            "of a token drawn at random (resample) or by attention spread evenly (uniform)"
        )
        html += of_heads(wide, [name for name in wide if name not in names], caption)
    return html, {"cost": _costs_most(subject, results, frame, first, measured_on)}


def _costs_most(subject: Subject, results: Results, frame: pd.DataFrame, first: tuple, measured_on: str) -> Finding:
    """Say what the head costs that the other half found to cost most, where that is clearly more than the others."""
    row = frame[(frame[head_columns(frame)] == list(first)).all(axis=1)].iloc[0]
    middle, unit = float(frame.cost.median()), subject.metric.removesuffix(" (nats)")
    least = row.cost if math.isnan(row.low) else row.low
    curve = results["pruning"]["table"] if "pruning" in results else None
    whole = None if curve is None else float(curve[curve.kept == curve.kept.max()].metric.iloc[0])
    rise = f"by {number(row.cost)}" if whole is None else f"from {number(whole)} to {number(whole + row.cost)}"
    clear = least > max(0.0, 2 * middle)
    return Finding(
        f"{_begin(first)} costs most: without it the {unit} rises {rise}."
        if clear
        else f"No head stands out: switched off alone, none clearly raises the {unit}.",
        f"Rise {number(row.cost)} ({interval(row.low, row.high)}) on {measured_on}; the median of "
        f"{counted(len(frame), 'head')} is {number(middle)}. {_begin(first)} was chosen on the other half.",
        "cost",
    )


def _spread(scores: HeadScores, rises: HeadScores | None) -> Finding:
    """Say how unequal importance is, and without how many heads the loss would fall."""
    flat = scores.flat()
    n_top = max(1, round(len(flat) / 10))
    share = float(flat.sort(descending=True).values[:n_top].sum() / flat.sum()) if float(flat.sum()) > 0 else 0.0
    detail = f"Were all heads equal, it would be {percent(n_top / len(flat))}."
    if rises is not None and rises.high is not None:
        n_below = int((torch.cat([*rises.high.values()]) < 0).sum())
        detail += (
            f" Without {n_below} of {len(flat)} heads, each alone, the loss would fall (interval below 0, to first "
            "order)."
        )
    first = "The first" if n_top == 1 else f"The first {n_top}"
    headline = f"{first} of {len(flat)} heads carr{'ies' if n_top == 1 else 'y'} {percent(share)} of all importance."
    return Finding(headline, detail, "importance")


def geometry(subject: Subject, results: Results) -> Shown:
    """The effective rank of W_OV and the overlap of what heads write, compared with random heads."""
    frame, _, left_out = results["geometry"].values()
    rows = list(frame.itertuples(index=False, name=None))
    kind, rank, chance, shared, expected = max(rows, key=lambda row: abs(row[1] / row[2] - 1) if row[2] else 0.0)
    differs = chance > 0 and abs(rank / chance - 1) > 0.05
    finding = Finding(
        f"The {kind} heads use {rank:.1f} directions each, random ones {chance:.1f}."
        if differs
        else f"What the heads move looks random: {rank:.1f} directions each, random ones {chance:.1f}.",
        f"Two {kind} heads write to subspaces that overlap by {number(shared)}; by chance {number(expected)}. This is "
        "of the weights alone, so it has no interval.",
        "geometry",
    )
    html = (
        every_head("rank of W_OV")
        + table(frame, "What the heads move, on average, and what random factors of the same shape would")
        + Markup().join(paragraph(f"Left out: {reason}", note=True) for reason in left_out)
    )
    return html, {"geometry": finding}


def pruning(subject: Subject, results: Results) -> Shown:
    """The pruning curve, least important heads first, compared with random orders."""
    frame = results["pruning"]["table"]
    name, _ = ranking(results)
    ranked = frame[frame.order == name].set_index("kept")
    random = frame[frame.order != name].groupby("kept").metric.mean()
    by = "that cost least when switched off alone" if name == "cost" else "of least importance by the gradient"
    note = (
        f"Heads are switched off, first those {by}, on the other half. Nothing is trained in between, so with further "
        "training more heads could be removed."
    )
    numbers = table(frame[["order", "kept", "metric", "low", "high"]], f"The {subject.metric} by the number of heads")
    html = curve(f"Measured on {subject.test_text}: {subject.measure_text}. {note}", numbers)
    return html, {"pruning": _heads_needed(subject, ranked, random)}


def _heads_needed(subject: Subject, ranked: pd.DataFrame, random: pd.Series) -> Finding:
    """Say how many heads can go for little, from which loss to which, and whether the order matters."""
    total = int(ranked.index.max())
    half = min(random.index if len(random) else ranked.index, key=lambda n_kept: abs(n_kept - total / 2))
    with_all, with_half, with_none = (float(ranked.metric[n_kept]) for n_kept in (total, half, 0))
    low, high = float(ranked.low[half]), float(ranked.high[half])
    unit = subject.metric.removesuffix(" (nats)")
    # The longest piece of the curve, from all heads on, on which a twentieth of their worth is not lost.
    bar = with_all + FREE * max(0.0, with_none - with_all)
    left = min(n for n in ranked.index if all(ranked.metric[k] <= bar for k in ranked.index if k >= n))
    step = sorted(ranked.index)[-2]  # the least that a curve takes away
    detail = f"With {half} heads it is {number(with_half)} ({interval(low, high)}), with none {number(with_none)}"
    if not math.isnan(least := float(ranked.get("draws_low", {}).get(half, math.nan))):
        detail += f"; ranked on other draws of the same examples, {number(least)} to {number(ranked.draws_high[half])}"
    detail += f"; when heads go in random order, {number(float(random[half]))} with {half}." if len(random) else "."
    if with_none <= (with_all * 1.05 if math.isnan(ranked.high[total]) else float(ranked.high[total])):
        headline = f"Here the model does not need its heads: its {unit} is {number(with_none)} without any."
    elif left < total:
        headline = (
            f"{total - left} of {total} heads can go, least important first: the {unit} rises from {number(with_all)} "
            f"to {number(float(ranked.metric[left]))}{_times(with_all, float(ranked.metric[left]))}."
        )
        detail = f"Up to there, less than a twentieth of what all heads are worth is lost. {detail}"
    else:
        headline = (
            f"Even the {total - step} least important heads count: without them the {unit} rises from "
            f"{number(with_all)} to {number(float(ranked.metric[step]))}."
        )
    if len(random) and not math.isnan(low) and with_none > bar and not high < float(random[half]):
        detail += f" With {half} the order is no better than a random one."
    return Finding(headline, detail, "pruning")


def _times(before: float, after: float) -> str:
    """Write by what factor a small loss has grown, which is large even where the rise is small."""
    return f", {after / before:.1f} times as high" if after > 1.5 * before > 0 else ""


def _begin(head: tuple) -> str:
    """Write a head's name at the beginning of a sentence."""
    name = head_name(head)
    return name[0].upper() + name[1:]


def chance(subject: Subject, results: Results) -> dict[str, Finding]:
    """Say so where the model does no better than guessing, so that what its heads are worth means nothing."""
    of_model, guessing, low, high = results["chance"].values()
    if (guessing - of_model if math.isnan(low) else low) > 0:
        return {}
    return {
        "chance": Finding(
            "This model does no better than guessing, so no head of it can matter.",
            f"Its loss is {number(of_model)}; guessing by how often each label occurs in the other half gives "
            f"{number(guessing)}, so the model is better by {number(guessing - of_model)} ({interval(low, high)}). "
            "What follows about importance, cost and pruning describes noise.",
            "conventions",
        )
    }


def sinks(subject: Subject, results: Results) -> Shown:
    """How much weight heads rest on the first token."""
    frame, started = results["sinks"].values()
    mean, chance = float(frame.score.mean()), float(frame.chance.iloc[0])
    n_above = int((frame.score > SINK_FROM).sum())
    top = frame.sort_values("score", ascending=False, kind="stable").head(N_TABLE)
    best = top.to_dict("records")[0]
    finding = Finding(
        f"Heads rest on the first token: it gets {percent(mean)} of their weight on average."
        if mean > 2 * chance
        else f"No sink on the whole: the first token gets {percent(mean)} of the heads' weight.",
        f"Weight spread evenly over the tokens so far would give it {percent(chance)}. {n_above} of {len(frame)} heads "
        f"give it more than half; most, {name_of(best)}: {number(best['score'])} "
        f"({interval(best['low'], best['high'])}).",
        "sinks",
    )
    texts = "texts that begin with the start token" if started else "texts as they are, without a start token"
    columns = ["score", "low", "high"]
    if "with start token" in frame:
        with_start = number(float(frame["with start token"].mean()))
        texts += f"; with a start token before each, the first gets {with_start} on average instead of {number(mean)}"
        columns.append("with start token")
    caption = (
        "Heads with most weight on the first token, with 95 % intervals over texts; chance is weight spread evenly"
    )
    claim = paragraph(f"Measured on {subject.test_text}, {texts}.")
    html = claim + every_head("first token") + of_heads(top, [*columns, "chance"], caption)
    return html, {"sinks": finding}


def induction(_: Subject, results: Results) -> Shown:
    """The scores of heads that look back, with the first token and without it."""
    frame, length = results["induction"].values()
    columns = head_columns(frame)
    by_role = {
        role: rows.sort_values("score", ascending=False, kind="stable")
        for role, rows in frame.groupby("role", sort=False)
    }
    first = {role: rows.to_dict("records")[0] for role, rows in by_role.items()}
    best, previous, n = first[INDUCTION], first["previous-token"], len(by_role[INDUCTION])
    held = by_role[INDUCTION][by_role[INDUCTION].low >= INDUCTION_FROM]
    held = held.merge(by_role[COPYING][[*columns, "low", "chance"]], on=columns, suffixes=("", " of copying"))
    n_copy = int((held["low of copying"] > held["chance of copying"]).sum())
    copy = f"Also copying: {n_copy} of {len(held)}." if len(held) else ""
    finding = Finding(
        f"Induction: {len(held)} of {n} heads look for what followed an earlier copy."
        if len(held)
        else f"No induction head: none of {n} has a score of {INDUCTION_FROM} or more.",
        f"The highest is {name_of(best)}: {number(best['score'])} ({interval(best['low'], best['high'])}), spread "
        f"evenly {number(best['chance'])}. {copy} Previous token: {name_of(previous)}, "
        f"{number(previous['score'])} against {number(previous['chance'])}.",
        "induction",
    )
    top = pd.concat([rows.head(3) for rows in by_role.values()])
    top = top.rename(columns={"without_sink": "first token left out"})
    caption = (
        f"The three highest heads for each score, on {N_SEQUENCES} sequences of {length} random tokens that repeat, "
        "with 95 % intervals; chance is weight spread evenly, for copying equal logits"
    )
    note = (
        f"{INDUCTION}: weight on the token after the earlier copy, the segment twice. {PREFIX}: the same summed over "
        f"all earlier copies, the segment {REPEATS} times. {COPYING}: how far the head raises the token it attends to, "
        "from -1 to 1."
    )
    shown = of_heads(top, ["role", "score", "low", "high", "first token left out", "chance"], caption)
    html = every_head("induction") + shown + paragraph(note, note=True)
    return html, {"induction": finding}


def warning_of(frame: pd.DataFrame) -> str | None:
    """Return a sentence where a cut costs clearly more on a later corpus than on the first, on which it was chosen.

    >>> from headtools.sparse.cut_cost import COLUMNS
    >>> rows = [("english", 5.5, 5.5, 0.0, -0.1, 0.1, 9), ("repeated tokens", 1.0, 9.4, 8.4, 8.0, 8.8, 9)]
    >>> warning_of(pd.DataFrame(rows, columns=list(COLUMNS)))
    'the ranking holds for english: on repeated tokens the same cut costs +8.40 [+8.00, +8.80], not +0.00'
    """
    first = frame.iloc[0]
    for row in frame.iloc[1:].itertuples():
        if row.low > max(first.high, 0.0):
            return (
                f"the ranking holds for {first.corpus}: on {row.corpus} the same cut costs {row.rise:+.2f} "
                f"[{row.low:+.2f}, {row.high:+.2f}], not {first.rise:+.2f}"
            )
    return None


def check(_: Subject, results: Results) -> Shown:
    """What the least important heads are worth on the corpus of the ranking and on a second one."""
    frame, n_off, total = results["check"].values()
    here, worst = frame.iloc[0], frame.iloc[1:].sort_values("rise").iloc[-1]
    warned = warning_of(frame)
    rise_here, rise_there = (f"{_plus(row.rise)} ({interval(row.low, row.high, _plus)})" for row in (here, worst))
    finding = Finding(
        f"The ranking holds for its own corpus only: elsewhere the same cut costs {_plus(worst.rise)}."
        if warned
        else "On a second corpus the least important heads cost no more.",
        f"Without these {n_off} heads the loss rises by {rise_there} on {worst.corpus}, and by {rise_here} on the "
        "corpus of the ranking.",
        "check",
    )
    text = (
        f"Careful: {warned}. Heads that look back can be kept: prune(..., spare=...)."
        if warned
        else "On no other corpus do the same heads clearly cost more. That holds for these corpora."
    )
    caption = (
        f"The loss with all heads and without the {n_off} of {total} that are least important by gradient, and the "
        "rise with its 95 % paired interval"
    )
    html = table(frame.rename(columns={"without": f"without {n_off} heads"}), caption) + paragraph(text)
    return html, {"check": finding}


def cache(subject: Subject, results: Results) -> Shown:
    """What the key-value cache holds for each head and layer, and what sharing saves."""
    frame, n_resting, saved, bits = results["cache"].values()
    total = int(frame["bytes a token"].sum())
    unshared = int((frame["bytes a token"] / frame["key-value heads"] * frame["query heads"]).sum())
    limit = getattr(getattr(subject.model, "config", None), "max_position_embeddings", None)
    lengths = [1024, *([limit] if isinstance(limit, int) and limit > 1024 else [])]
    sizes = "; ".join(f"{n:,} tokens take {total * n / 1e6:,.1f} MB" for n in lengths)
    shared = "" if total == unshared else f" Were they not shared, it would be {unshared / total:.3g} times that."
    text = f"A text costs {total:,} bytes a token for the keys and values of all layers: {sizes}.{shared}"
    shown, distinct = frame, frame.drop(columns="layer").drop_duplicates()
    if len(distinct) == 1:  # all layers are alike: one row for all
        shown = distinct.assign(layers=len(frame))[["layers", *distinct.columns]]
    html = table(shown, f"The key-value cache at {bits} bits a number") + paragraph(text)
    if n_resting:
        html += paragraph(
            f"Heads that give the first token more than half of their weight: {n_resting}. If they kept only 4 first "
            f"and 64 recent tokens, a text of {CACHED:,} tokens would need {percent(saved)} less; a cache shrinks only "
            "where all query heads of a key-value head do so. window(model, heads) shows whether the model can do "
            "without the rest.",
            note=True,
        )
    return html, {}


def _left_out(results: Results) -> str:
    return results.get("attention", {}).get("left out", "")


def conventions(subject: Subject, results: Results) -> Shown:
    """What was counted, and how."""
    import transformers

    lines = [
        "A head's output is what the output projection reads; a head that is off has this output at 0, and the "
        "projection's bias stays.",
        "Roles: at the level of words; special tokens are neither keys nor queries in argmax scores; "
        f"the lower end of the 95 % interval must be {MARGIN:.2f} above the best fixed offset for a relation, "
        f"0.9 for a position, on {MIN_QUERIES} queries or more. Verdicts are not corrected for multiple testing: "
        "compare their number with that of shuffled maps.",
        f"Measured on {subject.corpus_text}. Geometry is of the weights.",
        "Maps: of a long text, its first 48 tokens. A map shows what a head attends to, its cost what it is worth.",
        *([f"Not measured within a text: {reason}."] if (reason := _left_out(results)) else []),
        BY_OUTPUT if subject.by_output else f"{BY_LOSS} Loss: {subject.measure_text}.",
        "Effective rank: exp of the entropy of the singular values (Roy and Vetterli 2007).",
        f"Intervals: 95 %, bootstrap over examples. Seed {subject.seed}.",
        f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}.",
    ]
    return items(lines), {}


def _plus(value: float) -> str:
    """Write a difference with its sign, and 0.00 without one.

    >>> _plus(0.251), _plus(-0.001)
    ('+0.25', '0.00')
    """
    return f"{value:+.2f}" if abs(value) >= 0.005 else "0.00"
