"""Gates on all 144 heads while all weights learn: which kind loses its heads first, and in which layers?

After Voita et al. 2019, section 6.3, table 2 and figures 9 and 10.
"""

from collections import Counter
from pathlib import Path

from torch import nn

from recipes.second_organism.measures._gated import before, one_run
from recipes.second_organism.measures._words import table

KINDS = ("encoder", "decoder", "cross")
PENALTIES = (0.0, 0.01, 0.02)


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, runs: Path | None = None) -> dict:
    """One run for each penalty, and the model before."""
    rows = [one_run(model, tokenizer, "all", penalty, limit=limit, runs=runs) for penalty in PENALTIES]
    return {"before": before(model, tokenizer, limit), "runs": rows}


def left(row: dict) -> dict[str, list[int]]:
    """Heads left by kind and layer.

    >>> left({"kept": ["encoder 0.1", "encoder 0.2", "cross 5.0"]})["encoder"]
    [2, 0, 0, 0, 0, 0]
    """
    counts = Counter(tuple(name.split(".")[0].split()) for name in row["kept"])
    return {kind: [counts[kind, str(layer)] for layer in range(6)] for kind in KINDS}


def encoder_first(row: dict) -> bool | None:
    """Whether a run leaves fewer encoder heads than heads of each other kind; None if it closes fewer than ten."""
    totals = {kind: sum(layers) for kind, layers in left(row).items()}
    return None if sum(totals.values()) > 134 else totals["encoder"] < min(totals["decoder"], totals["cross"])


def halves(row: dict, kind: str) -> tuple[int, int]:
    """Heads of a kind that are left in layers 0 to 2 and in layers 3 to 5.

    >>> halves({"kept": ["cross 0.1", "cross 5.0", "cross 3.2"]}, "cross")
    (1, 2)
    """
    layers = left(row)[kind]
    return sum(layers[:3]), sum(layers[3:])


def markdown(results: dict[str, dict]) -> str:
    """Heads left by kind at each penalty, and by layer."""
    rows = []
    for name, result in results.items():
        rows.append(
            [
                name,
                "before",
                *("48: 8 8 8 8 8 8" for _ in KINDS),
                "{:.1f} ({:.1f}–{:.1f})".format(*result["before"]["bleu"]),
            ]
        )
        for row in result["runs"]:
            cells = [f"{sum(layers)}: {' '.join(map(str, layers))}" for layers in left(row).values()]
            rows.append([name, f"{row['penalty']:g}", *cells, "{:.1f} ({:.1f}–{:.1f})".format(*row["bleu"])])
    notes = []
    for name, result in results.items():
        row = min(result["runs"], key=lambda row: len(row["kept"]))
        parts = [f"{kind} {low} and {high}" for kind in ("decoder", "cross") for low, high in [halves(row, kind)]]
        notes.append(f"{name}, penalty {row['penalty']:g}: {', '.join(parts)}")
    return "\n\n".join(
        [
            table(["model", "penalty", *(f"{kind}: by layer, 0 to 5" for kind in KINDS), "BLEU"], rows),
            f"Heads left in layers 0 to 2 and in layers 3 to 5, of 24 each, with the fewest heads: "
            f"{'; '.join(notes)}. In Voita et al. (2019) self-attention of the decoder survives mostly in its "
            "lower layers, cross-attention in its upper ones.",
        ]
    )
