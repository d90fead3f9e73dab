"""What whole layers are worth, and pairs of heads that stand in for each other.

A backup pair: both heads off cost more than three times what one and the other cost by themselves, and more than .02
nats a word. Pairs are looked for among the twelve heads of a kind that gradient importance ranks highest.
"""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import nn

import headtools as ht
from headtools.heads.scores import Head
from headtools.organism.second.language import corpus
from recipes._results import interval
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import by_sentence, losses, right_words, table

SENTENCES, SCORED_ON, TOP = 120, 1_600, 12
TIMES, LEAST = 3.0, 0.02


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, top: int = TOP) -> dict:
    """Fall of word accuracy without each layer and without the lowest ones, and all pairs among the top heads."""
    test = corpus("test", min(SENTENCES, limit or SENTENCES))
    given = batches(corpus("validation", min(SCORED_ON, limit or SCORED_ON)))
    accuracy, loss = right_words(model, test).float().mean().item(), losses(model, test)

    def accuracy_drop(heads: Sequence[Head]) -> float:
        with ht.ablate(model, heads):
            return round(accuracy - right_words(model, test).float().mean().item(), 4)

    def cost(*heads: Head) -> torch.Tensor:
        with ht.ablate(model, heads), torch.no_grad():
            return losses(model, test) - loss

    sites = ht.sites(model)
    off = {
        kind: [accuracy_drop([(*site.key, h) for h in range(site.heads)]) for site in sites[kind]]
        for kind in ("encoder", "decoder", "cross")
    }
    below = {
        str(n): accuracy_drop([(*site.key, h) for site in list(sites["encoder"])[:n] for h in range(site.heads)])
        for n in (2, 3, 4)
    }
    pairs = {}
    for kind in ("encoder", "cross"):
        best = ht.gradient(model, given, sites=[kind]).order()[-top:]
        one = {head: cost(head) for head in best}
        rows = []
        for a, b in combinations(best, 2):
            joint = cost(a, b)
            excess = joint - TIMES * (one[a] + one[b])  # above 0 in the mean: a backup pair
            numbers = [round(x.mean().item(), 4) for x in (one[a], one[b], joint)]
            ends = interval(by_sentence(excess, test))[1:]
            rows.append([f"{a[1]}.{a[2]}", f"{b[1]}.{b[2]}", *numbers, *ends])
        pairs[kind] = rows
    return {"sentences": len(test), "accuracy": round(accuracy, 4), "off": off, "below": below, "pairs": pairs}


def backups(rows: Sequence[Sequence]) -> list[Sequence]:
    """The pairs that stand in for each other, costliest first.

    >>> backups([["0.0", "1.1", 0.01, 0.02, 0.3, 0.1, 0.3], ["0.0", "2.2", 0.1, 0.1, 0.3, -0.4, -0.2]])
    [['0.0', '1.1', 0.01, 0.02, 0.3, 0.1, 0.3]]
    """
    pairs = [row for row in rows if row[4] > LEAST and row[4] > TIMES * (max(row[2], 0) + max(row[3], 0))]
    return sorted(pairs, key=lambda row: -row[4])


def markdown(results: dict[str, dict]) -> str:
    """Falls by layer, then the costliest backup pairs."""
    rows, pairs, counts = [], [], []
    for name, result in results.items():
        for kind, falls in result["off"].items():
            rows.append([name, kind, *(f"{x:.3f}" for x in falls)])
        for kind, measured in result["pairs"].items():
            both = backups(measured)
            counts.append(f"{name}, {kind}: {len(both)} of {len(measured)}")
            pairs += [
                [name, kind, f"{a}, {b}", f"{x:.3f}, {y:.3f}", f"{joint:.3f}", f"{low:+.3f} to {high:+.3f}"]
                for a, b, x, y, joint, low, high in both[:4]
            ]
    lower = "; ".join(
        f"{name}: layers 0 and 1 {result['below']['2']:.3f}, 0 to 2 {result['below']['3']:.3f}, "
        f"0 to 3 {result['below']['4']:.3f}"
        for name, result in results.items()
    )
    header = ["model", "heads", "off together", "cost of each, nats", "of both", f"both − {TIMES:g} × sum, 95 %"]
    return "\n\n".join(
        [
            "Fall of word accuracy with all heads of a layer off:",
            table(["model", "heads", *(f"layer {i}" for i in range(6))], rows),
            f"Several encoder layers off: {lower}.",
            f"Backup pairs among the {TOP} heads of greatest importance ({'; '.join(counts)}), the "
            f"costliest four of each, "
            "with intervals over sentences:",
            table(header, pairs),
        ]
    )
