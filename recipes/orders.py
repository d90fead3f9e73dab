"""Which heads should be removed first? Pruning curves of many rankings: ``python -m recipes.orders``

Heads are ablated a tenth at a time and nothing is trained in between, as in Michel et al. 2019 (section 4). A ranking
comes from validation sentences, the curve from test sentences. Finished curves are kept in ``orders.json``; the command
measures those that are missing, or those named with ``--order``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from tqdm import tqdm

import headtools as ht
from headtools.heads.scores import Head, HeadScores
from headtools.organism.batches import batches as make_batches
from headtools.organism.evaluate import bleu, token_accuracy
from headtools.organism.shipped import shipped
from headtools.roles.sentence import Sentence
from headtools.sparse.pruning_curve import FRACTIONS
from recipes._results import ASSETS, read, replace_row, update

FILE = ASSETS / "orders.json"
KINDS = ["encoder", "decoder", "cross", "all"]
RANDOM = tuple(f"random {seed}" for seed in range(5))
SCORED_ON, CURVE_ON = 200, 300  # validation sentences from which scores come, test sentences of the curve
LEARNED = {"encoder": 0.05, "all": 0.1}  # penalty of the sweep's run whose log alpha is the learned ranking


def scores(name: str, model: nn.Module, batches: Sequence[Mapping[str, Tensor]], over: str) -> HeadScores:
    """Return the scores that a ranking is named after, for the heads of a kind or for "all"."""
    sites = None if over == "all" else [over]
    return {
        "confidence": partial(ht.confidence, model, batches, sites=sites),
        "gradient": partial(ht.gradient, model, batches, sites=sites),
        "gradient by layer": partial(ht.gradient, model, batches, sites=sites, normalise="layer"),
        "relevance": partial(ht.relevance, model, batches, sites=sites),
        "leave one out": partial(ht.ablation, model, batches, sites=sites, progress=False),
    }[name]()


def ranking(name: str, model: nn.Module, sentences: Sequence[Sentence], over: str) -> list[Head]:
    """Return the heads of a kind, or of "all", in the order in which they are removed.

    Names are those of :func:`scores`; "random 0" and so on; "gradient again" and "leave one out again", which measure
    scores again after every fourth head removed (every twelfth of all heads); "learned", log alpha of a sweep's run.

    >>> ranking("random 0", ht.load()[0], [], "cross")[:2]
    [('cross', 5, 4), ('cross', 2, 6)]
    """
    sites = ht.sites(model)
    sites = sites if over == "all" else sites[over]
    if name.startswith("random "):
        return ht.random_order(sites, int(name.split()[1]))
    if name == "learned":
        run = shipped("sweep").query("over == @over and seed == 0").set_index("penalty").loc[LEARNED[over]]
        by_site = torch.tensor(run.log_alpha).split([site.heads for site in sites])
        return HeadScores(dict(zip((site.key for site in sites), by_site, strict=True)), name="log alpha").order()
    validation = make_batches(sentences)
    if name.endswith(" again"):
        score, step = name.removesuffix(" again"), 12 if over == "all" else 4
        return ht.greedy_order(model, lambda model: scores(score, model, validation, over), step=step)
    return scores(name, model, validation, over).order()


def names(over: str) -> list[str]:
    """Return the names of the shipped rankings: all for "encoder" and "all", fewer for the kinds of the decoder."""
    if over in ("decoder", "cross"):
        return [*RANDOM, "gradient"]
    measured = ["confidence", "gradient", "gradient by layer", "relevance", "leave one out", "gradient again"]
    return [*RANDOM, *measured, "learned", *(["leave one out again"] if over == "encoder" else [])]


def pruning_curve(model: nn.Module, tokenizer: object, name: str, over: str, scored_on: int, curve_on: int) -> dict:
    """Return one curve: ``over``, ``order``, ``first`` (the first ten heads that are removed) and lists.

    ``kept``: the numbers of heads of this kind that remain; ``bleu`` (0 to 100) and ``accuracy`` (fraction of words
    right, given the preceding words): (value, low, high) for each of them, with 95 % bootstrap intervals.
    """
    heads = ranking(name, model, ht.corpus("organism", "validation", scored_on), over)
    test = ht.corpus("organism", "test", curve_on)
    row = {"over": over, "order": name, "first": [list(head) for head in heads[:10]]}
    metrics: dict[str, tuple[Callable, int]] = {
        "bleu": (lambda model: bleu(model, tokenizer, test), 2),
        "accuracy": (lambda model: token_accuracy(model, test), 4),
    }
    for metric, (evaluate, digits) in metrics.items():
        frame = ht.curve(model, heads, evaluate, FRACTIONS)
        row["kept"] = frame.kept.tolist()
        row[metric] = [[round(x, digits) for x in point] for point in frame[["metric", "low", "high"]].values.tolist()]
    return row


def main(
    over: list[str] = KINDS,
    order: Annotated[list[str] | None, typer.Option(help="measure these again")] = None,
    limit: Annotated[tuple[int, int], typer.Option(help="sentences: scores, curve")] = (SCORED_ON, CURVE_ON),
    file: Path = FILE,
) -> None:
    """Measure the curves that are missing, or those named with --order again."""
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    finished = {(row["over"], row["order"]) for row in read(file).get("curves", [])}
    requested = [(kind, name) for kind in over for name in (order or names(kind))]
    for kind, name in tqdm([pair for pair in requested if order or pair not in finished], desc="rankings"):
        row = pruning_curve(model, tokenizer, name, kind, *limit)
        update(
            file,
            lambda old, row=row: {
                "sentences": list(limit),
                "curves": replace_row(old.get("curves", []), row, lambda r: (KINDS.index(r["over"]), r["order"])),
            },
            row_key="over",
        )
        half = row["kept"].index(min(row["kept"], key=lambda kept: abs(kept - row["kept"][0] / 2)))
        tqdm.write(f"{kind}, {name}: BLEU {row['bleu'][half][0]:.1f} with half of the heads")


if __name__ == "__main__":
    typer.run(main)
