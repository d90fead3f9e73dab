"""What the relevance of every head costs, against a plain forward pass and the way back to the embeddings.

    python tools/bench/relevance.py [--rounds 7] [--json FILE] [--quick]

The plain pass runs the model, with its weights frozen, and asks for the gradient of the same numbers at what the
embedding tables gave: the least that any method of this family must do. Weights are random. Run it with the C library
kept from giving memory back between passes, as ``make bench`` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import timing
import torch
import transformers
from torch import Tensor, nn

import headtools as ht
from headtools.importance._inputs import evaluating

UNIT = "forward and back to the embeddings"
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
    config = transformers.GPT2Config(n_layer=layers, vocab_size=1000, bos_token_id=1, eos_token_id=1)
    model = transformers.GPT2LMHeadModel(config).eval()
    batch = {"input_ids": torch.randint(10, 1000, (rows, 64)), "use_cache": False}
    return Subject(f"GPT-2, {layers} layers, {rows} x 64 tokens", model, batch, lambda o, _b: o.logits[:, -1].amax(-1))


def plain(subject: Subject) -> None:
    """The model forward, and back to the outputs of its embedding tables."""
    ends: list[Tensor] = []
    tables = [module for module in subject.model.modules() if isinstance(module, nn.Embedding)]
    hooks = [t.register_forward_hook(lambda _m, _i, out: ends.append(out.requires_grad_())) for t in tables]
    with evaluating(subject.model):
        number = subject.score(subject.model(**subject.batch), subject.batch)
        torch.autograd.grad(number.sum(), ends)
    for hook in hooks:
        hook.remove()


def measure(subject: Subject, rounds: int, rules: dict[str, float | None]) -> list[dict]:
    """One row for each set of rules, {its name: its bound}."""
    rows = []
    for which, bound in rules.items():
        works = {
            UNIT: lambda: plain(subject),
            f"rules: {which}": lambda w=which: ht.relevance(subject.model, subject.batch, subject.score, w),
        }
        taken = timing.interleaved(works, rounds)
        row = {"model": subject.name, "counted": 1.0, "why": "the same products, other factors", "bound": bound}
        rows.append(timing.row(taken, f"rules: {which}", UNIT, **row))
    return rows


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=7)
    torch.set_num_threads(1)
    some = [bert(1, 1)] if given.quick else [bert(), gpt2()]
    timing.tell([row for subject in some for row in measure(subject, given.rounds, BOUNDS)], given.json)


if __name__ == "__main__":
    main()
