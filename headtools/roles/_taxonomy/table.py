"""From sums to a table: scores, intervals and verdicts of all heads of one kind of attention."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headtools.heads.intervals import MANY_EXAMPLES, interval_around, percentiles
from headtools.heads.sites import Site, SiteKey
from headtools.roles._taxonomy.roles import OFFSET_BASED, family, score_range, threshold
from headtools.roles._taxonomy.running_sums import RunningSums
from headtools.roles._taxonomy.targets import Antecedent
from headtools.roles.baselines import BestOffsets
from headtools.roles.conventions import Conventions

COLUMNS = (
    "stack",
    "kind",
    "layer",
    "head",
    "family",
    "role",
    "score",
    "baseline",
    "chance",
    "baseline_rule",
    "low",
    "high",
    "difference_low",
    "difference_high",
    "n",
    "passes",
)
Columns = dict[str, np.ndarray]


def table(
    layers: Sequence[tuple[Site, int]],
    sums: RunningSums,
    counts: RunningSums,
    n_sentences: Tensor,
    roles: Sequence[str],
    best_offsets: Sequence[Mapping[str, BestOffsets]],
    conventions: Conventions,
    level: float,
    antecedent: Antecedent,
) -> dict[SiteKey, Columns]:
    """Make the rows of each layer, as columns.

    ``layers`` are sites with how often each ran. ``sums`` has (R, head) sums of scores, the heads of all layers side
    by side, ``counts`` (3, R) sums of n, baseline and chance, ``n_sentences`` (R,) how many have a query of the role.
    """
    n, baseline, chance = counts.total
    values, passes = _scores(sums, counts, n_sentences, roles, conventions, level)
    values |= {"baseline": (baseline / n)[:, None], "chance": (chance / n)[:, None]}
    with_query = [i for i in range(len(roles)) if n[i]]
    names = [roles[i] for i in with_query]
    kind = layers[0][0].kind
    rules = [_baseline_rule(role, [offsets.get(kind, {}) for offsets in best_offsets], antecedent) for role in names]
    by_role = {"family": [family(role) for role in names], "role": names, "baseline_rule": rules}
    out, start = {}, 0
    for site, n_runs in layers:
        heads, start = slice(start, start + site.heads), start + site.heads
        cells = {
            name: value.expand(len(roles), sums.total.shape[1])[with_query, heads] for name, value in values.items()
        }
        cells["n"] = (n[with_query, None] * n_runs).long().expand(-1, site.heads)
        cells["passes"] = passes[with_query, heads] & (cells["n"] >= conventions.min_queries)
        columns = {name: value.flatten().numpy() for name, value in cells.items()}
        columns |= {name: np.repeat(np.array(value, dtype=object), site.heads) for name, value in by_role.items()}
        columns["head"] = np.tile(np.arange(site.heads), len(with_query))
        n_rows = len(columns["head"])
        columns |= {name: np.full(n_rows, getattr(site, name)) for name in ("stack", "kind", "layer")}
        out[site.key] = columns
    return out


def _scores(
    sums: RunningSums,
    counts: RunningSums,
    n_sentences: Tensor,
    roles: Sequence[str],
    conventions: Conventions,
    level: float,
) -> tuple[dict[str, Tensor], Tensor]:
    """Scores and intervals of all roles and heads, (R, head), and whether the lower end reaches the threshold."""
    n, baseline, chance = counts.total
    # Replicas are last from here on: (role, head, times), and (3, role, times) for the counts.
    resampled_sums = sums.replicas.movedim(0, -1)
    resampled_n, resampled_baseline, resampled_chance = counts.replicas.movedim(0, -1)
    resampled = resampled_sums / resampled_n[:, None]  # NaN where nothing was drawn
    score = sums.total / n[:, None]
    least, greatest = torch.tensor([score_range(role) for role in roles])[..., None].unbind(1)
    ends = _interval(score, resampled, n_sentences, level)
    low, high = (end.clamp(least, greatest) for end in ends)
    # The difference is resampled as a pair: score and baseline of the same sentences.
    difference = score - (baseline / n)[:, None]
    resampled_difference = resampled - (resampled_baseline / resampled_n)[:, None]
    difference_low, difference_high = _interval(difference, resampled_difference, n_sentences, level)
    scale, minimum = torch.tensor([threshold(role, conventions) for role in roles]).T[..., None]
    lower_end = torch.where(scale == 0, low, difference_low)
    margin_roles = ((scale[:, 0] != 0) & ((scale[:, 0] != 1) | (baseline < chance))).nonzero().flatten()
    if len(margin_roles):  # roles whose threshold is on neither of the two intervals above
        # The rule to beat is the better one of the baseline and chance.
        best_rule = torch.where((baseline >= chance)[:, None], resampled_baseline, resampled_chance) / resampled_n
        margin = score - scale * (torch.maximum(baseline, chance) / n)[:, None]
        resampled_margin = resampled[margin_roles] - (scale * best_rule)[margin_roles, None]
        lower_end[margin_roles] = _interval(margin[margin_roles], resampled_margin, n_sentences[margin_roles], level)[0]
    values = {
        "score": score,
        "low": low,
        "high": high,
        "difference_low": difference_low,
        "difference_high": difference_high,
    }
    return values, lower_end >= minimum - 1e-6


def _interval(score: Tensor, resampled: Tensor, n_sentences: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the interval of each score (R, head) by its replicas (R, head, times), of ``n_sentences`` (R,)."""
    low, high = percentiles(resampled, level)
    few = (n_sentences < MANY_EXAMPLES).nonzero().flatten()
    if len(few):  # percentiles are too narrow there
        n_examples = n_sentences[few, None].expand(-1, score.shape[1])
        ends = interval_around(score[few], resampled[few], n_examples, level)
        low[few], high[few] = (end.to(low.dtype) for end in ends)
    return low, high


def _baseline_rule(role: str, best_offsets: Sequence[BestOffsets], antecedent: Antecedent) -> str:
    """The rule behind a baseline, in words."""
    if role == "coreference":
        return getattr(antecedent, "__name__", "rule").replace("_", " ")
    if family(role) in OFFSET_BASED:
        different = dict.fromkeys(f"{offsets[role]:+d}" for offsets in best_offsets if role in offsets)
        return f"offset {' / '.join(different)}" if different else "chance"
    return {"positional": "random key", "content": "none", "map": "one in five"}.get(family(role), "uniform attention")
