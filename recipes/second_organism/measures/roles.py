"""What encoder heads look at, beside baselines, and how many roles an untrained twin seems to have.

Two rules. The first organism's: nine looks in ten at an offset, six in ten at the name, or ten points more than the
baseline, in validation and in test sentences. The stricter one, after which heads are counted here: besides, at least
half of the looks hit, and the lower end of the interval is above the baseline even when all pairs of a head and a role
are allowed for (Bonferroni).
"""

from collections import Counter, defaultdict

import pandas as pd
import torch
from torch import nn
from transformers import MarianMTModel

from headtools.organism.roles_found import best, eos_weight, normalised_entropy, observe, roles, wilson
from headtools.organism.second.language import corpus
from recipes.scorecard import NAMES
from recipes.second_organism._training_model import TrainingModel
from recipes.second_organism.measures._words import table

SENTENCES = 1_000
TWINS = 3  # untrained models, drawn from other seeds
HALF, MOST = 0.5, 0.9
TITLES = NAMES | {
    "nmod up": "noun after of, with → its noun (nmod)",
    "nmod down": "noun → noun after of, with (nmod)",
    "obl up": "noun of a place → verb (obl)",
    "obl down": "verb → noun of a place (obl)",
    "advmod:emph up": "very → adjective (advmod:emph)",
    "conj up": "second verb → first verb (conj)",
    "advcl up": "verb of a because-clause → main verb (advcl)",
}


def strict(frame: pd.DataFrame) -> pd.Series:
    """Whether each head has each role by the stricter rule."""
    low, _ = wilson(frame.score, frame.n, 1 - 0.05 / len(frame))
    return frame.passes & (frame.score >= HALF) & (low > frame.baseline.fillna(0.0))


def family(role: str) -> str:
    """The family that a role belongs to.

    >>> [family(role) for role in ("offset -1", "obj down", "coreference", "topic")]
    ['position', 'relation', 'coreference', 'name']
    """
    if role.startswith("offset"):
        return "position"
    return {"coreference": "coreference", "name": "name", "topic": "name"}.get(role, "relation")


def counted(frame: pd.DataFrame, passes: pd.Series) -> dict:
    """How many pairs of a head and a role hold, by family, and how many heads have one."""
    having = frame[passes]
    return {"heads": int(having["head"].nunique()), "pairs": dict(Counter(map(family, having.role)))}


def untrained(seed: int) -> MarianMTModel:
    """A model as it is before the first step."""
    torch.manual_seed(seed)
    return TrainingModel().export().eval()


def held_roles(model: nn.Module, tokenizer: object, n: int) -> dict[str, list[str]]:
    """The roles of each head by the stricter rule on ``n`` sentences of both splits: {"5.1": ["obj up"]}."""
    frame = roles(model, tokenizer, corpus("validation", n), corpus("test", n))
    return {head: sorted(rows.role) for head, rows in frame[strict(frame)].groupby("head")}


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """The best head of every role, the roles of each head, heads that rest, and the false roles of untrained twins."""
    n = min(SENTENCES, limit or SENTENCES)
    splits = corpus("validation", n), corpus("test", n)
    frame = roles(model, tokenizer, *splits)
    passes = strict(frame)
    heads = defaultdict(list)
    for head, role in frame[passes][["head", "role"]].itertuples(index=False):
        heads[head].append(role)
    rows = []
    for role, row in best(frame.assign(passes=passes)).iterrows():
        values = {
            key: None if pd.isna(row[key]) else round(float(row[key]), 4)
            for key in ("score", "low", "high", "baseline")
        }
        rows.append({"role": role, "head": row["head"], "n": int(row.n), **values, "passes": bool(row.passes)})
    twins = []
    for seed in range(1, TWINS + 1):
        other = roles(untrained(1_000 + seed), tokenizer, *splits)
        twins.append({"first rule": counted(other, other.passes), "stricter rule": counted(other, strict(other))})
    rest = {
        name: observe(model, tokenizer, splits[1], how).mean(-1)
        for name, how in (("end", eos_weight), ("even", normalised_entropy))
    }
    return {
        "sentences": n,
        "looked at": len(frame),
        "best": rows,
        "heads": {h: sorted(heads[h]) for h in sorted(heads)},
        "first rule": counted(frame, frame.passes),
        "stricter rule": counted(frame, passes),
        "untrained": twins,
        "rest": {name: [f"{i}.{j}" for i, j in (values >= MOST).nonzero().tolist()] for name, values in rest.items()},
    }


def markdown(results: dict[str, dict]) -> str:
    """The best head of each role by model, which heads have which roles, and what untrained twins show."""
    by_role = {name: {row["role"]: row for row in result["best"]} for name, result in results.items()}
    all_roles = {role for rows in by_role.values() for role in rows}
    order = [*(role for role in TITLES if role in all_roles), *sorted(all_roles - TITLES.keys())]
    first = next(iter(by_role.values()))
    rows = [
        [
            TITLES.get(role, role),
            *(cell_text(rows.get(role)) for rows in by_role.values()),
            first[role]["baseline"] and f"{first[role]['baseline']:.2f}",
            f"{first[role]['n']:,}",
        ]
        for role in order
        if role in first
    ]
    out = [table(["what the head looks at", *results, "baseline", "n"], rows)]
    for name, result in results.items():
        layers = Counter(head.split(".")[0] for head in result["heads"])
        many = max(map(len, result["heads"].values()), default=0)
        out += [
            f"**{name}**: {len(result['heads'])} of 48 encoder heads have a role by the stricter rule "
            f"({result['first rule']['heads']} by the first organism's), by layer "
            f"{', '.join(str(layers[str(i)]) for i in range(6))}; at most {many} roles on one head. "
            f"{len(result['rest']['end'])} heads rest on the EOS token ({MOST:.0%} of their weight or more), "
            f"{len(result['rest']['even'])} spread it evenly.".replace("%", " %"),
            "\n".join(f"- {head}: {', '.join(head_roles)}" for head, head_roles in result["heads"].items()),
        ]
        pairs = {
            rule: [sum(twin[rule]["pairs"].values()) for twin in result["untrained"]]
            for rule in ("first rule", "stricter rule")
        }
        families = Counter()
        for twin in result["untrained"]:
            families.update(twin["stricter rule"]["pairs"])
        false = ", ".join(f"{kind} {n}" for kind, n in families.items()) or "none"
        out += [
            f"False roles, in {len(result['untrained'])} untrained twins ({result['looked at']:,} pairs of a head and "
            f"a role each): {', '.join(map(str, pairs['first rule']))} by the first organism's rule, "
            f"{', '.join(map(str, pairs['stricter rule']))} by the stricter one (by family, over all twins: {false})."
        ]
    return "\n\n".join(out)


def cell_text(row: dict | None) -> str | None:
    """Score, interval and head; a star where the head has the role by the stricter rule."""
    if row is None:
        return None
    return f"{row['score']:.2f} ({row['low']:.2f}–{row['high']:.2f}), {row['head']}{' *' if row['passes'] else ''}"
