"""Are the roles used? What it costs to switch off the heads of a role, on the piece of a word that the role writes.

A target word is several pieces (``language/translation.py``): what a noun learns from its verb is only the ``k`` of
``s'tikolik'n``. So a word counts as right here if this piece of it is, whatever the rest says. Heads get their roles
from the first test sentences; the cost is measured on others.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.intervals import bounds, linearised_ratio
from headtools.organism.batches import IGNORE
from headtools.organism.second.language import corpus
from headtools.organism.second.vocabulary import vocabulary
from headtools.roles.sentence import Sentence
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import table
from recipes.second_organism.measures.layers import TIMES
from recipes.second_organism.measures.roles import held_roles

SEEN, SENTENCES, SETS = 500, 300, 20
# Roles whose heads are switched off together, what the words must need, and the features that are the piece.
GROUPS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "previous word": (("offset -1",), ("left accent",), ("left",)),
    "next word": (("offset +1",), ("right accent",), ("right",)),
    "its noun": (("det up", "amod up", "case up"), ("noun",), ("gender",)),
    "verb → subject": (("nsubj down",), ("subject",), ("gender",)),
    "verb → object": (("obj down",), ("object",), ("object",)),
    "noun → verb": (("nsubj up", "obj up", "obl up"), ("verb family", "verb object", "role"), ("case",)),
    "adverb, had, because → verb": (("advmod up", "aux up", "mark up"), ("verb family",), ("family",)),
    "and, but ↔ verb": (("cc up", "cc down"), ("joined verb",), ("family",)),
    "noun after of, with → its noun": (("nmod up", "nmod down"), ("owner",), ("owner",)),
    "the name": (("name", "topic"), ("topic",), ("topic",)),
    "pronoun → its noun": (("coreference",), ("antecedent",), ("gender",)),
}


def piece(word: str, names: Sequence[str]) -> str | None:
    """The first of these features that a target word has; None if it has none.

    >>> piece("s'tikolik'n", ["case"]), piece("s'tikolik'n", ["family", "gender"]), piece("s'tikolik'n", ["object"])
    ('case k', 'gender o', None)
    """
    features = vocabulary().get(word, ())
    return next((f for name in names for f in features if f.startswith(f"{name} ")), None)


def counted(name: str, sentences: Sequence[Sentence]) -> Tensor:
    """Which target words and EOS tokens a group is judged by: (words,), True or False."""
    _, needs, names = GROUPS[name]
    out = []
    for s in sentences:
        for word, source_word, needed in zip(s.target, s.alignment, s.phenomena, strict=True):
            own = name != "pronoun → its noun" or s.upos[source_word - 1] == "PRON"  # a verb's gender is its subject's
            out.append(own and bool(set(needs) & set(needed)) and piece(word, names) is not None)
        out.append(False)
    return torch.tensor(out)


@torch.no_grad()
def predictions(model: nn.Module, sentences: Sequence[Sentence]) -> Tensor:
    """The likeliest word at every target word and EOS token, given the right words so far: (words,), token ids."""
    predicted = []
    for batch in batches(sentences):
        labels = batch.pop("labels")
        predicted.append(model(**batch).logits.argmax(-1)[labels != IGNORE])
    return torch.cat(predicted)


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, sets: int = SETS) -> dict:
    """Cost of each group's heads beside random sets, and of its worst single head beside all others."""
    seen, n = min(SEEN, limit or SEEN), min(SENTENCES, limit or SENTENCES)
    held = held_roles(model, tokenizer, seen)
    test = corpus("test", seen + n)[seen:]
    labels = torch.cat([b["labels"][b["labels"] != IGNORE] for b in batches(test)])
    sentence_of = torch.tensor([i for i, s in enumerate(test) for _ in range(len(s.target) + 1)])
    words = list(vocabulary())
    heads = [f"{layer}.{head}" for layer in range(6) for head in range(8)]
    cache: dict[tuple[str, ...], Tensor] = {}

    def without(off: Sequence[str]) -> Tensor:
        key = tuple(sorted(off))
        if key not in cache:
            with ht.ablate(model, [("encoder", *map(int, head.split("."))) for head in key]):
                cache[key] = predictions(model, test)
        return cache[key]

    def by_sentence(values: Tensor, mask: Tensor) -> Tensor:
        return torch.zeros(n, dtype=torch.double).index_add_(0, sentence_of[mask], values[mask].double())

    rows = []
    for name, (roles, _, names) in GROUPS.items():
        mask = counted(name, test)
        pieces = [piece(word, names) for word in words]
        index_of = {one: i for i, one in enumerate(dict.fromkeys(pieces))}
        of_word = torch.tensor([index_of[one] for one in pieces])

        def right(predicted: Tensor, mask: Tensor = mask, of_word: Tensor = of_word) -> Tensor:
            return by_sentence(of_word[predicted] == of_word[labels], mask)

        total, full = by_sentence(torch.ones_like(labels), mask), right(without([]))
        if total.sum() == 0:
            continue
        singles = {head: ((full - right(without([head]))).sum() / total.sum()).item() for head in heads}
        worst = sorted(singles, key=singles.get, reverse=True)[:2]
        row = {
            "group": name,
            "n": int(total.sum()),
            "right": round((full.sum() / total.sum()).item(), 4),
            "worst": [[head, round(singles[head], 4)] for head in worst],
        }
        own = sorted(head for head, head_roles in held.items() if set(head_roles) & set(roles))
        row["heads"] = own
        if own:
            rng = random.Random(f"sets of {len(own)}")
            others = [head for head in heads if head not in own]
            random_sets = [rng.sample(others, min(len(own), len(others))) for _ in range(sets)]
            lost = full - right(without(own))
            control = torch.stack([full - right(without(other)) for other in random_sets])
            ends = bounds(linearised_ratio((lost - control.mean(0))[:, None], total))
            shares = control.sum(1) / total.sum()
            row |= {
                "cost": round((lost.sum() / total.sum()).item(), 4),
                "random": round(shares.mean().item(), 4),
                "most": round(shares.max().item(), 4),
                "low": round(ends[0].item(), 4),
                "high": round(ends[1].item(), 4),
                "alone": [round(singles[head], 4) for head in own],
            }
            one_by_one = torch.stack([full - right(without([head])) for head in own]).sum(0)
            ends = bounds(linearised_ratio((lost - TIMES * one_by_one)[:, None], total))
            row["excess"] = [round(end.item(), 4) for end in ends]  # above 0: they stand in for each other
        rows.append(row)
    return {"sentences": n, "sets": sets, "groups": rows}


