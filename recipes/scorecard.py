"""The numbers of the organism's model card: ``python -m recipes.scorecard``

Translation on each split, which heads have a role, and whether the roles are used: what it costs to ablate the heads of
a role, on the words that need it. Prints the card's tables as Markdown; ``--json FILE`` writes the numbers.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer
from torch import nn

import headtools as ht
from headtools.organism.evaluate import corpus_bleu
from headtools.organism.roles_found import best, eos_weight, normalised_entropy, observe, roles, strong
from recipes._results import interval, write
from recipes._role_use import role_use

TRANSLATED = ("validation", "test", "hard")
USED_ON = 200  # sentences on which heads are ablated
MOST = 0.9  # of a head's weight on the EOS token, or of the largest possible entropy
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


def translation(
    model: nn.Module, tokenizer: object, splits: Iterable[str] = TRANSLATED, limit: int | None = None
) -> pd.DataFrame:
    """Return BLEU and the fraction of sentences without a mistake, a row for each split, with 95 % intervals.

    Columns: ``split``, ``sentences`` (a count), ``bleu``, ``bleu_low``, ``bleu_high`` (0 to 100), ``right``,
    ``right_low``, ``right_high`` (0 to 1).

    >>> translation(*ht.load(), splits=["test"], limit=10)[["split", "sentences"]].values.tolist()
    [['test', 10]]
    """
    rows = []
    for split in splits:
        sentences = ht.corpus("organism", split, limit)
        hypotheses = ht.translate(model, tokenizer, [sentence.words for sentence in sentences])
        references = [" ".join(sentence.target) for sentence in sentences]
        right = torch.tensor([a == b for a, b in zip(hypotheses, references, strict=True)]).double()
        rows.append((split, len(sentences), *corpus_bleu(hypotheses, references), *interval(right, 6)))
    columns = ["split", "sentences", "bleu", "bleu_low", "bleu_high", "right", "right_low", "right_high"]
    return pd.DataFrame(rows, columns=columns)


def measure(model: nn.Module, tokenizer: object, splits: Iterable[str] = TRANSLATED, limit: int | None = None) -> dict:
    """Return all numbers of the card, ready for JSON; the keys are the sections that :func:`markdown` prints."""
    test = ht.corpus("organism", "test", limit)
    frame = roles(model, tokenizer, ht.corpus("organism", "validation", limit), test)
    accuracy, used = role_use(model, frame, test[:USED_ON])
    return {
        "translation": _records(translation(model, tokenizer, splits, limit)),
        "roles": _records(best(frame).reset_index()),
        "heads": {head: sorted(rows.role) for head, rows in frame[frame.passes].groupby("head")},
        "strong": sorted(set(strong(frame)["head"])),
        "eos_weight": _by_head(observe(model, tokenizer, test, eos_weight).mean(-1)),
        "normalised_entropy": _by_head(observe(model, tokenizer, test, normalised_entropy).mean(-1)),
        "usage": {"accuracy": round(accuracy, 6), "sentences": len(test[:USED_ON]), "groups": _records(used)},
    }


def _by_head(values: torch.Tensor) -> dict[str, float]:
    return {f"{i}.{j}": round(value, 6) for i, row in enumerate(values.tolist()) for j, value in enumerate(row)}


def _records(frame: pd.DataFrame) -> list[dict]:
    return json.loads(frame.to_json(orient="records", double_precision=6))


def markdown(scores: dict) -> str:
    """Return the card's tables and counts, from the result of :func:`measure`."""
    lines = _table(
        "split | sentences | BLEU | 95 % | whole sentence right | 95 %",
        [
            f"{r['split']} | {r['sentences']:,} | {r['bleu']:.1f} | {r['bleu_low']:.1f}–{r['bleu_high']:.1f} | "
            f"{r['right']:.1%} | {100 * r['right_low']:.1f}–{100 * r['right_high']:.1f}".replace("%", " %")
            for r in scores["translation"]
        ],
    )
    row_of = {r["role"]: r for r in scores["roles"]}
    for title, listed in (("what the head looks at", NAMES), ("other relations", sorted(set(row_of) - set(NAMES)))):
        lines += _table(
            f"{title} | head | score | 95 % | baseline | n",
            [
                f"{NAMES.get(role, role)} | {r['head']} | {r['score']:.2f} | {r['low']:.2f}–{r['high']:.2f} | "
                f"{'–' if r['baseline'] is None else format(r['baseline'], '.2f')} | {r['n']:,}"
                for role in listed
                if (r := row_of.get(role))
            ],
        )
    heads = scores["heads"]
    n = len(scores["eos_weight"])
    on_eos, uniform = ([h for h, x in scores[key].items() if x >= MOST] for key in ("eos_weight", "normalised_entropy"))
    lines += [f"{len(heads)} of the {n} encoder heads have a role and {n - len(heads)} have none.", ""]
    lines += [f"- {head}: {', '.join(head_roles)}" for head, head_roles in heads.items()]
    lines += ["", f"{len(scores['strong'])} are strong: {' '.join(scores['strong'])}.", ""]
    lines += [f"{len(on_eos)} rest on the EOS token ({MOST} or more of their weight): {' '.join(on_eos)}.", ""]
    lines += [f"{len(uniform)} attend uniformly ({MOST} or more of the largest entropy): {' '.join(uniform)}.", ""]
    used = scores["usage"]
    lines += [f"Token accuracy on {used['sentences']} test sentences: {used['accuracy']:.3f}. It falls by", ""]
    lines += _table(
        "heads | words that need | n | fall | beside: mean, greatest | difference, 95 % | used",
        [
            f"{r['group']}: {' '.join(r['heads']) if len(r['heads']) <= n // 2 else len(r['heads'])} | "
            f"{', '.join(r['words']) or 'all words'} | {r['n']:,} | {r['accuracy_drop']:.3f} | "
            f"{r['control_mean']:.3f}, {r['control_max']:.3f} | "
            f"{r['low']:+.3f} to {r['high']:+.3f} | {'yes' if r['used'] else 'no'}"
            for r in used["groups"]
        ],
    )
    return "\n".join(lines).rstrip()


def _table(header: str, rows: list[str]) -> list[str]:
    return [f"| {header} |", "|" + "---|" * (header.count("|") + 1), *(f"| {row} |" for row in rows), ""]


def main(
    split: Annotated[list[str], typer.Option(help="splits to translate")] = list(TRANSLATED),
    limit: Annotated[int | None, typer.Option(help="sentences of each split (default: all 1,000)")] = None,
    file: Annotated[Path | None, typer.Option("--json", help="file for the numbers")] = None,
) -> None:
    """Measure the shipped model, print the tables, and with ``--json`` write them to a file."""
    scores = measure(*ht.load(), split, limit)
    print(markdown(scores))
    if file:
        write(scores, file)


if __name__ == "__main__":
    typer.run(main)
