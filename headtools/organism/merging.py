"""Does merging heads keep more than cutting them? ``python -m headtools.organism.merging`` (``make merging``).

A quarter, a half and three quarters of the heads of one kind go, from the shipped model, from two of its snapshots,
and, with ``--runs``, from models that a training left (``make organism SIZE=half ARGS="--steps 1000"``). Every way
leaves as many heads and so as many weights. Nothing is trained: all fits are least squares on 100 validation sentences,
and accuracy is that of 200 test sentences. What it finds goes into ``assets/merging.json``, each entry as soon as it is
measured; entries that were not measured again stay.

    merge            the pairs of a layer that lose least become one head each; for three quarters, twice over
    merge, refit     the same, and the output maps of the whole layer are fitted
    same             the heads that merging let go are cut, nothing is fitted
    same, refit      they are cut, and the output maps of their layers are fitted
    gradient         as many heads are cut from the whole encoder, those of least gradient importance
    gradient, refit  the same, and the output maps of their layers are fitted

>>> entry = merging()[0]
>>> entry["model"], entry["kind"], [point["gone"] for point in entry["points"]]
('shipped', 'encoder', [12, 24, 36])
"""

import argparse
import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

import headtools as ht
from headtools.heads.files import read_json
from headtools.heads.progress import say
from headtools.importance.gradient import gradient
from headtools.organism import checkpoint
from headtools.organism.accuracy import batches, token_accuracy
from headtools.organism.publish import ASSETS, changed
from headtools.sparse.alike import alike, closest
from headtools.sparse.merge import merge, refit

FILE = ASSETS / "merging.json"
SHARES = (0.25, 0.5, 0.75)  # of the heads of a kind, gone
FIT_ON, MEASURED_ON = 100, 200  # sentences
SNAPSHOTS = (1_500, 3_000)
WAYS = ("merge", "merge, refit", "same", "same, refit", "gradient", "gradient, refit")
COMPARED = (("merge", "same"), ("merge, refit", "same, refit"), ("merge, refit", "gradient, refit"))


def merging(file: Path = FILE) -> list[dict]:
    """What the command measured: a list of what :func:`measure` returned, each with the name of its ``model``."""
    return read_json(file, "models")["models"]


