"""Does merging heads preserve more than pruning them? ``python -m recipes.merging``

A quarter, a half and three quarters of the heads of one kind are removed from the shipped model, from two of its
snapshots, and, with ``--runs``, from other trained models (``make organism SIZE=half ARGS="--steps 1000"``). All
methods leave the same number of heads and so of weights. Nothing is trained: all fits are least squares on 100
validation sentences, and accuracy is that of 200 test sentences. Result: ``merging.json``.

    merge            the pairs of a layer with the smallest error become one head each; for three quarters, repeated
    merge, refit     the same, and the output maps of the whole layer are fitted
    same             the heads that merging removed are pruned, nothing is fitted
    same, refit      they are pruned, and the output maps of their layers are fitted
    gradient         as many heads are pruned from the whole encoder, those of least gradient importance
    gradient, refit  the same, and the output maps of their layers are fitted
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools.organism.batches import batches
from headtools.organism.evaluate import token_accuracy
from headtools.sparse.merge import disjoint_pairs, head_similarity
from recipes import _training_state
from recipes._results import ASSETS, interval, update

FILE = ASSETS / "merging.json"
FRACTIONS = (0.25, 0.5, 0.75)  # of the heads of a kind, removed
FIT_ON, MEASURED_ON = 100, 200  # sentences
METHODS = ("merge", "merge, refit", "same", "same, refit", "gradient", "gradient, refit")
COMPARED = (("merge", "same"), ("merge, refit", "same, refit"), ("merge, refit", "gradient, refit"))


def measure(model: nn.Module, kind: str, fractions: Sequence[float] = FRACTIONS) -> dict:
    """Compare all methods for one model and kind of heads.

    Returns ``kind``, ``heads`` (of this kind), ``accuracy`` of the full model, and ``points``, one for each fraction
    removed: ``removed`` (the number of heads), ``pairs`` (those merged first), ``lost`` (their mean ``relative_error``,
    see ``merge``); for each of ``METHODS`` the accuracy and the ends of its 95 % interval; and ``differences``, for
    each of ``COMPARED`` the difference and the ends of its interval, by bootstrap over the same sentences.
    """
    fitted_on = batches(ht.corpus("organism", "validation", FIT_ON))
    test = ht.corpus("organism", "test", MEASURED_ON)
    heads = ht.sites(model)[kind].n_heads
    ranking = ht.gradient(model, fitted_on, sites=[kind]).order()
    similar = head_similarity(model, fitted_on, kind)
    full_model = token_accuracy(model, test)
    points = []
    for fraction in fractions:
        n_removed = round(heads * fraction)
        pairs = disjoint_pairs(similar, min(n_removed, heads // 2))
        models = {"merge": copy.deepcopy(model), "merge, refit": copy.deepcopy(model)}
        frame = ht.merge(models["merge"], pairs, fitted_on)
        ht.merge(models["merge, refit"], pairs, fitted_on, refit=True)
        # Pairs remove at most half of the heads; beyond that, merged heads are merged once more.
        for name in ("merge", "merge, refit") if n_removed > heads // 2 else ():
            more_pairs = disjoint_pairs(head_similarity(models[name], fitted_on, kind), n_removed - heads // 2)
            ht.merge(models[name], more_pairs, fitted_on, refit="refit" in name)
        for name, removed in (("same", ht.pruned(models["merge"])), ("gradient", ranking[:n_removed])):
            models[name] = copy.deepcopy(model)
            ht.prune(models[name], removed)
            models[f"{name}, refit"] = copy.deepcopy(model)
            _cut_and_refit(models[f"{name}, refit"], removed, fitted_on)
        accuracy = {name: token_accuracy(models[name], test) for name in METHODS}
        points.append(
            {
                "removed": n_removed,
                "pairs": [[list(head) for head in pair] for pair in pairs],
                "lost": round(frame.relative_error.mean(), 4),
            }
            | {name: interval(accuracy[name]) for name in METHODS}
            | {"differences": [[a, b, *interval(accuracy[a] - accuracy[b])] for a, b in COMPARED]}
        )
    return {"kind": kind, "heads": heads, "accuracy": round(full_model.mean().item(), 4), "points": points}


def _cut_and_refit(model: nn.Module, heads: Sequence[tuple], fitted_on: list[Mapping]) -> None:
    """Cut heads and refit their layers, except for layers that lose all their heads."""
    counts = Counter(head[:-1] for head in heads)
    empty = {key for key, n in counts.items() if n == ht.sites(model)[key].heads}
    refittable = [head for head in heads if head[:-1] not in empty]
    if refittable:
        ht.refit(model, refittable, fitted_on)
    if whole_layers := [head for head in heads if head[:-1] in empty]:
        ht.prune(model, whole_layers)


def markdown(entries: Sequence[Mapping]) -> str:
    """Return the model card's table: a row for each model, kind and number removed; accuracies and two differences."""
    header = ["model", "heads", "removed", *METHODS, *(f"{a} − {b}" for a, b in COMPARED[1:])]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for entry in entries:
        for point in entry["points"]:
            differences = [f"{d:+.3f} ({low:+.3f} to {high:+.3f})" for _, _, d, low, high in point["differences"][1:]]
            cells = [
                entry["model"],
                f"{entry['heads']} {entry['kind']}",
                str(point["removed"]),
                *(f"{point[method][0]:.3f}" for method in METHODS),
                *differences,
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def replace_entry(entries: list[dict], entry: dict) -> list[dict]:
    """Return the entries with ``entry`` added at the end, or replacing that of the same model and kind.

    >>> replace_entry([{"model": "a", "kind": "cross", "heads": 1}], {"model": "a", "kind": "cross", "heads": 2})
    [{'model': 'a', 'kind': 'cross', 'heads': 2}]
    """
    keys = [(old["model"], old["kind"]) for old in entries]
    index = keys.index(key) if (key := (entry["model"], entry["kind"])) in keys else len(keys)
    return [*entries[:index], entry, *entries[index + 1 :]]


def main(
    models: Annotated[list[str], typer.Option(help="shipped, or the steps of snapshots")] = ["shipped", "1500", "3000"],
    runs: Annotated[list[Path], typer.Option(help="folders of runs of make organism")] = [],
    share: Annotated[list[float], typer.Option(help="fractions of the heads that are removed")] = list(FRACTIONS),
    file: Path = FILE,
) -> None:
    """Compare, write the results and print the table."""
    torch.set_num_threads(1)
    todo = [("shipped", {}, kind) for kind in ("encoder", "cross") if "shipped" in models]
    todo += [(f"step {int(step):,}", {"step": int(step)}, "encoder") for step in models if step != "shipped"]
    for run in runs:
        recipe = _training_state.recipe(run)
        name = f"{recipe['heads']} heads a layer, {recipe['steps']:,} steps"
        todo.append((name, {"name": run / "model"}, "encoder"))
    results = {"models": []}
    for name, load_options, kind in tqdm(todo, desc="models"):
        entry = {"model": name} | measure(ht.load(**load_options)[0], kind, share)
        results = update(file, lambda old, entry=entry: {"models": replace_entry(old.get("models", []), entry)})
    print(markdown(results["models"]))


if __name__ == "__main__":
    typer.run(main)
