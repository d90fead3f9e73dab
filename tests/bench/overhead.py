"""What looking and gating cost, against the plain forward pass: ``make bench``.

    python tests/bench/overhead.py [--rounds 21] [--json FILE] [--check]

Everything runs in one process on one thread. Each condition is run side by side with the plain pass it is compared
with, first the one then the other, then the other way round; what is reported is the median over such pairs of the
ratio of their CPU times. The time includes entering and leaving the context, as you would have it; in a model as small
as the organism, whose passes take milliseconds, that alone is a few hundredths. The bound is therefore one for a model
of BERT's width. Prints a Markdown table and then JSON. With ``--check`` the exit status is 1 when a ratio is over its
bound. Run it by ``make bench``, which also keeps the C library from giving memory back between passes (see Makefile).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from torch import nn

import headtools as ht

Z_BOUND = 1.02  # recording z must not be felt


@dataclass(frozen=True)
class Subject:
    """A model with a batch; ``name`` says what it is, ``bounds`` how much a condition may cost."""

    name: str
    model: nn.Module
    batch: dict[str, torch.Tensor]
    bounds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Condition:
    """A context around the forward pass, and the attention implementation with which it and the plain pass run."""

    name: str
    context: Callable[[nn.Module], AbstractContextManager]
    attention: str


def bert() -> Subject:
    """BERT-base's width (768, 12 heads, 3,072) with 4 of its 12 layers, random weights; 4 texts of 64 tokens."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=4, vocab_size=1000)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    batch = {"input_ids": torch.randint(10, 1000, (4, 64))}
    return Subject("BERT-base width, 4 layers, 4 x 64 tokens", model, batch, {"record z": Z_BOUND})


def organism() -> Subject:
    """The shipped translation model with 32 test sentences and their translations."""
    model, tokenizer = ht.load()
    sentences = list(ht.corpus("organism", limit=32))
    batch = tokenizer([" ".join(s.words) for s in sentences], return_tensors="pt", padding=True)
    target = tokenizer([" ".join(s.target) for s in sentences], return_tensors="pt", padding=True)
    size = "organism, 6 + 6 layers, 32 sentences"
    return Subject(size, model, {**batch, "decoder_input_ids": target.input_ids})


def ones(model: nn.Module) -> dict[tuple, torch.Tensor]:
    """Gates that change nothing, for every head."""
    return {site.key: torch.ones(site.heads) for site in ht.sites(model)}


def first_heads(model: nn.Module) -> dict[tuple, list[int]]:
    """The first head of every site."""
    return {site.key: [0] for site in ht.sites(model)}


CONDITIONS = (
    Condition("record z", lambda model: ht.record(model, want=("z",)), "sdpa"),
    Condition("gates of ones", lambda model: ht.gates(model, ones(model)), "sdpa"),
    Condition("ablate one head a site", lambda model: ht.ablate(model, first_heads(model)), "sdpa"),
    Condition("record maps", lambda model: ht.record(model, want=("maps",)), "eager"),
    Condition("record maps and z", lambda model: ht.record(model), "eager"),
)


def plain(model: nn.Module) -> AbstractContextManager:
    """No context."""
    return nullcontext()


def seconds(subject: Subject, context: Callable[[nn.Module], AbstractContextManager]) -> float:
    """CPU seconds of one forward pass in a context, entering and leaving it included."""
    start = time.process_time()
    with torch.no_grad(), context(subject.model):
        subject.model(**subject.batch)
    return time.process_time() - start


def measure(subject: Subject, rounds: int) -> list[dict]:
    """One row for each condition: median milliseconds, median ratio to the plain pass with its quartiles, bound."""
    rows = []
    for condition in CONDITIONS:
        subject.model.set_attn_implementation(condition.attention)
        pair = (plain, condition.context)
        for context in pair * 2:
            seconds(subject, context)  # warm-up
        taken = []
        for n in range(rounds):
            order = pair if n % 2 == 0 else pair[::-1]
            both = {context: seconds(subject, context) for context in order}
            taken.append((both[plain], both[condition.context]))
        low, middle, high = statistics.quantiles([ours / base for base, ours in taken], n=4)
        rows.append({
            "model": subject.name, "condition": condition.name, "attention": condition.attention,
            "plain_ms": 1000 * statistics.median(base for base, _ in taken),
            "ms": 1000 * statistics.median(ours for _, ours in taken),
            "ratio": middle, "low": low, "high": high,
            "bound": subject.bounds.get(condition.name),
        })  # fmt: skip
    return rows


def markdown(rows: list[dict]) -> str:
    """The rows as a table."""
    lines = ["| model | condition | attention | plain ms | ms | ratio (quartiles) | bound |", "|" + "---|" * 7]
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        times = (f"{row['plain_ms']:.1f}", f"{row['ms']:.1f}")
        told = (row["model"], row["condition"], row["attention"], *times, ratio, row["bound"] or "")
        lines.append("| " + " | ".join(map(str, told)) + " |")
    return "\n".join(lines)


def over(rows: list[dict]) -> list[dict]:
    """The rows whose ratio is over their bound.

    >>> over([{"ratio": 1.01, "bound": 1.02}, {"ratio": 1.05, "bound": 1.02}, {"ratio": 9, "bound": None}])
    [{'ratio': 1.05, 'bound': 1.02}]
    """
    return [row for row in rows if row["bound"] and row["ratio"] > row["bound"]]


def main() -> int:
    """Measure, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path, help="write the JSON there instead of printing it")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    parser.add_argument("--quick", action="store_true", help="two rounds of something small: does it run at all?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subjects, rounds = ([organism()], 2) if options.quick else ([bert(), organism()], options.rounds)
    rows = [row for subject in subjects for row in measure(subject, rounds)]
    print(markdown(rows))
    found = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rounds": rounds,
        "rows": rows,
    }
    text = json.dumps(found, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    broken = over(rows)
    for row in broken:
        told = f"{row['model']}, {row['condition']}: {row['ratio']:.3f}"
        print(f"over its bound of {row['bound']}: {told}", file=sys.stderr)
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
