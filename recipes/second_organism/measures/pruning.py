"""How many heads of a kind can go: curves by gradient importance and in random orders, nothing trained in between."""

from torch import nn

import headtools as ht
from headtools.organism.evaluate import bleu
from headtools.organism.second.language import corpus
from recipes.second_organism.batches import batches
from recipes.second_organism.measures._words import by_sentence, right_words, table

KINDS = ("encoder", "decoder", "cross")
SCORED_ON, CURVE_ON = 1_600, 200  # validation sentences that importance comes from, test sentences of the curve
DRAWS = 10  # random orders
KEEP = (36, 24, 14, 7, 0)  # of the 48 heads of a kind; at 14, 70 % are gone
TRANSLATED = 14


def measure(model: nn.Module, tokenizer: object, limit: int | None = None, draws: int = DRAWS) -> dict:
    """Word accuracy at every number of heads left, and BLEU with 14 of them."""
    scored = corpus("validation", min(SCORED_ON, limit or SCORED_ON))
    test = corpus("test", min(CURVE_ON, limit or CURVE_ON))
    given = batches(scored)
    importance = {kind: ht.gradient(model, given, sites=[kind]) for kind in KINDS}
    by_kind = {}
    for kind in KINDS:
        orders = {"gradient": importance[kind].order()}
        orders |= {f"random {seed}": ht.random_order(ht.sites(model)[kind], seed) for seed in range(draws)}
        frame = ht.curves(model, orders, lambda m: by_sentence(right_words(m, test), test), [48, *KEEP])
        rows = {name: [round(x, 4) for x in frame[frame.order == name].metric] for name in orders}
        ends = frame[frame.order == "gradient"][["low", "high"]].round(4).values.tolist()
        point = ht.curve(model, orders["gradient"], lambda m: bleu(m, tokenizer, test), [48, TRANSLATED])
        order = [f"{layer}.{head}" for _, layer, head in orders["gradient"]]
        points = point[["metric", "low", "high"]].round(2).values.tolist()
        by_kind[kind] = {"curves": rows, "interval": ends, "order": order, "bleu": points}
    return {"scored on": len(scored), "curve on": len(test), "kept": [48, *KEEP], "kinds": by_kind}


def markdown(results: dict[str, dict]) -> str:
    """Curves of all models, then BLEU with 70 % of the heads of a kind off."""
    rows, translated = [], []
    for name, result in results.items():
        for kind, one in result["kinds"].items():
            at_random = [values for order, values in one["curves"].items() if order.startswith("random")]
            rows.append([name, kind, "gradient", *(f"{x:.3f}" for x in one["curves"]["gradient"])])
            rows.append(
                [
                    name,
                    kind,
                    f"{len(at_random)} random orders: mean, best",
                    *(f"{sum(v) / len(v):.3f}, {max(v):.3f}" for v in zip(*at_random, strict=True)),
                ]
            )
            all_heads, few_heads = one["bleu"]
            translated.append(
                [
                    name,
                    kind,
                    *("{:.1f} ({:.1f}–{:.1f})".format(*x) for x in (all_heads, few_heads)),
                    f"{few_heads[0] - all_heads[0]:+.1f}",
                ]
            )
    sizes = next(iter(results.values()))["kept"]
    return "\n\n".join(
        [
            table(["model", "heads", "order", *(f"{n} kept" for n in sizes)], rows),
            table(["model", "heads", "BLEU, all 48", f"BLEU, {TRANSLATED} kept by gradient", "change"], translated),
        ]
    )
