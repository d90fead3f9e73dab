"""What a training step with Hard Concrete gates costs, against the plain training step: ``make bench``.

    python tools/bench/gates.py [--rounds 15] [--json FILE] [--quick]

A plain step is the one you would write yourself: the loss, its gradient, clipping, AdamW over all weights. The step
with gates does the same under a gate on every head of the model, drawn anew, with the price on open gates and the
update of log alpha. Both train the same model. The bound holds for the two models of ordinary width. In the organism,
whose layers are a quarter as wide, a step takes some 55 milliseconds, 3 of them for multiplying z at its 18 sites,
there and back; its row has no bound.
"""

from __future__ import annotations

from collections.abc import Callable

import overhead
import timing
import torch
import transformers
from torch import nn

import headtools as ht
from headtools.organism.batches import TrainingBatches
from headtools.sparse._trainer import CLIP, Trainer, trained_weights, training_mode

BOUND = 1.05
RATE = 1e-5  # of the weights, so low that the model stays what it is
CONDITION, UNIT = "step with gates", "training step"


def marian() -> overhead.Subject:
    """The size of Marian's and Voita's base models (512, 8 heads, 2,048, 6 + 6 layers), random weights; 16 pairs."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=1000,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        pad_token_id=0,
        decoder_start_token_id=0,
        dropout=0.0,
    )
    model = transformers.MarianMTModel(config)
    ids = torch.randint(10, 1000, (2, 16, 32))
    batch = {"input_ids": ids[0], "labels": ids[1]}
    return overhead.Subject("Marian base, 6 + 6 layers, 16 x 32 tokens", model, batch, {CONDITION: BOUND})


def bert() -> overhead.Subject:
    """BERT-base's width (768, 12 heads, 3,072) with 4 of its 12 layers, random weights; 8 texts of 64 tokens."""
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=4, vocab_size=1000))
    ids = torch.randint(10, 1000, (8, 64))
    batch = {"input_ids": ids, "labels": ids}
    return overhead.Subject("BERT-base width, 4 layers, 8 x 64 tokens", model, batch, {CONDITION: BOUND})


def organism() -> overhead.Subject:
    """The shipped translation model and a batch of its training, about 1,024 tokens."""
    return overhead.Subject("organism, 6 + 6 layers, 1,024 tokens", ht.load()[0], TrainingBatches()(0))


def plain_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """One step of ordinary training, as a function to call again and again."""
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.98), weight_decay=0.01)

    def step() -> None:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def gated_step(model: nn.Module, batch: dict[str, torch.Tensor]) -> Callable[[], None]:
    """One step of ``fit_gates`` with all weights and a gate on every head."""
    gates = ht.HardConcrete(ht.sites(model))
    weights = trained_weights(model, "all")
    trainer = Trainer(model, weights, None, 1, RATE, gates=gates, penalty=0.01, gate_rate=1e-3)
    return lambda: trainer.step(batch, 0)


def measure(subject: overhead.Subject, rounds: int) -> dict:
    """The row of a step with gates beside the plain one."""
    with training_mode(subject.model, list(subject.model.parameters())):
        works = {
            UNIT: plain_step(subject.model, subject.batch),
            CONDITION: gated_step(subject.model, subject.batch),
        }
        taken = timing.interleaved(works, rounds)
    row = {"model": subject.name, "counted": 1.0, "why": "a factor per head", "bound": subject.bounds.get(CONDITION)}
    return timing.row(taken, CONDITION, UNIT, **row)


def main() -> None:
    """Measure and print."""
    given = timing.options(__doc__, rounds=15)
    torch.set_num_threads(1)
    makers = (organism,) if given.quick else (marian, bert, organism)
    timing.tell([measure(make(), given.rounds) for make in makers], given.json)


if __name__ == "__main__":
    main()
