"""What a training step with Hard Concrete gates costs, against the plain training step: ``make bench``.

    python tests/bench/gates.py [--rounds 15] [--json FILE] [--check]

A plain step is the one you would write yourself: the loss, its gradient, clipping, AdamW over all weights. The step
with gates does the same under a gate on every head of the model, drawn anew, with the price on open gates and the
update of log alpha. Both train the same model, the one right after the other in changing order, on one thread; what is
reported is the median over such pairs of the ratio of their CPU times. The bound holds for the two models of ordinary
width. In the organism, whose layers are a quarter as wide, a step takes some 55 milliseconds, 3 of them for multiplying
z at its 18 sites, there and back; its row has no bound. Prints a Markdown table and then JSON; exit status 1 with
``--check`` when a ratio is over its bound.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import overhead
import torch
import transformers
from torch import nn

import headtools as ht
from headtools.organism.pruning import TrainingBatches
from headtools.sparse.loop import CLIP, Loop
from headtools.sparse.training import learning, trained_weights

BOUND = 1.05
RATE = 1e-5  # of the weights, so low that the model stays what it is
SETTINGS = {"weight_rate": RATE, "gate_rate": 1e-3, "steps": 1, "ramp": 0.0, "decay": 0.0, "seed": 0, "per": "batch"}
CONDITION = "step with gates"


def marian() -> overhead.Subject:
    """The size of Marian's and Voita's base models (512, 8 heads, 2,048, 6 + 6 layers), random weights; 16 pairs."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=1000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=0, decoder_start_token_id=0,
        dropout=0.0,
    )  # fmt: skip
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
    loop = Loop(model, trained_weights(model, "all"), ht.HardConcrete(ht.sites(model)), [0.01], None, SETTINGS)
    return lambda: loop.step(batch, 0)


def seconds(step: Callable[[], None]) -> float:
    """CPU seconds of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(subject: overhead.Subject, rounds: int) -> dict:
    """Median milliseconds of both steps, the median of their ratio with its quartiles, and the bound."""
    with learning(subject.model, list(subject.model.parameters())):
        pair = plain_step(subject.model, subject.batch), gated_step(subject.model, subject.batch)
        for step in pair * 2:
            seconds(step)  # warm-up: the optimizers make their moments
        taken = []
        for n in range(rounds):
            both = {step: seconds(step) for step in (pair if n % 2 == 0 else pair[::-1])}
            taken.append((both[pair[0]], both[pair[1]]))
    low, middle, high = statistics.quantiles([ours / base for base, ours in taken], n=4)
    return {
        "model": subject.name, "condition": CONDITION, "attention": subject.model.config._attn_implementation,
        "plain_ms": 1000 * statistics.median(base for base, _ in taken),
        "ms": 1000 * statistics.median(ours for _, ours in taken),
        "ratio": middle, "low": low, "high": high,
        "bound": subject.bounds.get(CONDITION),
    }  # fmt: skip


def main() -> int:
    """Measure, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the JSON there instead of printing it")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    parser.add_argument("--quick", action="store_true", help="two rounds of something small: does it run at all?")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.quick:
        options.rounds = 2
    rows = [measure(make(), options.rounds) for make in ((organism,) if options.quick else (marian, bert, organism))]
    print(overhead.markdown(rows))
    found = {"torch": torch.__version__, "transformers": transformers.__version__,
             "python": platform.python_version(), "machine": platform.machine(), "rounds": options.rounds,
             "rows": rows}  # fmt: skip
    text = json.dumps(found, indent=1)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    broken = overhead.over(rows)
    for row in broken:
        print(f"over its bound of {row['bound']}: {row['model']}: {row['ratio']:.3f}", file=sys.stderr)
    return 1 if broken and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
