"""How well cross-attention heads align target words with their source words: 1 - AER (Och and Ney 2003)."""

from torch import nn

from headtools.organism.second.language import corpus
from headtools.roles.taxonomy import taxonomy
from recipes.second_organism.measures._words import table

SENTENCES = 200
ALIGNED, APART = 0.1, 0.5  # alignment error rates


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """Alignment error rate of every cross head."""
    n = min(SENTENCES, limit or SENTENCES)
    frame = taxonomy(model, tokenizer, corpus("test", n), corpus("validation", n), kinds=["cross"], roles=["alignment"])
    errors = {f"{row.layer}.{row.head}": round(1 - row.score, 4) for row in frame.itertuples()}
    return {"sentences": n, "errors": errors}


def markdown(results: dict[str, dict]) -> str:
    """Heads that align and heads that do not, and the least error of each layer."""
    rows = []
    for name, result in results.items():
        errors = result["errors"]
        layers = [min(e for head, e in errors.items() if head.startswith(f"{layer}.")) for layer in range(6)]
        aligned = sum(e < ALIGNED for e in errors.values())
        apart = sum(e > APART for e in errors.values())
        rows.append([name, aligned, apart, len(errors), *(f"{e:.3f}" for e in layers)])
    header = ["model", f"align (AER < {ALIGNED})", f"do not (AER > {APART})", "of"]
    return table([*header, *(f"layer {i}, least" for i in range(6))], rows)
