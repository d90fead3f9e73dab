"""The numbers of the model card, measured again: ``python -m headtools.organism.score`` (``make score``).

Prints the card's tables as Markdown; ``--json FILE`` writes the same numbers to a file. With ``--limit N`` all is
measured on the first N sentences of each split, ``--split`` chooses which splits are translated.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import nn

import headtools as ht
from headtools.heads.progress import say
from headtools.organism.language import SPLITS
from headtools.organism.publish import write
from headtools.organism.roles_found import best, evenness, observe, on_end_mark, roles, strong
from headtools.organism.usage import usage
from headtools.roles.corpus import Sentence

TRANSLATED = ("validation", "test", "hard")
USED_ON = 200  # sentences on which heads are switched off
MOST = 0.9  # of its weight on the end mark, or of the greatest entropy
NAMES = {
    "offset -1": "previous word (offset −1)",
    "offset +1": "next word (offset +1)",
    "det up": "determiner → noun (det)",
    "amod up": "adjective → noun (amod)",
    "case up": "preposition → noun (case)",
    "case down": "noun → preposition (case)",
    "aux up": "had → verb (aux)",
    "nsubj down": "verb → subject (nsubj)",
    "nsubj up": "subject → verb (nsubj)",
    "obj down": "verb → object (obj)",
    "obj up": "object → verb (obj)",
    "advmod up": "adverb → verb (advmod)",
    "acl up": "verb of a relative clause → noun (acl)",
    "mark up": "because, when → verb (mark)",
    "cc down": "second verb → and, but (cc)",
    "coreference": "pronoun → its noun",
    "name": "any word → the name, the rarest word",
    "topic": "ambiguous word → the name",
}

def bleu(model: nn.Module, tokenizer: object, sentences: Sequence[Sentence]) -> tuple[float, float, float]:
    """BLEU of greedy translations, 0 to 100, and the ends of its 95 % bootstrap interval over sentences.

    As sacreBLEU computes both (Post 2018), from words as they are written (``tokenize="none"``) and 1,000 draws. Raises
    ValueError for no sentences.

    >>> model, tokenizer = ht.load()
    >>> score, low, high = bleu(model, tokenizer, ht.corpus("organism", limit=40))
    >>> 80 < low < score < high <= 100
    True
    """
    return _bleu(ht.translate(model, tokenizer, [s.words for s in sentences]), _wanted(sentences))


def _wanted(sentences: Iterable[Sentence]) -> list[str]:
    return [" ".join(s.target) for s in sentences]


def _bleu(written: list[str], wanted: list[str]) -> tuple[float, float, float]:
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", force=True)
    score = metric.corpus_score(written, [wanted], n_bootstrap=1000)
    told = json.loads(score.format(width=4, signature=metric.get_signature().format(), is_json=True))
    mean, half = (float(told.get(key, 0.0)) for key in ("confidence_mean", "confidence_var"))  # a score of 0 has none
    return score.score, mean - half, min(100.0, mean + half)


def translation(
    model: nn.Module, tokenizer: object, splits: Iterable[str] = TRANSLATED, limit: int | None = None
) -> pd.DataFrame:
    """BLEU and the share of sentences translated without a mistake, one row a split, with 95 % bootstrap intervals.

    Columns: ``split``, ``sentences`` (a count), ``bleu``, ``bleu_low``, ``bleu_high`` (0 to 100), ``right``,
    ``right_low``, ``right_high`` (0 to 1).

    >>> translation(*ht.load(), splits=["test"], limit=10)[["split", "sentences"]].values.tolist()
    [['test', 10]]
    """
    rows = []
    for split in splits:
        sentences = ht.corpus("organism", split, limit)
        written, wanted = ht.translate(model, tokenizer, [s.words for s in sentences]), _wanted(sentences)
        right = torch.tensor([a == b for a, b in zip(written, wanted, strict=True)]).double()
        whole = (right.mean().item(), *(end.item() for end in ht.bootstrap(right)))
        rows.append((split, len(sentences), *_bleu(written, wanted), *whole))
    columns = ["split", "sentences", "bleu", "bleu_low", "bleu_high", "right", "right_low", "right_high"]
    return pd.DataFrame(rows, columns=columns)


def measure(model: nn.Module, tokenizer: object, splits: Iterable[str] = TRANSLATED, limit: int | None = None) -> dict:
    """All numbers of the card, as JSON can hold them; the keys are the sections of what :func:`markdown` prints."""
    test = ht.corpus("organism", "test", limit)
    frame = roles(model, tokenizer, ht.corpus("organism", "validation", limit), test)
    accuracy, used = usage(model, frame, test[:USED_ON])
    return {
        "translation": _records(translation(model, tokenizer, splits, limit)),
        "roles": _records(best(frame).reset_index()),
        "heads": {head: sorted(some.role) for head, some in frame[frame.found].groupby("head")},
        "strong": sorted(set(strong(frame)["head"])),
        "end_mark": _by_head(observe(model, tokenizer, test, on_end_mark).mean(-1)),
        "evenness": _by_head(observe(model, tokenizer, test, evenness).mean(-1)),
        "usage": {"accuracy": round(accuracy, 6), "sentences": len(test[:USED_ON]), "groups": _records(used)},
    }


def _by_head(values: torch.Tensor) -> dict[str, float]:
    return {f"{i}.{j}": round(value, 6) for i, row in enumerate(values.tolist()) for j, value in enumerate(row)}


def _records(frame: pd.DataFrame) -> list[dict]:
    return json.loads(frame.to_json(orient="records", double_precision=6))


def markdown(scores: dict) -> str:
    """The card's tables and counts, from what :func:`measure` returned."""
    lines = _table("split | sentences | BLEU | 95 % | whole sentence right | 95 %", [
        f"{r['split']} | {r['sentences']:,} | {r['bleu']:.1f} | {r['bleu_low']:.1f}–{r['bleu_high']:.1f} | "
        f"{r['right']:.1%} | {100 * r['right_low']:.1f}–{100 * r['right_high']:.1f}".replace("%", " %")
        for r in scores["translation"]
    ])  # fmt: skip
    found = {r["role"]: r for r in scores["roles"]}
    for title, some in (("what the head looks at", NAMES), ("other relations", sorted(set(found) - set(NAMES)))):
        lines += _table(f"{title} | head | score | 95 % | baseline | n", [
            f"{NAMES.get(role, role)} | {r['head']} | {r['score']:.2f} | {r['low']:.2f}–{r['high']:.2f} | "
            f"{'–' if r['baseline'] is None else format(r['baseline'], '.2f')} | {r['n']:,}"
            for role in some if (r := found.get(role))
        ])  # fmt: skip
    heads = scores["heads"]
    n = len(scores["end_mark"])
    resting, even = ([h for h, x in scores[key].items() if x >= MOST] for key in ("end_mark", "evenness"))
    lines += [f"{len(heads)} of the {n} encoder heads have a role and {n - len(heads)} have none.", ""]
    lines += [f"- {head}: {', '.join(some)}" for head, some in heads.items()]
    lines += ["", f"{len(scores['strong'])} are strong: {' '.join(scores['strong'])}.", ""]
    lines += [f"{len(resting)} rest on the end mark ({MOST} or more of their weight): {' '.join(resting)}.", ""]
    lines += [f"{len(even)} spread it evenly ({MOST} or more of the greatest entropy): {' '.join(even)}.", ""]
    used = scores["usage"]
    lines += [f"Token accuracy on {used['sentences']} test sentences: {used['accuracy']:.3f}. It falls by", ""]
    lines += _table("heads | words that need | n | fall | beside: mean, greatest | difference, 95 % | used", [
        f"{r['group']}: {' '.join(r['heads']) if len(r['heads']) <= n // 2 else len(r['heads'])} | "
        f"{', '.join(r['words']) or 'all words'} | {r['n']:,} | {r['fall']:.3f} | {r['beside']:.3f}, {r['most']:.3f} | "
        f"{r['low']:+.3f} to {r['high']:+.3f} | {'yes' if r['used'] else 'no'}"
        for r in used["groups"]
    ])  # fmt: skip
    return "\n".join(lines).rstrip()


def _table(header: str, rows: list[str]) -> list[str]:
    return [f"| {header} |", "|" + "---|" * (header.count("|") + 1), *(f"| {row} |" for row in rows), ""]


def main(arguments: list[str] | None = None) -> None:
    """The command: measure the shipped model, print the tables, and write them to a file if asked."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.score", description=__doc__)
    parser.add_argument("--split", nargs="+", choices=SPLITS, default=TRANSLATED, help="splits to translate")
    parser.add_argument("--limit", type=int, help="sentences of each split (default: all 1,000)")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args(arguments)
    scores = measure(*ht.load(), options.split, options.limit)
    say(markdown(scores))
    if options.json:
        write(scores, options.json)


if __name__ == "__main__":
    main()