def markdown(results: dict[str, dict]) -> str:
    """One row a group and model."""
    rows = []
    for name, result in results.items():
        for row in result["groups"]:
            (first, a), (second, b) = row["worst"]
            one_by_one = ", ".join(f"{x:.3f}" for x in row["alone"]) if len(row["heads"]) > 1 else None
            backup = " *" if one_by_one and row["excess"][0] > 0 else ""
            cells = (
                [
                    f"{row['cost']:.3f}{backup}",
                    one_by_one,
                    f"{row['random']:.3f}, {row['most']:.3f}",
                    f"{row['low']:+.3f} to {row['high']:+.3f}",
                ]
                if row["heads"]
                else [None] * 4
            )
            rows.append(
                [
                    name,
                    row["group"],
                    " ".join(row["heads"]) or "none",
                    f"{row['n']:,}",
                    f"{row['right']:.3f}",
                    *cells,
                    f"{first} {a:.3f}, {second} {b:.3f}",
                ]
            )
    header = [
        "model",
        "role",
        "heads",
        "n",
        "pieces right",
        "cost of these heads",
        "one by one",
        "random sets: mean, most",
        "cost − mean, 95 %",
        "worst single heads of all 48",
    ]
    notes = []
    for name, result in results.items():
        unused = [row["group"] for row in result["groups"] if row["heads"] and row["low"] <= 0]
        if unused:
            notes.append(
                f"{name}: the cost of *{'*, *'.join(unused)}* is not above that of random heads. These heads look "
                "where the role says, but nothing here shows that the model uses what they find."
            )
    return "\n\n".join([table(header, rows), *notes])
