"""Which head should go first? Pruning curves of many rankings: ``python -m recipes.orders``

Heads are switched off a tenth at a time and nothing is trained in between, as in Michel et al. 2019 (section 4). A
ranking comes from validation sentences, the curve from test sentences. Finished curves stay in ``orders.json``; the
command makes those that are missing, or those it is told.
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
from headtools.organism.batches import batches
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


def scores(name: str, model: nn.Module, given: Sequence[Mapping[str, Tensor]], over: str) -> HeadScores:
    """Return the scores that a ranking is named after, for the heads of a kind or for "all"."""
    only = None if over == "all" else [over]
    return {
        "confidence": partial(ht.confidence, model, given, sites=only),
        "gradient": partial(ht.gradient, model, given, sites=only),
        "gradient by layer": partial(ht.gradient, model, given, sites=only, normalise="layer"),
        "relevance": partial(ht.relevance, model, given, sites=only),
        "leave one out": partial(ht.ablation, model, given, sites=only, progress=False),
    }[name]()


def ranking(name: str, model: nn.Module, sentences: Sequence[Sentence], over: str) -> list[Head]:
    """Return the heads of a kind, or of "all": the first is the first to go.

    Names are those of :func:`scores`; "random 0" and so on; "gradient again" and "leave one out again", which score
    anew after every fourth head gone (every twelfth of all heads); "learned", log alpha of a run of the sweep.

    >>> ranking("random 0", ht.load()[0], [], "cross")[:2]
    [('cross', 5, 4), ('cross', 2, 6)]
    """
    sites = ht.sites(model)
    sites = sites if over == "all" else sites[over]
    if name.startswith("random "):
        return ht.random_order(sites, int(name.split()[1]))
    if name == "learned":
        run = shipped("sweep").query("over == @over and seed == 0").set_index("penalty").loc[LEARNED[over]]
        parts = torch.tensor(run.log_alpha).split([site.heads for site in sites])
        return HeadScores(dict(zip((site.key for site in sites), parts, strict=True)), name="log alpha").order()
    given = batches(sentences)
    if name.endswith(" again"):
        plain = name.removesuffix(" again")
        return ht.greedy_order(model, lambda model: scores(plain, model, given, over), step=12 if over == "all" else 4)
    return scores(name, model, given, over).order()


def names(over: str) -> list[str]:
    """Return the rankings whose curves ship: all of them for "encoder" and "all", two for a kind of the decoder."""
    if over in ("decoder", "cross"):
        return [*RANDOM, "gradient"]
    measured = ["confidence", "gradient", "gradient by layer", "relevance", "leave one out", "gradient again"]
    return [*RANDOM, *measured, "learned", *(["leave one out again"] if over == "encoder" else [])]


def pruning_curve(model: nn.Module, tokenizer: object, name: str, over: str, scored_on: int, curve_on: int) -> dict:
    """Return one curve: ``over``, ``order``, ``first`` (the first ten heads to go) and lists.

    ``kept`` counts the heads of that kind that are left; ``bleu`` (0 to 100) and ``accuracy`` (fraction of words right,
    given the right words so far) have (value, low, high) for each, with 95 % bootstrap intervals.
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
        update(file, lambda old, row=row: {"sentences": list(limit), "curves": replace_row(
            old.get("curves", []), row, lambda r: (KINDS.index(r["over"]), r["order"]))}, row_key="over")  # fmt: skip
        half = row["kept"].index(min(row["kept"], key=lambda kept: abs(kept - row["kept"][0] / 2)))
        tqdm.write(f"{kind}, {name}: BLEU {row['bleu'][half][0]:.1f} with half of the heads")


if __name__ == "__main__":
    typer.run(main)
