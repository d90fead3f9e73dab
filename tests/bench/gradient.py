"""What importance by gradient costs, against the forward pass and the usual way to get it: ``make bench``.

    python tests/bench/gradient.py [--rounds 7] [--json FILE] [--check]

``gradient`` gives the slope of every example's own loss with every gate. It needs a forward pass and the backward pass
of the activations: of the two products of a linear layer's backward pass the one for the weights is left out, so that
two forward passes are the bound by count of operations, and attention's backward pass, which has no weights, adds a few
hundredths. The usual way multiplies every head by a mask that learns and calls ``backward()`` on the batch's mean loss,
with all weights in the graph: three forward passes, for another and lesser number. Forward, ours and the usual way take
turns in one process, on one thread; what is reported is the median over rounds of the ratio of their CPU times to the
forward pass. Weights are random. With ``--check`` the exit status is 1 when ours is over its bound.
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

import headtools as ht

BOUND = 2.15
OURS, USUAL = "gradient", "masks that learn, all weights"


def bert() -> overhead.Subject:
    """BERT-base as a classifier of two, 8 texts of 64 tokens."""
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=1000)).eval()
    batch = {"input_ids": torch.randint(10, 1000, (8, 64)), "labels": torch.arange(8) % 2}
    return overhead.Subject("BERT-base, 12 layers, 8 x 64 tokens", model, batch, {OURS: BOUND})


def marian() -> overhead.Subject:
    """The size of Marian's base models (512, 8 heads, 2,048, 6 + 6 layers); 8 pairs of 64 tokens."""
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=1000, d_model=512, encoder_layers=6, decoder_layers=6, encoder_attention_heads=8,
        decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=2048, pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    ids = torch.randint(10, 1000, (2, 8, 64))
    batch = {"input_ids": ids[0], "labels": ids[1]}
    name = "Marian base, 6 + 6 layers, 8 x 64 tokens"
    return overhead.Subject(name, transformers.MarianMTModel(config).eval(), batch, {OURS: BOUND})


def ways(subject: overhead.Subject) -> dict[str, Callable[[], None]]:
    """The forward pass, ours, and the usual way, as functions to call again and again."""
    model, batch = subject.model, subject.batch

    def forward() -> None:
        with torch.no_grad():
            model(**batch)

    def usual() -> None:
        masks = {site.key: torch.ones(site.heads, requires_grad=True) for site in ht.sites(model)}
        with ht.gates(model, masks):
            model(**batch).loss.backward()
        model.zero_grad(set_to_none=True)

    return {"forward": forward, OURS: lambda: ht.gradient(model, batch), USUAL: usual}


def seconds(step: Callable[[], None]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(subject: overhead.Subject, rounds: int) -> list[dict]:
    """One row for each way: median milliseconds, median ratio to the forward pass with its quartiles, bound."""
    steps = ways(subject)
    for step in steps.values():
        seconds(step)  # warm-up
    names = list(steps)
    taken = [{name: seconds(steps[name]) for name in (names if n % 2 == 0 else names[::-1])} for n in range(rounds)]
    rows = []
    for name in (OURS, USUAL):
        low, middle, high = statistics.quantiles([took[name] / took["forward"] for took in taken], n=4)
        rows.append({
            "model": subject.name, "condition": name, "attention": subject.model.config._attn_implementation,
            "plain_ms": 1000 * statistics.median(took["forward"] for took in taken),
            "ms": 1000 * statistics.median(took[name] for took in taken),
            "ratio": middle, "low": low, "high": high, "bound": subject.bounds.get(name),
        })  # fmt: skip
    return rows


def main() -> int:
    """Measure, print, and give the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the JSON there instead of printing it")
    parser.add_argument("--check", action="store_true", help="fail when a bound is broken")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for make in (bert, marian) for row in measure(make(), options.rounds)]
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
