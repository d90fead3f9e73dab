"""What the organism's heads are worth: ``python -m headtools.organism.worth`` (``make worth``).

Four tables. How much the loss rises without each head (``assets/ablation.safetensors``), and in ``assets/worth.json``:
BLEU with one encoder head off, as in Michel et al. 2019 (arXiv:1905.10650), table 1; BLEU with all heads of a layer off
but one, as in tables 2 and 5, on the sentences that the head is chosen on and on others; and what any two encoder heads
cost together beyond what each costs alone. With ``--run FOLDER`` everything is kept there as soon as it is made, so
that the command goes on after a stop.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

import headtools as ht
from headtools.heads.digest import digest
from headtools.heads.files import read_json
from headtools.heads.progress import progress, say
from headtools.heads.scores import Head, HeadScores
from headtools.importance.ablation import ablation
from headtools.importance.paired import paired_bootstrap
from headtools.importance.pairs import interaction
from headtools.importance.stored import load_scores, save_scores
from headtools.organism.accuracy import batches
from headtools.organism.publish import ASSETS, write
from headtools.roles.corpus import Sentence

FILE, ABLATION = ASSETS / "worth.json", ASSETS / "ablation.safetensors"
SENTENCES = {"ablation": 200, "alone": 200, "only": 200, "pairs": 200}
SPLITS = ("validation", "test")  # heads are chosen on the first and told on the second


def worth() -> dict:
    """Return what ships in ``assets/worth.json``; changes are of BLEU (0 to 100), p is that of a paired bootstrap.

    - ``sentences``: how many each table was made of; ``bleu``: that of the whole model, by split;
    - ``alone``: {"5.1": [change, p], ...}, each encoder head off, test sentences;
    - ``only``: {"encoder 0": {split: [[change, p], ...]}, ...}, an entry for each head left alone in its layer;
    - ``pairs``: {"0.0 0.1": interaction in nats, ...}, any two encoder heads, validation sentences.

    >>> told = worth()
    >>> len(told["alone"]), len(told["only"]), len(told["pairs"])
    (48, 18, 1128)
    """
    return read_json(FILE, "sentences", "bleu", "alone", "only", "pairs")


def ablation_scores(model: nn.Module | None = None) -> HeadScores:
    """Return how much the loss rises without each of the 144 heads, in nats, on 200 validation sentences, as shipped.

    Raises ``ValueError`` if ``model`` is given and has other heads.

    >>> ablation_scores().top(1)
    [('encoder', 5, 1)]
    """
    return load_scores(ABLATION, model)


def alone(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence], run: Path | None = None) -> dict:
    """Return {"layer.head": [change of BLEU, p]} for each encoder head switched off.

    >>> changes = alone(*ht.load(), ht.corpus("organism", limit=2))
    >>> len(changes), len(changes["5.1"])
    (48, 2)
    """
    heads = [(*site.key, head) for site in ht.sites(model)["encoder"] for head in range(site.heads)]
    whole = written(model, tokenizer, sentences, run=run)
    return {
        f"{head[-2]}.{head[-1]}": _change(sentences, whole, written(model, tokenizer, sentences, [head], run))
        for head in progress(heads, "one head off")
    }


def only(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    run: Path | None = None,
    keys: Iterable[tuple] | None = None,
) -> dict:
    """Return {"kind layer": [[change of BLEU, p], ...]}, an entry for each head that is left alone in its layer.

    ``keys`` limits it to some layers, [("encoder", 5)].

    >>> changes = only(*ht.load(), ht.corpus("organism", limit=2), keys=[("cross", 5)])
    >>> len(changes["cross 5"])
    8
    """
    found, whole = ht.sites(model), written(model, tokenizer, sentences, run=run)
    rows: dict[str, list] = {}
    chosen = list(found) if keys is None else [found[key] for key in keys]
    steps = [(site, kept) for site in chosen for kept in range(site.heads)]
    for site, kept in progress(steps, "one head left"):
        others = [(*site.key, head) for head in range(site.heads) if head != kept]
        without = written(model, tokenizer, sentences, others, run)
        rows.setdefault(" ".join(map(str, site.key)), []).append(_change(sentences, whole, without))
    return rows


def written(
    model: nn.Module,
    tokenizer: object,
    sentences: Sequence[Sentence],
    heads: Iterable[Head] = (),
    run: Path | None = None,
) -> list[str]:
    """Return the translations of sentences with some heads off; those in the folder ``run`` are not made again.

    >>> model, tokenizer = ht.load()
    >>> two = ht.corpus("organism", limit=2)
    >>> written(model, tokenizer, two) == ht.translate(model, tokenizer, [s.words for s in two])
    True
    """
    heads, texts = list(heads), [s.words for s in sentences]
    file = run and Path(run) / f"{digest(model, heads, texts)[:32]}.json"
    if file and file.exists():
        again = "delete it, and these are translated again"
        told = read_json(file, "of", "written", remedy=again)
        if told["of"] != file.stem:
            raise ValueError(f"{file} holds other translations than its name says: {again}")
        return told["written"]
    with ht.ablate(model, heads):
        found = ht.translate(model, tokenizer, texts)
    if file:
        write({"of": file.stem, "off": [list(head) for head in heads], "written": found}, file)
    return found


def _change(sentences: Sequence[Sentence], whole: list[str], without: list[str]) -> list[float]:
    found = paired_bootstrap(whole, without, [" ".join(s.target) for s in sentences])
    return [round(found.difference, 3), round(found.p, 3)]


def markdown(told: dict) -> str:
    """Return two tables: encoder heads whose removal changes BLEU (p < 0.01), and the best only head of each layer."""
    lines = ["| head off | BLEU | p |", "|---|---|---|"]
    lines += [f"| {head} | {change:+.2f} | {p:.3f} |" for head, (change, p) in told["alone"].items() if p < 0.01]
    lines += ["", "| layer | only head, by validation | BLEU there | test | best of test |", "|---|---|---|---|---|"]
    for layer, row in told["only"].items():
        here, there = ([change for change, _ in row[split]] for split in SPLITS)
        best = here.index(max(here))
        lines.append(f"| {layer} | {best} | {here[best]:+.2f} | {there[best]:+.2f} | {max(there):+.2f} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    """The command: measure the four tables, print two of them, keep all."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.worth", description=__doc__)
    parser.add_argument("--limit", type=int, help="at most so many sentences for each table")
    parser.add_argument("--assets", type=Path, default=ASSETS, help="the folder the tables go to")
    parser.add_argument("--run", type=Path, help="folder of what is finished, to go on after a stop")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    count = {table: min(n, options.limit or n) for table, n in SENTENCES.items()}
    read = {table: [ht.corpus("organism", split, n) for split in SPLITS] for table, n in count.items()}
    folder = {table: options.run and options.run / table for table in count}

    scores = ablation(model, batches(read["ablation"][0], 25), run=folder["ablation"])
    made_from = {"model": model, "split": SPLITS[0], "sentences": count["ablation"], "by": "zero"}
    save_scores(scores, options.assets / ABLATION.name, made_from)
    frame = interaction(model, batches(read["pairs"][0], 25), sites=["encoder"], run=folder["pairs"])
    told = {"sentences": count, "bleu": {}, "alone": alone(model, tokenizer, read["alone"][1], folder["alone"])}
    by_split = [only(model, tokenizer, sentences, folder["only"]) for sentences in read["only"]]
    for split, sentences in zip(SPLITS, read["only"], strict=True):
        targets = [" ".join(s.target) for s in sentences]
        whole = written(model, tokenizer, sentences, run=folder["only"])
        told["bleu"][split] = round(paired_bootstrap(whole, whole, targets).first, 3)
    told["only"] = {layer: dict(zip(SPLITS, (rows[layer] for rows in by_split), strict=True)) for layer in by_split[0]}
    told["pairs"] = {f"{a[1]}.{a[2]} {b[1]}.{b[2]}": round(value, 5)
                     for a, b, value in frame[["a", "b", "interaction"]].itertuples(index=False)}  # fmt: skip
    write(told, options.assets / FILE.name)
    say(markdown(told))


if __name__ == "__main__":
    main()
