"""What exact ablation of every head costs, against a loop with ``ablate``.

    python tests/bench/ablation.py [--rounds 3] [--json FILE] [--check]

Everything runs in one process on one thread. ``ht.ablation`` and the loop, which runs the whole model once for each
head, take turns on the same batch, and what is reported is the median over rounds of the ratio of their CPU times,
everything included. Beside it stands the bound of the arithmetic: what an ablation costs that computes nothing before
the head it switches off, neither the layers below nor the attention of its own. The weights are random. With
``--check`` the exit status is 1 when a ratio is over its bound, or when the numbers differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

import headtools as ht
from headtools.importance.suffix import losses

BOUND = 0.52
TOLERANCE = 1e-4  # of the greatest rise


@dataclass(frozen=True)
class Subject:
    """A model with a batch, and how many rows may go through it at once."""

    name: str
    model: nn.Module
    batch: dict[str, Tensor]
    max_rows: int
    bound: float | None = BOUND


def ragged(rows: int, tokens: int, shortest: int) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, tokens) of texts of different lengths."""
    mask = (torch.arange(tokens) < torch.linspace(tokens, shortest, rows).round()[:, None]).long()
    return torch.randint(10, 1000, (rows, tokens)) * mask, mask


def bert(layers: int = 12, rows: int = 2, max_rows: int = 8) -> Subject:
    """BERT-base as a classifier, with a small vocabulary: 12 layers of 12 heads."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, vocab_size=1000, num_labels=3)
    model = transformers.BertForSequenceClassification(config).eval()
    ids, mask = ragged(rows, 64, 32)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(rows) % 3}
    return Subject(f"BERT-base, {rows} x 64 tokens, {max_rows // rows} heads a run", model, batch, max_rows)


def marian(rows: int = 2, max_rows: int = 8) -> Subject:
    """The size of a Marian translation model: 6 + 6 layers of 8 heads, 512 wide, 2,048 between."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=8000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.MarianMTModel(config).eval()
    ids, mask = ragged(rows, 64, 32)
    labels, counted = ragged(rows, 64, 40)
    batch = {"input_ids": ids, "attention_mask": mask, "labels": labels.masked_fill(counted == 0, -100)}
    batch["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
    return Subject(f"Marian, 6 + 6 layers, {rows} x 64 tokens, {max_rows // rows} heads a run", model, batch, max_rows)


def ours(subject: Subject) -> dict[tuple, Tensor]:
    """The rises of every example and head, by replaying."""
    return ht.ablation_losses(subject.model, subject.batch, max_rows=subject.max_rows, quiet=True)


def naive(subject: Subject) -> dict[tuple, Tensor]:
    """The same by a full run for each head."""
    with torch.no_grad():
        base, rises = losses(subject.model, subject.batch, None), {}
        for site in ht.sites(subject.model):
            columns = []
            for head in range(site.heads):
                with ht.ablate(subject.model, [(*site.key, head)]):
                    columns.append(losses(subject.model, subject.batch, None) - base)
            rises[site.key] = torch.stack(columns, 1)
    return rises


def seconds(work: Callable[[Subject], dict], subject: Subject) -> tuple[float, dict]:
    """CPU seconds of one way to do it, and what it found."""
    start = time.process_time()
    found = work(subject)
    return time.process_time() - start, found


def measure(subject: Subject, rounds: int) -> dict:
    """One row: CPU seconds of both, the median ratio, and the greatest difference as a share of the greatest rise."""
    with torch.no_grad():
        losses(subject.model, subject.batch, None)  # warm-up
    taken, differ = [], 0.0
    for n in range(rounds):
        pair = (naive, ours) if n % 2 == 0 else (ours, naive)
        both = {work: seconds(work, subject) for work in pair}
        taken.append((both[naive][0], both[ours][0]))
        exact, found = both[naive][1], both[ours][1]
        most = max(value.abs().max().item() for value in exact.values())
        differ = max(differ, *((found[key] - value).abs().max().item() / most for key, value in exact.items()))
    return {
        "model": subject.name, "heads": ht.sites(subject.model).n_heads, "rounds": rounds,
        "naive_s": statistics.median(a for a, _ in taken), "ours_s": statistics.median(b for _, b in taken),
        "ratio": statistics.median(b / a for a, b in taken), "bound": subject.bound, "difference": differ,
    }  # fmt: skip


def markdown(rows: list[dict]) -> str:
    """The rows as a table."""
    lines = ["| model | heads | loop, CPU s | ablation, CPU s | ratio | bound | difference |", "|" + "---|" * 7]
    for row in rows:
        times = f"{row['naive_s']:.1f} | {row['ours_s']:.1f} | {row['ratio']:.3f} | {row['bound'] or ''}"
        lines.append(f"| {row['model']} | {row['heads']} | {times} | {row['difference']:.0e} |")
    return "\n".join(lines)


def wrong(rows: list[dict]) -> list[str]:
    """What is over its bound, or not equal.

    >>> wrong([{"model": "a", "ratio": 0.6, "bound": 0.52, "difference": 0.0}])
    ['a: 0.600 of the time of the loop, the bound is 0.52']
    """
    over = [
        f"{row['model']}: {row['ratio']:.3f} of the time of the loop, the bound is {row['bound']}"
        for row in rows
        if row["bound"] and row["ratio"] > row["bound"]
    ]
    return over + [
        f"{row['model']}: differs by {row['difference']:.1e}" for row in rows if row["difference"] > TOLERANCE
    ]


def main() -> int:
    """Measure, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the rows there as JSON")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    parser.add_argument("--quick", action="store_true", help="two rounds of something small: does it run at all?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        rows = [measure(bert(layers=1), 1)]
    else:
        rows = [measure(subject(), options.rounds) for subject in (bert, marian)]
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    broken = wrong(rows)
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
