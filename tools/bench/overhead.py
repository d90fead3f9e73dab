"""What looking and gating cost, against the plain forward pass: ``make bench``.

    python tools/bench/overhead.py [--rounds 21] [--json FILE] [--quick]

The time includes entering and leaving the context, as you would have it; in a model as small as the organism, whose
passes take milliseconds, that alone is a few hundredths. The bound is therefore one for a model of BERT's width. Run it
by ``make bench``, which also keeps the C library from giving memory back between passes (see Makefile).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import timing
import torch
import transformers
from torch import nn

import headtools as ht

Z_BOUND = 1.02  # recording z must not be felt
UNIT, WHY = "forward, same attention", "references, and a factor per head"


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


def passing(subject: Subject, context: Callable[[nn.Module], AbstractContextManager]) -> None:
    """One forward pass in a context, entering and leaving it included."""
    with torch.no_grad(), context(subject.model):
        subject.model(**subject.batch)


def measure(subject: Subject, rounds: int) -> list[dict]:
    """One row for each condition, those of one kind of attention beside the plain pass with that attention."""
    rows = []
    for attention in dict.fromkeys(condition.attention for condition in CONDITIONS):
        subject.model.set_attn_implementation(attention)
        works = {UNIT: lambda: passing(subject, lambda _model: nullcontext())}
        for condition in CONDITIONS:
            if condition.attention == attention:
                works[condition.name] = lambda c=condition: passing(subject, c.context)
        taken = timing.interleaved(works, rounds)
        row = {"model": subject.name, "counted": 1.0, "why": WHY}
        rows += [timing.row(taken, name, UNIT, **row, bound=subject.bounds.get(name)) for name in list(works)[1:]]
    return rows


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=21)
    torch.set_num_threads(1)
    some = [organism()] if given.quick else [bert(), organism()]
    timing.tell([row for subject in some for row in measure(subject, given.rounds)], given.json)


if __name__ == "__main__":
    main()
