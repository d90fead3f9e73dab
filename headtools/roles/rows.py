"""From sums to a table: scores, intervals and verdicts of one attention layer."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from headtools.heads.sites import Site
from headtools.roles.baselines import Usual
from headtools.roles.conventions import Conventions
from headtools.roles.families import OFFSET_BASED, bar, family
from headtools.roles.partners import Antecedent
from headtools.roles.tally import Tally, interval


def table(
    site: Site, tally: Tally, counts: Tally, roles: Sequence[str], usual: Sequence[Mapping[str, Usual]],
    conventions: Conventions, level: float, antecedent: Antecedent,
) -> pd.DataFrame:  # fmt: skip
    """Make the rows of one site: ``tally`` (R, head) sums of scores, ``counts`` (3, R) of n, baseline and chance."""
    n, base, chance = counts.total
    n_replicas, base_replicas, chance_replicas = counts.replicas.unbind(1)
    bars = [bar(role, conventions) for role in roles]
    scale, above = (torch.tensor([getattr(b, part) for b in bars])[:, None] for part in ("scale", "above"))
    drawn = tally.replicas / n_replicas[..., None]  # (times, role, head); no number where nothing was drawn
    low, high = interval(drawn, level)
    gap_low, gap_high = interval(drawn - (base_replicas / n_replicas)[..., None], level)
    # The rule to beat is the better one of the baseline and chance.
    rival = torch.where(base >= chance, base_replicas, chance_replicas)
    reached = torch.where(scale == 0, low, gap_low)
    other = ((scale[:, 0] != 0) & ((scale[:, 0] != 1) | (base < chance))).nonzero().flatten()
    if len(other):  # those whose bar is not one of the two intervals above
        ahead = drawn[:, other] - scale[other] * (rival / n_replicas)[:, other, None]
        reached[other] = interval(ahead, level)[0]
    holds = (reached >= above - 1e-6) & (n >= conventions.fewest)[:, None]
    columns = {
        "score": tally.total / n[:, None], "baseline": (base / n)[:, None], "chance": (chance / n)[:, None],
        "low": low, "high": high, "gap_low": gap_low, "gap_high": gap_high, "n": n[:, None].long(), "holds": holds,
    }  # fmt: skip
    asked = [i for i in range(len(roles)) if n[i]]
    names = [roles[i] for i in asked]
    rules = [_against(role, [part.get(site.kind, {}) for part in usual], antecedent) for role in names]
    head = np.tile(np.arange(site.heads), len(asked))
    frame = {"stack": site.stack} if site.stack else {}
    frame |= {"kind": site.kind, "layer": site.layer, "head": head}
    for name, values in (("family", [family(role) for role in names]), ("role", names), ("against", rules)):
        frame[name] = np.repeat(np.array(values, dtype=object), site.heads)
    frame |= {name: value.expand(len(roles), site.heads)[asked].flatten().numpy() for name, value in columns.items()}
    order = ["stack"] * bool(site.stack) + ["kind", "layer", "head", "family", "role", "score", "baseline", "chance",
                                            "against", "low", "high", "gap_low", "gap_high", "n", "holds"]  # fmt: skip
    return pd.DataFrame(frame)[order]


def _against(role: str, usual: Sequence[Usual], antecedent: Antecedent) -> str:
    """The rule behind a baseline, in words."""
    if role == "coreference":
        return getattr(antecedent, "__name__", "rule").replace("_", " ")
    if family(role) in OFFSET_BASED:
        offsets = dict.fromkeys(f"{part[role]:+d}" for part in usual if role in part)
        return f"offset {' / '.join(offsets)}" if offsets else "chance"
    return {"positional": "random look", "content": "none", "map": "one in five"}.get(family(role), "even spread")
