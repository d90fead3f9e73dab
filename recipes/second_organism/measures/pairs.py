"""Heads that stand in for each other: all 1,128 pairs of encoder heads, found on some sentences, confirmed on others.

A backup pair as in ``layers``: both heads off cost more than three times the sum of what they cost one by one, and more
than .02 nats a sentence's word. The costliest candidates of validation sentences are measured again on test sentences.
"""

from torch import nn

import headtools as ht
from headtools.organism.second.language import corpus
from recipes._results import interval
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import by_sentence, losses, table
from recipes.second_organism.measures.layers import LEAST, TIMES

FOUND_ON, CONFIRMED_ON, CANDIDATES = 30, 200, 12


def measure(
    model: nn.Module, tokenizer: object, limit: int | None = None, candidates: int = CANDIDATES, layers: int = 6
) -> dict:
    """Candidates of all pairs of heads in the first ``layers`` layers, and what is left of them."""
    found_on = batches(corpus("validation", min(FOUND_ON, limit or FOUND_ON)))
    test = corpus("test", min(CONFIRMED_ON, limit or CONFIRMED_ON))
    sites = [("encoder", layer) for layer in range(layers)]
    frame = ht.interaction(model, found_on, sites=sites, progress=False)
    singly = frame.delta_a.clip(lower=0) + frame.delta_b.clip(lower=0)
    frame = frame[(frame.delta_ab > LEAST) & (frame.delta_ab > TIMES * singly)].nlargest(len(frame), "delta_ab")
    loss = by_sentence(losses(model, test), test)

    def cost(*heads: tuple) -> object:
        with ht.ablate(model, heads):
            return by_sentence(losses(model, test), test) - loss

    rows = []
    for a, b in frame[["a", "b"]].head(candidates).itertuples(index=False):
        one, other, both = cost(a), cost(b), cost(a, b)
        numbers = [round(x.mean().item(), 4) for x in (one, other, both)]
        ends = interval(both - TIMES * (one + other))[1:]
        rows.append([f"{a[1]}.{a[2]}", f"{b[1]}.{b[2]}", *numbers, *ends])
    n = 8 * layers
    return {
        "pairs": n * (n - 1) // 2,
        "found on": min(FOUND_ON, limit or FOUND_ON),
        "confirmed on": len(test),
        "candidates": len(frame),
        "measured": rows,
    }


def confirmed(rows: list[list]) -> list[list]:
    """The pairs that are backups on test sentences, too, with an interval above 0.

    >>> confirmed([["0.0", "1.1", 0.01, 0.0, 0.1, 0.02, 0.1], ["0.0", "2.2", 0.01, 0.0, 0.1, -0.02, 0.1]])
    [['0.0', '1.1', 0.01, 0.0, 0.1, 0.02, 0.1]]
    """
    return [row for row in rows if row[4] > LEAST and row[4] > TIMES * (max(row[2], 0) + max(row[3], 0)) and row[5] > 0]


def markdown(results: dict[str, dict]) -> str:
    """The pairs that were measured again; a star where the pair is confirmed."""
    rows, notes = [], []
    for name, result in results.items():
        backups = confirmed(result["measured"])
        notes.append(
            f"{name}: {result['candidates']} of {result['pairs']:,} pairs are candidates on "
            f"{result['found on']} validation sentences; of the {len(result['measured'])} costliest, "
            f"{len(backups)} are confirmed on {result['confirmed on']} test sentences."
        )
        rows += [
            [
                name,
                f"{row[0]}, {row[1]}{' *' if row in backups else ''}",
                f"{row[2]:.3f}, {row[3]:.3f}",
                f"{row[4]:.3f}",
                f"{row[5]:+.3f} to {row[6]:+.3f}",
            ]
            for row in result["measured"]
        ]
    header = ["model", "off together", "cost of each, nats", "of both", f"both − {TIMES:g} × sum, 95 %"]
    return "\n\n".join([" ".join(notes), table(header, rows)] if rows else notes)