def measure(model: nn.Module, kind: str, shares: Sequence[float] = SHARES) -> dict:
    """Compare all ways for one model and kind of heads; fit for JSON.

    Returns ``kind``, ``heads`` (of that kind), ``accuracy`` of the whole model, and ``points``, one for each share
    gone: ``gone`` (a number of heads), ``pairs`` (those merged first), ``lost`` (their mean missed share, see
    ``merge``); for each of ``WAYS`` the accuracy and the ends of its 95 % interval; and ``differences``, for each of
    ``COMPARED`` the difference and the ends of its interval, by bootstrap over the same sentences.
    """
    fitted_on = batches(ht.corpus("organism", "validation", FIT_ON))
    test = ht.corpus("organism", "test", MEASURED_ON)
    heads = ht.sites(model)[kind].n_heads
    order = gradient(model, fitted_on, sites=[kind]).order()
    near = alike(model, fitted_on, kind)
    whole = token_accuracy(model, test)
    points = []
    for share in shares:
        gone = round(heads * share)
        pairs = closest(near, min(gone, heads // 2))
        merged, frame = _after(model, lambda m, pairs=pairs: merge(m, pairs, fitted_on))
        both, _ = _after(model, lambda m, pairs=pairs: merge(m, pairs, fitted_on, refit=True))
        models = {"merge": merged, "merge, refit": both}
        for name in ("merge", "merge, refit") if gone > heads // 2 else ():
            again = closest(alike(models[name], fitted_on, kind), gone - heads // 2)
            merge(models[name], again, fitted_on, refit="refit" in name)
        same = ht.pruned(models["merge"])
        for name, some in (("same", same), ("gradient", order[:gone])):
            models[name] = _after(model, lambda m, some=some: ht.prune(m, some))[0]
            models[f"{name}, refit"] = _after(model, lambda m, some=some: _cut(m, some, fitted_on))[0]
        right = {name: token_accuracy(models[name], test) for name in WAYS}
        points.append({"gone": gone, "pairs": [[list(head) for head in pair] for pair in pairs],
                       "lost": round(frame.missed.mean(), 4)}
                      | {name: _interval(right[name]) for name in WAYS}
                      | {"differences": [[a, b, *_interval(right[a] - right[b])] for a, b in COMPARED]})  # fmt: skip
    return {"kind": kind, "heads": heads, "accuracy": round(whole.mean().item(), 4), "points": points}


def _after(model: nn.Module, change: Callable[[nn.Module], object]) -> tuple[nn.Module, object]:
    """Return a changed copy, and what the change returned."""
    other = copy.deepcopy(model)
    return other, change(other)


def _cut(model: nn.Module, heads: Sequence[tuple], fitted_on: list[Mapping]) -> None:
    """Cut heads and refit their layers; a layer that loses all its heads has nothing left to fit."""
    counts = Counter(head[:-1] for head in heads)
    empty = {key for key, n in counts.items() if n == ht.sites(model)[key].heads}
    left = [head for head in heads if head[:-1] not in empty]
    if left:
        refit(model, left, fitted_on)
    ht.prune(model, [head for head in heads if head[:-1] in empty])


def _interval(values: Tensor) -> list[float]:
    low, high = ht.bootstrap(values)
    return [round(float(x), 4) for x in (values.mean(), low, high)]


def markdown(told: Sequence[Mapping]) -> str:
    """The model card's table: one row a model, kind and number of heads gone; accuracies, then two differences."""
    header = ["model", "heads", "gone", *WAYS, *(f"{a} − {b}" for a, b in COMPARED[1:])]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for entry in told:
        for point in entry["points"]:
            differences = [f"{d:+.3f} ({low:+.3f} to {high:+.3f})" for _, _, d, low, high in point["differences"][1:]]
            cells = [entry["model"], f"{entry['heads']} {entry['kind']}", str(point["gone"]),
                     *(f"{point[way][0]:.3f}" for way in WAYS), *differences]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def put(told: list[dict], entry: dict) -> list[dict]:
    """Return entries with one more at the end, or with the one of the same model and kind replaced.

    >>> put([{"model": "a", "kind": "cross", "heads": 1}], {"model": "a", "kind": "cross", "heads": 2})
    [{'model': 'a', 'kind': 'cross', 'heads': 2}]
    """
    place = next((i for i, old in enumerate(told) if all(old[k] == entry[k] for k in ("model", "kind"))), len(told))
    return [*told[:place], entry, *told[place + 1 :]]


def main(words: list[str] | None = None) -> None:
    """The command: compare, keep what was found, print the table."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.merging", description=__doc__)
    parser.add_argument("--models", nargs="*", choices=("shipped", *map(str, SNAPSHOTS)),
                        default=("shipped", *map(str, SNAPSHOTS)))  # fmt: skip
    parser.add_argument("--runs", type=Path, nargs="*", default=[], help="folders that make organism left")
    parser.add_argument("--share", type=float, nargs="+", default=SHARES, help="shares of the heads, gone")
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    todo = [("shipped", {}, kind) for kind in ("encoder", "cross") if "shipped" in options.models]
    todo += [(f"step {int(step):,}", {"step": int(step)}, "encoder") for step in options.models if step != "shipped"]
    for run in options.runs:
        recipe = checkpoint.recipe(run)
        name = f"{recipe['heads']} heads a layer, {recipe['steps']:,} steps"
        todo.append((name, {"name": run / "model"}, "encoder"))
    for name, which, kind in tqdm(todo, desc="models"):
        entry = {"model": name} | measure(ht.load(**which)[0], kind, options.share)
        changed(options.file, lambda told, entry=entry: {"models": put(told.get("models", []), entry)})
    say(markdown(merging(options.file) if options.file.is_file() else []))


if __name__ == "__main__":
    main()
