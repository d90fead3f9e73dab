"""How important is each of the organism's heads? ``python -m recipes.head_importance``

Four tables. The loss increase without each head (``ablation.safetensors``), and in ``worth.json``: BLEU with one
encoder head off, as in Michel et al. 2019 (arXiv:1905.10650), table 1; BLEU with all heads of a layer off but one, as
in tables 2 and 5, on the sentences on which the head is selected and on others; and the interaction of each pair of
encoder heads, the loss increase without both beyond the sum of their own. With ``--run FOLDER`` losses are stored there
as they are measured, and a stopped run is continued.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn

import headtools as ht
from headtools._engine.loop import progress
from headtools.heads.scores import Head, HeadScores
from headtools.organism.batches import batches
from headtools.organism.shipped import adjusted
from headtools.roles.sentence import Sentence
from recipes._results import ASSETS, write

SENTENCES = {"ablation": 200, "alone": 200, "only": 200, "pairs": 200}
SPLITS = ("validation", "test")  # heads are selected on the first and measured again on the second


def one_head_off(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], layers: Iterable[int] | None = None
) -> dict:
    """Return {"layer.head": [change of BLEU, p]} for each encoder head, ablated.

    ``layers`` limits it to some layers, [5].

    >>> changes = one_head_off(*ht.load(), ht.corpus("organism", limit=5), layers=[5])
    >>> len(changes), len(changes["5.1"])
    (8, 2)
    """
    sites = [site for site in ht.sites(model)["encoder"] if layers is None or site.key[1] in layers]
    heads = [(*site.key, head) for site in sites for head in range(site.heads)]
    baseline = translations(model, tokenizer, sentences)
    return {
        f"{head[-2]}.{head[-1]}": change(sentences, baseline, translations(model, tokenizer, sentences, [head]))
        for head in progress(heads, "one head off")
    }


def one_head_left(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], keys: Iterable[tuple] | None = None
) -> dict:
    """Return {"kind layer": [[change of BLEU, p], ...]}, an entry for each head left as the only one of its layer.

    ``keys`` limits it to some layers, [("encoder", 5)].

    >>> changes = one_head_left(*ht.load(), ht.corpus("organism", limit=5), keys=[("cross", 5)])
    >>> len(changes["cross 5"])
    8
    """
    sites, baseline = ht.sites(model), translations(model, tokenizer, sentences)
    layers = list(sites) if keys is None else [sites[key] for key in keys]
    rows: dict[str, list] = {}
    steps = [(site, only) for site in layers for only in range(site.heads)]
    for site, only in progress(steps, "one head left"):
        others = [(*site.key, head) for head in range(site.heads) if head != only]
        without = translations(model, tokenizer, sentences, others)
        rows.setdefault(" ".join(map(str, site.key)), []).append(change(sentences, baseline, without))
    return rows


def translations(
    model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], heads: Iterable[Head] = ()
) -> list[str]:
    """Return translations with some heads ablated."""
    with ht.ablate(model, list(heads)):
        return ht.translate(model, tokenizer, [sentence.words for sentence in sentences])


def change(sentences: Sequence[Sentence], baseline: list[str], without: list[str]) -> list[float]:
    """Return the change of BLEU and its two-sided p by paired bootstrap."""
    result = ht.paired_bootstrap(baseline, without, [" ".join(sentence.target) for sentence in sentences])
    return [round(result.difference, 3), round(result.p, 6)]


def markdown(results: dict) -> str:
    """Return two tables: heads whose removal changes BLEU (adjusted p < 0.01), and the best only head of each layer."""
    lines = ["| head off | BLEU | p, adjusted |", "|---|---|---|"]
    for row in adjusted({"head": head, "change": change, "p": p} for head, (change, p) in results["alone"].items()):
        if row["p_adjusted"] < 0.01:
            p = f"{row['p_adjusted']:.1g}" if row["p_adjusted"] >= 1e-5 else "< 1e-05"
            lines.append(f"| {row['head']} | {row['change']:+.2f} | {p} |")
    lines += ["", "| layer | only head, by validation | BLEU there | test | best of test |", "|---|---|---|---|---|"]
    for layer, row in results["only"].items():
        validation, test = ([change for change, _ in row[split]] for split in SPLITS)
        best = validation.index(max(validation))
        lines.append(f"| {layer} | {best} | {validation[best]:+.2f} | {test[best]:+.2f} | {max(test):+.2f} |")
    return "\n".join(lines)


def main(
    limit: Annotated[int | None, typer.Option(help="at most so many sentences for each table")] = None,
    assets: Annotated[Path, typer.Option(help="the folder the tables go to")] = ASSETS,
    run: Annotated[Path | None, typer.Option(help="folder of finished batches, to go on after a stop")] = None,
) -> None:
    """Measure and write the four tables, and print two of them."""
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    count = {table: min(n, limit or n) for table, n in SENTENCES.items()}
    validation, test = ({table: ht.corpus("organism", split, n) for table, n in count.items()} for split in SPLITS)

    scores = ht.ablation(model, batches(validation["ablation"], 25), checkpoint=run and run / "ablation")
    without_rows = HeadScores(scores.values, scores.name, scores.low, scores.high, scores.notes)
    without_rows.save(assets / "ablation.safetensors")
    pairs = ht.interaction(model, batches(validation["pairs"], 25), sites=["encoder"], checkpoint=run and run / "pairs")
    by_split = {
        split: one_head_left(model, tokenizer, sentences["only"])
        for split, sentences in zip(SPLITS, (validation, test), strict=True)
    }
    bleu = {}
    for split, sentences in zip(SPLITS, (validation["only"], test["only"]), strict=True):
        texts, references = translations(model, tokenizer, sentences), [" ".join(s.target) for s in sentences]
        bleu[split] = round(ht.paired_bootstrap(texts, texts, references).first, 3)
    results = {
        "sentences": count,
        "bleu": bleu,
        "alone": one_head_off(model, tokenizer, test["alone"]),
        "only": {layer: {split: by_split[split][layer] for split in SPLITS} for layer in by_split[SPLITS[0]]},
        "pairs": {
            f"{a[1]}.{a[2]} {b[1]}.{b[2]}": round(value, 5)
            for a, b, value in pairs[["a", "b", "interaction"]].itertuples(index=False)
        },
    }
    write(results, assets / "worth.json")
    print(markdown(results))


if __name__ == "__main__":
    typer.run(main)
