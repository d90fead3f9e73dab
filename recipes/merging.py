"""Does merging heads keep more than cutting them? ``python -m recipes.merging``

A quarter, a half and three quarters of the heads of one kind go, from the shipped model, from two of its snapshots,
and, with ``--runs``, from models that a training left (``make organism SIZE=half ARGS="--steps 1000"``). Every way
leaves as many heads and so as many weights. Nothing is trained: all fits are least squares on 100 validation sentences,
and accuracy is that of 200 test sentences. Result: ``merging.json``.

    merge            the pairs of a layer that lose least become one head each; for three quarters, twice over
    merge, refit     the same, and the output maps of the whole layer are fitted
    same             the heads that merging let go are cut, nothing is fitted
    same, refit      they are cut, and the output maps of their layers are fitted
    gradient         as many heads are cut from the whole encoder, those of least gradient importance
    gradient, refit  the same, and the output maps of their layers are fitted
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools._engine.progress import print_encodable
from headtools.heads.prune import cut_heads
from headtools.organism.batches import batches
from headtools.organism.evaluate import token_accuracy
from headtools.sparse.head_similarity import disjoint_pairs, head_similarity
from recipes import _training_state
from recipes._results import ASSETS, interval, update

FILE = ASSETS / "merging.json"
SHARES = (0.25, 0.5, 0.75)  # of the heads of a kind, gone
FIT_ON, MEASURED_ON = 100, 200  # sentences
WAYS = ("merge", "merge, refit", "same", "same, refit", "gradient", "gradient, refit")
COMPARED = (("merge", "same"), ("merge, refit", "same, refit"), ("merge, refit", "gradient, refit"))


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
    ranking = ht.gradient(model, fitted_on, sites=[kind]).order()
    near = head_similarity(model, fitted_on, kind)
    whole = token_accuracy(model, test)
    points = []
    for share in shares:
        gone = round(heads * share)
        pairs = disjoint_pairs(near, min(gone, heads // 2))
        merged, frame = _after(model, lambda m, pairs=pairs: ht.merge(m, pairs, fitted_on))
        both, _ = _after(model, lambda m, pairs=pairs: ht.merge(m, pairs, fitted_on, refit=True))
        models = {"merge": merged, "merge, refit": both}
        for name in ("merge", "merge, refit") if gone > heads // 2 else ():
            again = disjoint_pairs(head_similarity(models[name], fitted_on, kind), gone - heads // 2)
            ht.merge(models[name], again, fitted_on, refit="refit" in name)
        same = ht.pruned(models["merge"])
        for name, some in (("same", same), ("gradient", ranking[:gone])):
            models[name] = _after(model, lambda m, some=some: cut_heads(m, some))[0]
            models[f"{name}, refit"] = _after(model, lambda m, some=some: _cut(m, some, fitted_on))[0]
        right = {name: token_accuracy(models[name], test) for name in WAYS}
        points.append({"gone": gone, "pairs": [[list(head) for head in pair] for pair in pairs],
                       "lost": round(frame.missed.mean(), 4)}
                      | {name: interval(right[name]) for name in WAYS}
                      | {"differences": [[a, b, *interval(right[a] - right[b])] for a, b in COMPARED]})  # fmt: skip
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
        ht.refit(model, left, fitted_on)
    cut_heads(model, [head for head in heads if head[:-1] in empty])


def markdown(entries: Sequence[Mapping]) -> str:
    """The model card's table: one row a model, kind and number of heads gone; accuracies, then two differences."""
    header = ["model", "heads", "gone", *WAYS, *(f"{a} − {b}" for a, b in COMPARED[1:])]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for entry in entries:
        for point in entry["points"]:
            differences = [f"{d:+.3f} ({low:+.3f} to {high:+.3f})" for _, _, d, low, high in point["differences"][1:]]
            cells = [entry["model"], f"{entry['heads']} {entry['kind']}", str(point["gone"]),
                     *(f"{point[way][0]:.3f}" for way in WAYS), *differences]  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_entry(entries: list[dict], entry: dict) -> list[dict]:
    """Return entries with one more at the end, or with the one of the same model and kind replaced.

    >>> replace_entry([{"model": "a", "kind": "cross", "heads": 1}], {"model": "a", "kind": "cross", "heads": 2})
    [{'model': 'a', 'kind': 'cross', 'heads': 2}]
    """
    keys = [(old["model"], old["kind"]) for old in entries]
    place = keys.index(key) if (key := (entry["model"], entry["kind"])) in keys else len(keys)
    return [*entries[:place], entry, *entries[place + 1 :]]


def main(
    models: Annotated[list[str], typer.Option(help="shipped, or the steps of snapshots")] = ["shipped", "1500", "3000"],
    runs: Annotated[list[Path], typer.Option(help="folders that make organism left")] = [],
    share: Annotated[list[float], typer.Option(help="fractions of the heads, gone")] = list(SHARES),
    file: Path = FILE,
) -> None:
    """Compare, keep what was measured, print the table."""
    torch.set_num_threads(1)
    todo = [("shipped", {}, kind) for kind in ("encoder", "cross") if "shipped" in models]
    todo += [(f"step {int(step):,}", {"step": int(step)}, "encoder") for step in models if step != "shipped"]
    for run in runs:
        recipe = _training_state.recipe(run)
        name = f"{recipe['heads']} heads a layer, {recipe['steps']:,} steps"
        todo.append((name, {"name": run / "model"}, "encoder"))
    results = {"models": []}
    for name, which, kind in tqdm(todo, desc="models"):
        entry = {"model": name} | measure(ht.load(**which)[0], kind, share)
        results = update(file, lambda old, entry=entry: {"models": replace_entry(old.get("models", []), entry)})
    print_encodable(markdown(results["models"]))


if __name__ == "__main__":
    typer.run(main)
