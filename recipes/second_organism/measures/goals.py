"""What the second organism was built to show, and how far each model shows it, from the results of all tables."""

import math
from collections.abc import Callable, Iterator, Mapping

from recipes.second_organism.measures._gated import GATE_RATE
from recipes.second_organism.measures._words import table
from recipes.second_organism.measures.coreference import RULES
from recipes.second_organism.measures.cross import APART
from recipes.second_organism.measures.kinds import encoder_first, left
from recipes.second_organism.measures.pairs import confirmed
from recipes.second_organism.measures.pruning import TRANSLATED
from recipes.second_organism.measures.rates import MATTERS
from recipes.second_organism.measures.roles import family
from recipes.second_organism.measures.sweep import ENOUGH, WITHIN, heads_of, repeated

Results = Mapping[str, Mapping[str, dict]]  # of each table, of each model
Verdict = tuple[str, bool]  # what was found, and whether that is enough
RELATIONS = ("nsubj", "obj", "amod", "advmod")


def positions(one: dict) -> Verdict:
    """Heads with an offset."""
    heads = [head for head, roles in one["roles"]["heads"].items() if any(family(r) == "position" for r in roles)]
    return f"{len(heads)} ({', '.join(heads)})", len(heads) >= 2


def relations(one: dict) -> Verdict:
    """Relations that a head has a role for, in one direction at least."""
    held = {role for roles in one["roles"]["heads"].values() for role in roles if family(role) == "relation"}
    missing = [r for r in RELATIONS if not {f"{r} up", f"{r} down"} & held]
    return f"{', '.join(sorted(held))}" + (f"; not {', '.join(missing)}" if missing else ""), not missing


def name_head(one: dict) -> Verdict:
    """The head that looks at the name."""
    row = next(row for row in one["roles"]["best"] if row["role"] == "name")
    return f"{row['head']}: {row['score']:.2f}", row["passes"]


def heads_without_role(one: dict) -> Verdict:
    """Heads without a role."""
    n = 48 - len(one["roles"]["heads"])
    return f"{n} of 48", n >= 24


def layers_with_role(one: dict) -> Verdict:
    """Layers with a role."""
    layers = sorted({head.split(".")[0] for head in one["roles"]["heads"]})
    return ", ".join(layers), len(layers) >= 4


def most_relations(one: dict) -> Verdict:
    """Relations on the head that has most."""
    counts = {h: sum(family(r) == "relation" for r in roles) for h, roles in one["roles"]["heads"].items()}
    head = max(counts, key=counts.get, default=None)
    return f"{counts.get(head, 0)} (head {head})", counts.get(head, 0) <= 4


def translates(one: dict) -> Verdict:
    """BLEU on test sentences."""
    bleu, low, high = one["scores"]["splits"]["test"]["bleu"]
    return f"{bleu:.1f} ({low:.1f}–{high:.1f})", bleu >= 90


def unaligned(one: dict) -> Verdict:
    """Cross heads that do not align."""
    errors = one["cross"]["errors"].values()
    apart = sum(e > APART for e in errors)
    return f"{apart} of {len(errors)}", 3 * apart >= len(errors)


def cross_first(one: dict) -> Verdict:
    """BLEU lost with 70 % of the cross heads off, beside as many encoder heads, and the interval of the difference.

    The interval takes the two scores for independent. They are of the same sentences, so it is rather too wide.
    """
    lost, width = {}, 0.0
    for kind in ("cross", "encoder"):
        all_heads, few_heads = one["pruning"]["kinds"][kind]["bleu"]
        lost[kind], width = all_heads[0] - few_heads[0], math.hypot(width, (few_heads[2] - few_heads[1]) / 2)
    more = lost["cross"] - lost["encoder"]
    both = f"cross {lost['cross']:.1f}, encoder {lost['encoder']:.1f}"
    return f"{both}, difference {more - width:+.1f} to {more + width:+.1f}", more - width > 0


def antecedents(one: dict) -> Verdict:
    """The best head against the best of the four surface rules."""
    rule = max((row for row in one["coreference"]["rules"] if row["name"] in RULES), key=lambda row: row["all"])
    head = one["coreference"]["heads"][0]
    gap = 100 * (head["all"] - rule["all"])
    return f"{head['all']:.3f} (head {head['head']}), {rule['name']} {rule['all']:.3f}: {gap:+.1f}", gap >= 10


