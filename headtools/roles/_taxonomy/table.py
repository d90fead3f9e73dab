"""From sums to a table: scores, intervals and verdicts of all heads of one kind of attention."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from headtools.heads.bootstrap import MANY_EXAMPLES, interval_around, percentiles
from headtools.heads.sites import Site, SiteKey
from headtools.roles._taxonomy.families import OFFSET_BASED, bar, family, span
from headtools.roles._taxonomy.running_sums import Tally
from headtools.roles._taxonomy.targets import Antecedent
from headtools.roles.baselines import Usual
from headtools.roles.conventions import Conventions

COLUMNS = ("stack", "kind", "layer", "head", "family", "role", "score", "baseline", "chance", "against", "low", "high",
           "gap_low", "gap_high", "n", "holds")  # fmt: skip
Columns = dict[str, np.ndarray]


def table(
    layers: Sequence[tuple[Site, int]], tally: Tally, counts: Tally, sentences: Tensor, roles: Sequence[str],
    usual: Sequence[Mapping[str, Usual]], conventions: Conventions, level: float, antecedent: Antecedent,
) -> dict[SiteKey, Columns]:  # fmt: skip
    """Make the rows of each layer, as columns.

    ``layers`` are sites with how often each ran. ``tally`` has (R, head) sums of scores, the heads of all layers side
    by side, ``counts`` (3, R) sums of n, baseline and chance, ``sentences`` (R,) how many have a query of the role.
    """
    n, base, chance = counts.total
    values, holds = _values(tally, counts, sentences, roles, conventions, level)
    values |= {"baseline": (base / n)[:, None], "chance": (chance / n)[:, None]}
    asked = [i for i in range(len(roles)) if n[i]]
    names = [roles[i] for i in asked]
    kind = layers[0][0].kind
    rules = [_against(role, [part.get(kind, {}) for part in usual], antecedent) for role in names]
    told = {"family": [family(role) for role in names], "role": names, "against": rules}
    out, start = {}, 0
    for site, runs in layers:
        mine, start = slice(start, start + site.heads), start + site.heads
        of = {name: some.expand(len(roles), tally.total.shape[1])[asked, mine] for name, some in values.items()}
        of["n"] = (n[asked, None] * runs).long().expand(-1, site.heads)
        of["holds"] = holds[asked, mine] & (of["n"] >= conventions.fewest)
        frame = {name: some.flatten().numpy() for name, some in of.items()}
        frame |= {name: np.repeat(np.array(some, dtype=object), site.heads) for name, some in told.items()}
        frame["head"] = np.tile(np.arange(site.heads), len(asked))
        frame |= {name: np.full(len(frame["head"]), getattr(site, name)) for name in ("stack", "kind", "layer")}
        out[site.key] = frame
    return out


def _values(
    tally: Tally, counts: Tally, sentences: Tensor, roles: Sequence[str], conventions: Conventions, level: float
) -> tuple[dict[str, Tensor], Tensor]:
    """Scores and intervals of all roles and heads, (R, head), and whether the lower end reaches the role's bar."""
    n, base, chance = counts.total
    # Replicas come last from here on: (role, head, times), and (3, role, times) for the counts.
    sums, (n_drawn, base_drawn, chance_drawn) = tally.replicas.movedim(0, -1), counts.replicas.movedim(0, -1)
    drawn = sums / n_drawn[:, None]  # no number where nothing was drawn
    score = tally.total / n[:, None]
    least, most = torch.tensor([span(role) for role in roles])[..., None].unbind(1)
    low, high = (end.clamp(least, most) for end in _interval(score, drawn, sentences, level))
    gap, drawn_gap = score - (base / n)[:, None], drawn - (base_drawn / n_drawn)[:, None]
    gap_low, gap_high = _interval(gap, drawn_gap, sentences, level)
    bars = [bar(role, conventions) for role in roles]
    scale, above = (torch.tensor([getattr(b, part) for b in bars])[:, None] for part in ("scale", "above"))
    reached = torch.where(scale == 0, low, gap_low)
    other = ((scale[:, 0] != 0) & ((scale[:, 0] != 1) | (base < chance))).nonzero().flatten()
    if len(other):  # those whose bar is not one of the two intervals above
        # The rule to beat is the better one of the baseline and chance.
        rival = torch.where((base >= chance)[:, None], base_drawn, chance_drawn) / n_drawn
        ahead = score - scale * (torch.maximum(base, chance) / n)[:, None]
        drawn_ahead = drawn[other] - (scale * rival)[other, None]
        reached[other] = _interval(ahead[other], drawn_ahead, sentences[other], level)[0]
    values = {"score": score, "low": low, "high": high, "gap_low": gap_low, "gap_high": gap_high}
    return values, reached >= above - 1e-6


def _interval(score: Tensor, drawn: Tensor, sentences: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Ends of the interval of each score (R, head) by its replicas (R, head, times), of so many ``sentences`` (R,)."""
    low, high = percentiles(drawn, level)
    few = (sentences < MANY_EXAMPLES).nonzero().flatten()
    if len(few):
        examples = sentences[few, None].expand(-1, score.shape[1])
        low[few], high[few] = (end.to(low.dtype) for end in interval_around(score[few], drawn[few], examples, level))
    return low, high


def _against(role: str, usual: Sequence[Usual], antecedent: Antecedent) -> str:
    """The rule behind a baseline, in words."""
    if role == "coreference":
        return getattr(antecedent, "__name__", "rule").replace("_", " ")
    if family(role) in OFFSET_BASED:
        offsets = dict.fromkeys(f"{part[role]:+d}" for part in usual if role in part)
        return f"offset {' / '.join(offsets)}" if offsets else "chance"
    return {"positional": "random look", "content": "none", "map": "one in five"}.get(family(role), "even spread")
