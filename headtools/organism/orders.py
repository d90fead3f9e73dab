"""Which head should go first? Pruning curves of many orders: ``python -m headtools.organism.orders`` (``make orders``).

Heads are switched off a tenth at a time and nothing is trained in between, as Michel et al. 2019 (section 4) do it. An
order comes from scores of validation sentences, the curve from test sentences. Finished curves stay in
``assets/orders.json``; the command makes those that are missing, or those it is told.

>>> sorted({row["over"] for row in orders()})
['all', 'cross', 'decoder', 'encoder']
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

import headtools as ht
from headtools.heads.files import read_json
from headtools.heads.scores import Head, HeadScores
from headtools.importance.lrp import relevance
from headtools.organism import accuracy
from headtools.organism.publish import ASSETS, changed
from headtools.organism.score import bleu
from headtools.organism.sweep import dump, sweep
from headtools.roles.corpus import Sentence
from headtools.sparse.curves import SHARES, curve, greedy_order, random_order

FILE = ASSETS / "orders.json"
KINDS = ("encoder", "decoder", "cross", "all")
RANDOM = tuple(f"random {seed}" for seed in range(5))
SCORED_ON = 200  # validation sentences from which scores come
CURVE_ON = 300  # test sentences
LEARNED = {"encoder": 0.05, "all": 0.1}  # penalty of the sweep's run whose log alpha is the learned order

Batches = Sequence[Mapping[str, Tensor]]


def scores(name: str, model: nn.Module, batches: Batches, over: str) -> HeadScores:
    """Return the scores that an order is named after, for the heads of a kind or for "all".

    "confidence", "gradient", "gradient by layer" (normalised within each layer), "relevance" (by LRP), "leave one out".
    Raises ``KeyError`` for another name.
    """
    only = None if over == "all" else [over]
    return {
        "confidence": partial(ht.confidence, model, batches, sites=only),
        "gradient": partial(ht.gradient, model, batches, sites=only),
        "gradient by layer": partial(ht.gradient, model, batches, sites=only, normalise="layer"),
        "relevance": partial(relevance, model, batches, sites=only),
        "leave one out": lambda: ht.ablation(model, batches, sites=only, quiet=True),
    }[name]()


def order(name: str, model: nn.Module, sentences: Sequence[Sentence], over: str) -> list[Head]:
    """Return the heads of a kind, or of "all", in the order of that name: the first is the first to go.

    Names are those of :func:`scores`; "random 0" and so on; "gradient again" and "leave one out again", which score
    anew after every fourth head gone (every twelfth of all heads); "learned", log alpha of a run of the sweep.

    >>> order("random 0", ht.load()[0], [], "cross")[:2]
    [('cross', 5, 4), ('cross', 2, 6)]
    """
    if name.startswith("random "):
        found = ht.sites(model)
        return random_order(found if over == "all" else found[over], int(name.split()[1]))
    if name == "learned":
        return learned(model, over).order()
    batches = accuracy.batches(sentences)
    if name.endswith(" again"):
        plain = name.removesuffix(" again")
        return greedy_order(model, lambda model: scores(plain, model, batches, over), step=12 if over == "all" else 4)
    return scores(name, model, batches, over).order()


def learned(model: nn.Module, over: str) -> HeadScores:
    """Return log alpha at the end of a run of the sweep, by ``LEARNED``."""
    run = next(r for r in sweep() if (r["over"], r["penalty"], r["seed"]) == (over, LEARNED[over], 0))
    found = ht.sites(model)
    found = found if over == "all" else found[over]
    parts = torch.tensor(run["log_alpha"]).split([site.heads for site in found])
    return HeadScores(dict(zip((site.key for site in found), parts, strict=True)), name="log alpha")


def names(over: str) -> list[str]:
    """Return the orders whose curves ship: all of them for "encoder" and "all", two for one type of the decoder."""
    if over in ("decoder", "cross"):
        return [*RANDOM, "gradient"]
    some = ["confidence", "gradient", "gradient by layer", "relevance", "leave one out", "gradient again", "learned"]
    return [*RANDOM, *some, *(["leave one out again"] if over == "encoder" else [])]


def measure(
    model: nn.Module, tokenizer: object, name: str, over: str, scored_on: int = SCORED_ON, curve_on: int = CURVE_ON
) -> dict:
    """Return one curve, fit for JSON: ``over``, ``order``, ``first`` (the first ten heads to go) and lists.

    ``kept`` counts the heads of that kind that are left; ``bleu`` (0 to 100) and ``accuracy`` (share of words right,
    given the right words so far) have (value, low, high) for each, with 95 % bootstrap intervals.
    """
    gone = order(name, model, ht.corpus("organism", "validation", scored_on), over)
    test = ht.corpus("organism", "test", curve_on)
    told = {"over": over, "order": name, "first": [list(head) for head in gone[:10]]}
    metrics: dict[str, tuple[Callable, int]] = {
        "bleu": (lambda model: bleu(model, tokenizer, test), 2),
        "accuracy": (lambda model: accuracy.token_accuracy(model, test), 4),
    }
    for metric, (evaluate, digits) in metrics.items():
        frame = curve(model, gone, evaluate, SHARES)
        told["kept"] = frame.kept.tolist()
        told[metric] = [[round(x, digits) for x in row] for row in frame[["metric", "low", "high"]].values.tolist()]
    return told


def orders(file: Path = FILE) -> list[dict]:
    """Return the curves that ship, each as :func:`measure` made it."""
    return read_json(file, "curves")["curves"]


def put(told: Mapping, row: dict, sentences: list[int]) -> dict:
    """Return what ships, with a curve more or in the place of the one of the same heads and order."""
    others = [r for r in told.get("curves", []) if (r["over"], r["order"]) != (row["over"], row["order"])]
    curves = sorted([*others, row], key=lambda r: (KINDS.index(r["over"]), r["order"]))
    return {"sentences": sentences, "curves": curves}


def main(words: list[str] | None = None) -> None:
    """The command: measure the curves that are missing, or those named with ``--order`` again."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.orders", description=__doc__)
    parser.add_argument("--over", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--order", nargs="+", help="measure these again")
    parser.add_argument("--limit", type=int, nargs=2, default=(SCORED_ON, CURVE_ON), help="sentences: scores, curve")
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    told = orders(options.file) if options.file.is_file() else []
    there = {(row["over"], row["order"]) for row in told}
    wanted = [(over, name) for over in options.over for name in (options.order or names(over))]
    for over, name in tqdm([pair for pair in wanted if options.order or pair not in there], desc="orders"):
        row = measure(model, tokenizer, name, over, *options.limit)
        changed(options.file, partial(put, row=row, sentences=list(options.limit)), dump)
        half = row["kept"].index(min(row["kept"], key=lambda kept: abs(kept - row["kept"][0] / 2)))
        tqdm.write(f"{over}, {name}: BLEU {row['bleu'][half][0]:.1f} with half of the heads")


if __name__ == "__main__":
    main()
