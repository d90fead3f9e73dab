"""How many encoder heads remain at each penalty, and what do they do? Gates on the encoder, decoder frozen.

The first table is figure 7 of Voita et al. 2019, the second their figure 8, the third what they say of it in section
6.2: the roles of the last heads are not those that the same heads had before.
"""

from collections import Counter
from pathlib import Path

from scipy.stats import hypergeom
from torch import nn

from recipes.second_organism.measures._gated import LONG, STEPS, before, function, one_run
from recipes.second_organism.measures._words import table

PENALTIES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
AGAIN = {0.02: (1, 2), 0.3: (1, 2)}  # penalties that are tried with other seeds, which draw other gates and sentences
FUNCTIONS = ("position", "relation", "coreference", "name", "several", "none")
LONGER = {0.0: (0,)} | dict.fromkeys((0.02, 0.025, 0.035), (0, 1, 2))  # penalties and seeds of runs of LONG
HEADS = 48
FEW = (3, 6)  # heads left in the runs whose heads are listed
WITHIN, ENOUGH = 2.0, 12  # BLEU, heads


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, runs: Path | None = None) -> dict:
    """One run for each penalty, some of them with other seeds, and the model before."""
    plan = [(penalty, seed, False) for penalty in PENALTIES for seed in (0, *AGAIN.get(penalty, ()))]
    plan += [(penalty, seed, True) for penalty, seeds in LONGER.items() for seed in seeds]
    rows = [
        one_run(model, tokenizer, "encoder", penalty, seed=seed, limit=limit, runs=runs, long=long)
        for penalty, seed, long in plan
    ]
    return {"before": before(model, tokenizer, limit), "runs": rows}


def counts(heads: list[str], roles: dict[str, list[str]]) -> list[int]:
    """How many of some heads count as each of FUNCTIONS.

    >>> counts(["0.0", "0.1", "0.2"], {"0.0": ["obj up"], "0.2": ["name", "topic"]})
    [0, 1, 0, 1, 0, 1]
    """
    by_function = Counter(function(roles.get(head, [])) for head in heads)
    return [by_function[name] for name in FUNCTIONS]


def by_chance(heads: list[str], roles: dict[str, list[str]]) -> tuple[int, float, float]:
    """How many of some heads had a role, how many of as many random heads would, and how likely as many or more are.

    >>> had, chance, p = by_chance(["0.0", "0.1"], {"0.0": ["obj up"], "0.1": ["name"], "5.5": ["topic"]})
    >>> had, chance, round(p, 4)
    (2, 0.125, 0.0027)
    """
    had = len(roles.keys() & set(heads))
    return had, len(heads) * len(roles) / HEADS, float(hypergeom.sf(had - 1, HEADS, len(roles), len(heads)))


def repeated(result: dict) -> list[list[dict]]:
    """The runs of each penalty and length with several seeds; first those whose worst seed translates best."""
    groups: dict[tuple, list[dict]] = {}
    for row in result["runs"]:
        groups.setdefault((row["penalty"], row["steps"]), []).append(row)
    several = [rows for rows in groups.values() if len(rows) > 1]
    return sorted(several, key=lambda rows: -min(row["bleu"][0] for row in rows))


def heads_of(row: dict) -> list[str]:
    """The encoder heads that a run keeps, as roles name them."""
    return [name.split()[1] for name in row["kept"] if name.startswith("encoder")]


def markdown(results: dict[str, dict]) -> str:
    """BLEU by penalty, survivors by function, and the roles of the last few heads before and after."""
    curve, functions, drift, gained, lost = [], [], [], [], []
    for name, result in results.items():
        first, bleu = result["before"]["roles"], result["before"]["bleu"]
        curve.append([name, "before", HEADS, None, "{:.1f} ({:.1f}–{:.1f})".format(*bleu), None])
        for row in result["runs"]:
            longer = f", {row['steps']:,} steps" if row["steps"] != STEPS else ""
            penalty = f"{row['penalty']:g}{longer}" + (f", gates {row['seed'] + 1}" if row["seed"] else "")
            heads = heads_of(row)
            curve.append(
                [
                    name,
                    penalty,
                    len(heads),
                    row["undecided"],
                    "{:.1f} ({:.1f}–{:.1f})".format(*row["bleu"]),
                    f"{row['cost']:.3f}",
                ]
            )
            had, chance, p = by_chance(heads, first)
            then, now = counts(heads, first), counts(heads, row["roles"])
            functions.append(
                [
                    name,
                    penalty,
                    len(heads),
                    *(f"{a} → {b}" for a, b in zip(then, now, strict=True)),
                    f"{had} ({chance:.1f}, p {p:.2g})",
                ]
            )
            if FEW[0] <= len(heads) <= FEW[1]:
                gained += [
                    f"{head}: {role}"
                    for head in heads
                    for role in sorted(set(row["roles"].get(head, [])) - set(first.get(head, [])))
                ]
                lost += [
                    f"{head}: {role}"
                    for head in heads
                    for role in sorted(set(first.get(head, [])) - set(row["roles"].get(head, [])))
                ]
                drift += [
                    [
                        name,
                        penalty,
                        head,
                        ", ".join(first.get(head, ["none"])),
                        ", ".join(row["roles"].get(head, ["none"])),
                    ]
                    for head in heads
                ]
    header = ["model", "penalty", "heads left", "undecided", "BLEU", "what the others cost untrained"]
    out = [
        table(header, curve),
        f"*gates 2* and *gates 3*: the same with other random gates and sentences. Runs of {LONG['steps']:,} steps "
        f"take {LONG['tokens']:,} tokens a step and change the weights at a rate of {LONG['weight_rate']:g}.",
        "The heads that are left, by what they did in the model before → what they do now (roles by the stricter rule; "
        "*several*: roles of more than one of these kinds):",
        table(["model", "penalty", "heads left", *FUNCTIONS, "had a role (by chance)"], functions),
        f"The runs that leave {FEW[0]} to {FEW[1]} heads, head by head:",
        table(["model", "penalty", "head", "roles before", "roles now"], drift) if drift else "There is none.",
        f"Roles that these heads gained: {'; '.join(gained) or 'none'}. Roles that they lost: "
        f"{'; '.join(lost) or 'none'}.",
    ]
    return "\n\n".join(out)
