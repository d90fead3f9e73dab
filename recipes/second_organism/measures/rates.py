"""At which gate rate does penalty 0 close nothing that matters? Gates on the encoder's heads, decoder frozen.

Without a penalty no gate has a reason to close, so what closes shows how far the rate alone carries log alpha.
"""

from pathlib import Path

from torch import nn

from recipes.second_organism.measures._gated import DECAY, GATE_RATE, START, STEPS, TOKENS, WEIGHT_RATE, before, one_run
from recipes.second_organism.measures._words import table

RATES = (0.25, 0.1, 0.05, 0.02)
MATTERS = 0.01  # word accuracy


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, runs: Path | None = None) -> dict:
    """One run at penalty 0 for each rate."""
    rows = [one_run(model, tokenizer, "encoder", 0.0, rate, limit=limit, runs=runs) for rate in RATES]
    return {"before": before(model, tokenizer, limit), "runs": rows}


def chosen_rate(result: dict) -> float | None:
    """The greatest rate that closes nothing that matters: what it closes costs the model before less than MATTERS.

    >>> chosen_rate({"runs": [{"rate": 0.25, "cost": 0.3}, {"rate": 0.1, "cost": 0.0}, {"rate": 0.05, "cost": 0.0}]})
    0.1
    """
    return max((row["rate"] for row in result["runs"] if row["cost"] < MATTERS), default=None)


def markdown(results: dict[str, dict]) -> str:
    """One row a rate, then the rate that the other tables of gates use."""
    rows = [
        [
            name,
            f"{row['rate']:g}",
            48 - len(row["kept"]),
            f"{row['cost']:.3f}",
            f"{min(row['log_alpha']):.1f} to {max(row['log_alpha']):.1f}",
            "{:.1f} ({:.1f}–{:.1f})".format(*row["bleu"]),
        ]
        for name, result in results.items()
        for row in result["runs"]
    ]
    header = ["model", "gate rate", "closed of 48", "what these cost untrained", "log α at the end", "BLEU after"]
    rates = {name: chosen_rate(result) for name, result in results.items()}
    choices = [f"{name} {rate:g}" if rate else f"{name} none" for name, rate in rates.items()]
    return "\n\n".join(
        [
            table(header, rows),
            f"{STEPS} steps of {TOKENS} tokens, log α from {START:g}, weight rate {WEIGHT_RATE:g}, both "
            f"rates falling in the last {DECAY:.0%} of the steps. Greatest rate at which the closed heads "
            f"together cost less than {MATTERS:g} of word accuracy when they are switched off in the "
            f"model as it was before: {', '.join(choices)}. The other tables use {GATE_RATE:g}, "
            "at which fewer gates close without a reason.".replace("%", " %"),
        ]
    )