def stand_ins(one: dict) -> Verdict:
    """Backup pairs among all encoder heads, confirmed on test sentences."""
    backups = confirmed(one["pairs"]["measured"])
    shown = f"; {backups[0][0]} and {backups[0][1]}: {backups[0][4]:.2f} nats together" if backups else ""
    return f"{len(backups)} of {one['pairs']['pairs']:,}{shown}", bool(backups)


def gates(one: dict) -> Verdict:
    """A penalty tried with several seeds of which all are good enough, or the one that translates best.

    Good enough: few heads, and within two BLEU of the model before. The weights of a run learn, too, so the text also
    says how far its worst seed is behind as many steps at penalty 0.
    """
    groups = repeated(one["sweep"])
    if not groups:
        return "no setting was tried twice", False
    before = one["sweep"]["before"]["bleu"][0]

    def enough(rows: list[dict]) -> bool:
        return all(len(heads_of(row)) <= ENOUGH and row["bleu"][0] >= before - WITHIN for row in rows)

    rows = next(filter(enough, groups), groups[0])
    outcomes = ", ".join(f"{len(heads_of(row))} at {row['bleu'][0]:.1f}" for row in rows)
    text = f"penalty {rows[0]['penalty']:g}, heads and BLEU by random gates: {outcomes}; before {before:.1f}"
    for row in one["sweep"]["runs"]:
        if row["penalty"] == 0 and row["steps"] == rows[0]["steps"]:
            behind = row["bleu"][0] - min(row["bleu"][0] for row in rows)
            text += f"; the worst is {behind:.2f} behind as many steps at penalty 0"
    return text, enough(rows)


def kind_first(one: dict) -> Verdict:
    """Runs over all kinds in which fewest encoder heads are left."""
    verdicts = [(row, encoder_first(row)) for row in one["kinds"]["runs"]]
    judged = [(row, verdict) for row, verdict in verdicts if verdict is not None]
    counts = ", ".join("/".join(str(sum(layers)) for layers in left(row).values()) for row, _ in judged)
    return f"encoder/decoder/cross left {counts}", bool(judged) and all(verdict for _, verdict in judged)


def rate(one: dict) -> Verdict:
    """The gate rate of the other tables closes nothing that matters at penalty 0."""
    row = next(row for row in one["rates"]["runs"] if row["rate"] == GATE_RATE)
    return f"{48 - len(row['kept'])} heads at {GATE_RATE:g}, which cost {row['cost']:.3f}", row["cost"] < MATTERS


GOALS: dict[str, Callable[[dict], Verdict]] = {
    "BLEU 90 on test sentences": translates,
    "two heads with an offset or more": positions,
    f"relations with a head, among them {', '.join(RELATIONS)}": relations,
    "a head for the rarest word, the name": name_head,
    "half of the encoder heads without a role": heads_without_role,
    "roles in four layers or more": layers_with_role,
    "no head with more than four relations": most_relations,
    "a third of the cross heads or more do not align": unaligned,
    f"with {TRANSLATED} of 48 heads left, cross-attention loses more BLEU than the encoder": cross_first,
    "coreference: the best single head ten points above the best surface rule": antecedents,
    "a backup pair in the encoder": stand_ins,
    "Hard Concrete gates: at most 12 of 48 encoder heads within 2 BLEU": gates,
    "gates over all kinds leave fewer encoder heads than heads of another kind": kind_first,
    "at penalty 0 gates close nothing that matters": rate,
}


def cells(results: Results, model: str) -> Iterator[str]:
    """What a model shows of each goal; a dash where it was not measured."""
    one = {name: rows[model] for name, rows in results.items() if model in rows}
    for goal in GOALS.values():
        try:
            text, enough = goal(one)
        except KeyError:
            yield "–"
        else:
            yield f"{'**yes**' if enough else '**no**'}: {text}"


def markdown(results: Results) -> str:
    """One row a goal, one column a model."""
    models = sorted({model for name, rows in results.items() if name != "controls" for model in rows})
    columns = [list(cells(results, model)) for model in models]
    rows = [[goal, *(column[i] for column in columns)] for i, goal in enumerate(GOALS)]
    return table(["goal", *models], rows)
