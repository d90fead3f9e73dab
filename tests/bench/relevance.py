"""What the relevance of every head costs, against a plain forward pass and the way back to the embeddings.

    python tests/bench/relevance.py [--rounds 7] [--json FILE] [--check]

Everything runs in one process on one thread. The plain pass runs the model, with its weights frozen, and asks for the
gradient of the same numbers at what the embedding tables gave: the least that any method of this family must do. It and
``ht.propagate`` take turns on the same batch; what is reported is the median over rounds of the ratio of their CPU
times, with its quartiles, everything included. Weights are random. With ``--check`` the exit status is 1 when a ratio
is over its bound. Run it with the C library kept from giving memory back between passes, as ``make bench`` does.
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
from headtools.importance.inputs import frozen

BOUNDS = {"attnlrp": 1.08, "cp": 1.08, "epsilon": None, "zplus": None}


@dataclass(frozen=True)
class Subject:
    """A model with a batch; ``score(outputs, batch)`` gives what is explained, (B,)."""

    name: str
    model: nn.Module
    batch: dict[str, Tensor]
    score: Callable


def bert(layers: int = 12, rows: int = 4) -> Subject:
    """BERT-base as a classifier, with a small vocabulary."""
    torch.manual_seed(0)
    config = transformers.BertConfig(num_hidden_layers=layers, vocab_size=1000, num_labels=3)
    model = transformers.BertForSequenceClassification(config).eval()
    batch = {"input_ids": torch.randint(10, 1000, (rows, 64))}
    return Subject(f"BERT-base, {layers} layers, {rows} x 64 tokens", model, batch, lambda o, _b: o.logits.amax(-1))


def gpt2(layers: int = 12, rows: int = 4) -> Subject:
    """GPT-2 small, with a small vocabulary; the number is the greatest logit of the last token."""
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=layers, vocab_size=1000)).eval()
    batch = {"input_ids": torch.randint(10, 1000, (rows, 64)), "use_cache": False}
    return Subject(f"GPT-2, {layers} layers, {rows} x 64 tokens", model, batch, lambda o, _b: o.logits[:, -1].amax(-1))


def plain(subject: Subject) -> None:
    """The model forward, and back to the outputs of its embedding tables."""
    ends: list[Tensor] = []
    tables = [module for module in subject.model.modules() if isinstance(module, nn.Embedding)]
    hooks = [t.register_forward_hook(lambda _m, _i, out: ends.append(out.requires_grad_())) for t in tables]
    with frozen(subject.model):
        number = subject.score(subject.model(**subject.batch), subject.batch)
        torch.autograd.grad(number.sum(), ends)
    for hook in hooks:
        hook.remove()


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds of some work."""
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(subject: Subject, rounds: int, rules: dict[str, float | None]) -> list[dict]:
    """One row for each set of rules: seconds, the median ratio to the plain pass with its quartiles, and its bound."""
    rows = []
    for which, bound in rules.items():
        pair: list[Callable] = [
            lambda: plain(subject),
            lambda which=which: ht.propagate(subject.model, subject.batch, subject.score, which),
        ]
        for work in pair:
            seconds(work)  # warm-up
        taken = []
        for n in range(rounds):
            both = {work: seconds(work) for work in (pair if n % 2 == 0 else pair[::-1])}
            taken.append([both[work] for work in pair])
        low, middle, high = statistics.quantiles([ours / base for base, ours in taken], n=4)
        rows.append({
            "model": subject.name, "rules": which, "ratio": middle, "low": low, "high": high, "bound": bound,
            "plain_s": statistics.median(base for base, _ in taken),
            "s": statistics.median(ours for _, ours in taken),
        })  # fmt: skip
    return rows


def markdown(rows: list[dict]) -> str:
    """The rows as a table."""
    lines = ["| model | rules | plain s | s | ratio (quartiles) | bound |", "|" + "---|" * 6]
    for row in rows:
        ratio = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        cells = (row["model"], row["rules"], f"{row['plain_s']:.2f}", f"{row['s']:.2f}", ratio, row["bound"] or "")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def over(rows: list[dict]) -> list[dict]:
    """The rows whose ratio is over their bound.

    >>> over([{"ratio": 1.05, "bound": 1.08}, {"ratio": 1.2, "bound": 1.08}, {"ratio": 9, "bound": None}])
    [{'ratio': 1.2, 'bound': 1.08}]
    """
    return [row for row in rows if row["bound"] and row["ratio"] > row["bound"]]


def main() -> int:
    """Measure, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the JSON there instead of printing it")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    parser.add_argument("--quick", action="store_true", help="two rounds of something small: does it run at all?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    subjects, rounds = ([bert(1, 1)], 2) if options.quick else ([bert(), gpt2()], options.rounds)
    rows = [row for subject in subjects for row in measure(subject, rounds, BOUNDS)]
    print(markdown(rows))
    text = json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "rows": rows}, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    broken = over(rows)
    for row in broken:
        told = f"{row['model']}, {row['rules']}: {row['ratio']:.3f}"
        print(f"over its bound of {row['bound']}: {told}", file=sys.stderr)
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
