"""From sums to a table: scores, intervals and verdicts of all heads."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

import headtools
from headtools.heads._devices import without_autocast
from headtools.heads.intervals import MIN_EXAMPLES, interval_around
from headtools.heads.sites import Site
from headtools.roles.role import Role

LEVEL = 0.95
MIN_QUERIES = 50  # queries without which no role holds
COLUMNS = [
    *("stack", "kind", "layer", "head", "family", "role", "score", "baseline", "chance", "baseline_rule"),
    *("low", "high", "difference_low", "difference_high", "n", "passes"),
]


@dataclass
class Sums:
    """Sums over a corpus: ``total`` (...) float64, and of each bootstrap replica, (..., times) float32.

    ``n_sentences`` (...): how many sentences add something else than 0.
    """

    total: Tensor
    replicas: Tensor
    n_sentences: Tensor


@without_autocast
def add_up(parts: Iterable[Mapping[str, Tensor]], draws: Sequence[Tensor]) -> dict[str, Sums]:
    """Sum what the sentences of each batch add, (B, ...), over the corpus, by name; of runs the last batch's remain.

    ``draws`` (B, times) say how often each sentence of a batch is in each replica. Memory is that of one batch.
    """
    sums: dict[str, Sums] = {}
    for part, drawn in zip(parts, draws, strict=True):
        for name, values in part.items():
            if name.endswith("runs"):  # (layer,), no numbers of sentences
                sums[name] = Sums(values, values, values)
                continue
            if name not in sums:
                shape = values.shape[1:]
                sums[name] = Sums(torch.zeros(shape).double(), torch.zeros(*shape, drawn.shape[1]), torch.zeros(shape))
            of_name = sums[name]
            of_name.total += values.double().sum(0)
            of_name.n_sentences += (values != 0).sum(0)
            # in place: the replicas are by far the largest tensor here
            of_name.replicas.view(-1, drawn.shape[1]).addmm_(values.flatten(1).T, drawn)
    return sums


class RoleTable(pd.DataFrame):
    """A table that shows its best heads in a notebook; what is taken from it is a plain ``DataFrame``."""

    def _repr_html_(self) -> str:
        drawing, table = headtools.draw("roles_html", self), super()._repr_html_()
        return f"{drawing}<details><summary>Table</summary>{table}</details>" if drawing else table


def make_table(
    sites: Sequence[Site],
    roles_of: Mapping[str, Sequence[Role]],
    sums: Mapping[str, Sums],
    offsets: Sequence[Mapping[str, Mapping[str, int]]],
) -> pd.DataFrame:
    """Return one row a head and role, layer by layer; ``offsets``: the best offsets by kind, of one or two halves."""
    frames = {}
    for kind, roles in roles_of.items():
        values = _scores(roles, sums[f"{kind} sums"], sums[f"{kind} counts"])  # (R, head) each
        with_query = sums[f"{kind} counts"].total[0].nonzero().flatten().tolist()
        rules = [_baseline_rule(role, [of_half[kind] for of_half in offsets]) for role in roles]
        start, n_runs_of_layers = 0, iter(sums[f"{kind} runs"].total.tolist())
        for site in sites:
            if site.kind != kind:
                continue
            n_runs = next(n_runs_of_layers)
            heads = slice(start, start + site.heads)
            start += site.heads
            columns = {name: of_all[with_query, heads].flatten().numpy() for name, of_all in values.items()}
            frame = pd.DataFrame(columns).assign(stack=site.stack, kind=kind, layer=site.layer)
            frame["head"] = [*range(site.heads)] * len(with_query)
            for name, of_role in (
                ("family", [role.family for role in roles]),
                ("role", [role.name for role in roles]),
                ("baseline_rule", rules),
            ):
                frame[name] = [of_role[r] for r in with_query for _ in range(site.heads)]
            frame["n"] = (frame.n * n_runs).astype(int)
            frame["passes"] &= frame.n >= MIN_QUERIES
            frames[site.key] = frame
    names = [name for name in COLUMNS if name != "stack" or any(site.stack for site in sites)]
    table = RoleTable(pd.concat([frames[site.key] for site in sites], ignore_index=True)[names])
    if table.low.isna().any():
        table.attrs["interval"] = f"none for roles of which fewer than {MIN_EXAMPLES} sentences have a query"
    return table


def _scores(roles: Sequence[Role], sums: Sums, counts: Sums) -> dict[str, Tensor]:
    """Scores and intervals of all roles and heads, (R, head), and whether the lower end reaches the threshold."""
    n, baseline, chance = counts.total  # (R,)
    n_sentences = counts.n_sentences[0]
    score = sums.total / n[:, None]
    n_drawn, *drawn = counts.replicas  # (R, times)
    replicas = sums.replicas / n_drawn[:, None]  # (R, head, times), NaN where nothing was drawn
    least, greatest = torch.tensor([role.range for role in roles])[..., None].unbind(1)
    low, high = _interval(score, replicas, n_sentences)
    low, high = low.clamp(least, greatest), high.clamp(least, greatest)
    # The difference is resampled as a pair: score and baseline of the same sentences.
    difference_low, difference_high = _interval(
        score - (baseline / n)[:, None], replicas - (drawn[0] / n_drawn)[:, None], n_sentences
    )
    scale, minimum = torch.tensor([role.threshold for role in roles]).float().T[..., None]
    lower_end = torch.where(scale == 0, low, difference_low)
    # roles whose threshold is on neither of these two intervals
    margin_roles = ((scale[:, 0] != 0) & ((scale[:, 0] != 1) | (baseline < chance))).nonzero().flatten()
    if len(margin_roles):
        # The rule to beat is the better one of the baseline and chance.
        best_rule = torch.where((baseline >= chance)[:, None], *drawn) / n_drawn
        margin = score - scale * (torch.maximum(baseline, chance) / n)[:, None]
        resampled = replicas[margin_roles] - (scale * best_rule)[margin_roles, None]
        lower_end[margin_roles] = _interval(margin[margin_roles], resampled, n_sentences[margin_roles])[0]
    values = {
        "score": score,
        "baseline": (baseline / n)[:, None],
        "chance": (chance / n)[:, None],
        "low": low,
        "high": high,
        "difference_low": difference_low,
        "difference_high": difference_high,
        "n": n[:, None],
        "passes": lower_end >= minimum - 1e-6,
    }
    return {name: value.expand(score.shape) for name, value in values.items()}


def _interval(score: Tensor, replicas: Tensor, n_sentences: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of the interval of each score (R, head) by its replicas (R, head, times), of ``n_sentences`` (R,)."""
    ends = interval_around(score, replicas, n_sentences[:, None].expand(-1, score.shape[1]), LEVEL)
    return ends[0].to(replicas.dtype), ends[1].to(replicas.dtype)


def _baseline_rule(role: Role, offsets: Sequence[Mapping[str, int]]) -> str:
    """The rule behind a baseline, in words."""
    if callable(role.baseline):
        return getattr(role.baseline, "__name__", "rule").replace("_", " ")
    if role.baseline == "best offset":
        different = dict.fromkeys(f"{of_half[role.name]:+d}" for of_half in offsets if role.name in of_half)
        return f"offset {' / '.join(different)}" if different else "chance"
    return role.baseline
