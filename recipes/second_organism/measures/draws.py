"""How lucky is a draw? Gradient importance of encoder heads from draws of 200 sentences, and from all of them.

The same 1,600 validation sentences, as eight draws of 200 and as one; accuracy of the orders on test sentences.
"""

import torch
from scipy.stats import spearmanr
from torch import nn

import headtools as ht
from headtools.heads.scores import HeadScores
from headtools.organism.second.language import corpus
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import by_sentence, right_words, table

SCORED_ON, DRAW, CURVE_ON = 1_600, 200, 200
KEEP = (24, 14, 10, 7)


def measure(model: nn.Module, tokenizer: object, limit: int | None = None) -> dict:
    """Accuracy by heads kept for the order of all sentences and of each draw, and how uneven the sentences are."""
    n, size = min(SCORED_ON, limit or SCORED_ON), min(DRAW, max(1, (limit or 8 * DRAW) // 4))
    test = corpus("test", min(CURVE_ON, limit or CURVE_ON))
    magnitudes = ht.gradient(model, batches(corpus("validation", n)), sites=["encoder"]).rows  # (sentences, heads)

    def order(rows: slice) -> list:
        return HeadScores({key: values[rows].mean(0) for key, values in magnitudes.items()}, name="gradient").order()

    draws = [slice(start, start + size) for start in range(0, n - size + 1, size)]
    orders = {"all": order(slice(None))} | {f"draw {i}": order(draw) for i, draw in enumerate(draws)}
    frame = ht.curves(model, orders, lambda m: by_sentence(right_words(m, test), test), list(KEEP))
    flat = torch.cat(list(magnitudes.values()), dim=1)  # (sentences, 48)
    agreement = [spearmanr(flat[draw].mean(0), flat.mean(0)).statistic for draw in draws]
    total = flat.sum(1).sort(descending=True).values
    return {
        "sentences": n,
        "draw": size,
        "kept": list(KEEP),
        "curve on": len(test),
        "curves": {name: [round(x, 4) for x in frame[frame.order == name].metric] for name in orders},
        "spearman": [round(float(x), 4) for x in agreement],
        "largest twentieth": round((total[: max(1, n // 20)].sum() / total.sum()).item(), 4),
    }


def markdown(results: dict[str, dict]) -> str:
    """One row for all sentences and one for the draws of each model."""
    rows, texts = [], []
    for name, result in results.items():
        draws = [values for order, values in result["curves"].items() if order != "all"]
        rows += [
            [name, f"{result['sentences']:,} sentences", *(f"{x:.3f}" for x in result["curves"]["all"])],
            [
                name,
                f"{len(draws)} draws of {result['draw']}: least, mean, best",
                *(f"{min(v):.3f}, {sum(v) / len(v):.3f}, {max(v):.3f}" for v in zip(*draws, strict=True)),
            ],
        ]
        texts.append(
            f"{name}: rank correlation of a draw with all sentences {min(result['spearman']):.2f} to "
            f"{max(result['spearman']):.2f}; the twentieth of the sentences with the largest slopes carries "
            f"{100 * result['largest twentieth']:.0f} % of their sum"
        )
    sizes = next(iter(results.values()))["kept"]
    header = ["model", "importance from", *(f"{n} kept" for n in sizes)]
    return "\n\n".join([table(header, rows), ". ".join(texts) + "."])
