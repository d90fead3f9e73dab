"""How much time does pruning heads save? ``python -m recipes.latency``

Times the encoder with all heads and with some of them pruned, at several lengths and batch sizes, and counts the
multiplications of both. Two encoders: the organism's (width 128), and one of random weights with the sizes of
Transformer-base (width 512, Vaswani et al. 2017). Processor time of one thread; the models are timed in turns, so that
other load on the machine slows all of them equally. Result: ``latency.json``.
"""

import copy
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
import typer
from torch import nn
from tqdm import tqdm
from transformers import MarianConfig, MarianMTModel

import headtools as ht
from recipes._results import ASSETS, write

FILE = ASSETS / "latency.json"
LENGTHS, ROWS, KEPT = (16, 64, 128), (1, 8, 32), (24, 12, 4)  # tokens, sentences per batch, heads kept of 48
MAX_TOKENS = 1_024  # per batch
TURNS = 25


def multiplications(heads: int, length: int, width: int, inner: int, head_width: int) -> int:
    """Return the number of multiplications in an encoder layer with ``heads`` heads for ``length`` tokens.

    Counted are the four projections, attention scores, weighted sums, and the two matrices of the feed-forward network.

    >>> multiplications(heads=8, length=10, width=128, inner=256, head_width=16)
    1336320
    """
    # Four projections of length x width x head_width each, then scores and weighted sums of length² x head_width each.
    attention = heads * (4 * length * width * head_width + 2 * length * length * head_width)
    return attention + 2 * length * width * inner


def transformer_base() -> nn.Module:
    """Return a translation model with the sizes of Transformer-base and random weights; only its encoder matters."""
    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=100,
        decoder_vocab_size=100,
        d_model=512,
        encoder_layers=6,
        decoder_layers=1,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=8,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    return MarianMTModel._from_config(config, attn_implementation="eager").eval()


def pruned_copy(model: nn.Module, kept: int) -> nn.Module:
    """Return a copy whose encoder keeps ``kept`` heads, drawn at random."""
    small = copy.deepcopy(model)
    heads = ht.random_order(ht.sites(model)["encoder"], seed=0)
    if kept < len(heads):
        ht.prune(small, heads[: len(heads) - kept])
    return small


def ideal(model: nn.Module, kept: int, length: int) -> float:
    """Return the fraction of an encoder's multiplications that remains with ``kept`` of its heads."""
    config, sites = model.config, ht.sites(model)["encoder"]
    sizes = {
        "length": length,
        "width": config.d_model,
        "inner": config.encoder_ffn_dim,
        "head_width": sites.all[0].head_dim,
    }
    without_heads = len(sites) * multiplications(0, **sizes)
    per_head = multiplications(1, **sizes) - multiplications(0, **sizes)
    return (without_heads + kept * per_head) / (without_heads + sites.n_heads * per_head)


@torch.no_grad()
def time_in_turns(models: Sequence[nn.Module], length: int, rows: int, turns: int) -> list[list[float]]:
    """Return processor seconds of each model on the same batch, ``turns`` times each, one model after the other."""
    ids = torch.randint(2, 90, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    encoders = [model.get_encoder() for model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for turn in range(turns + 1):
        for encoder, encoder_seconds in zip(encoders, seconds, strict=True):
            began = time.process_time()
            encoder(input_ids=ids, attention_mask=mask)
            if turn:  # the first turn is a warm-up
                encoder_seconds.append(time.process_time() - began)
    return seconds


def measure(
    turns: int, lengths: Sequence[int] = LENGTHS, rows: Sequence[int] = ROWS, kept: Sequence[int] = KEPT
) -> list[dict]:
    """Return a row for each encoder, length, batch size and number of heads kept.

    ``milliseconds`` is the median of the uncut encoder, ``time`` the fraction of it that the cut one takes, ``low`` and
    ``high`` the quartiles of that fraction over turns, ``ideal`` the fraction of the multiplications.
    """
    results = []
    for name, model in (("organism", ht.load()[0]), ("Transformer-base", transformer_base())):
        models = [model, *(pruned_copy(model, k) for k in kept)]
        cases = [(length, n) for length in lengths for n in rows if length * n <= MAX_TOKENS]
        for length, n in tqdm(cases, desc=name):
            uncut, *cut = time_in_turns(models, length, n, turns)
            for k, seconds in zip(kept, cut, strict=True):
                low, _, high = statistics.quantiles([a / b for a, b in zip(seconds, uncut, strict=True)], n=4)
                results.append(
                    {
                        "model": name,
                        "length": length,
                        "rows": n,
                        "kept": k,
                        "milliseconds": round(1e3 * statistics.median(uncut), 2),
                        "time": round(statistics.median(seconds) / statistics.median(uncut), 3),
                        "low": round(low, 3),
                        "high": round(high, 3),
                        "ideal": round(ideal(model, k, length), 3),
                    }
                )
    return results


def main(turns: int = TURNS, file: Path = FILE) -> None:
    """Measure, write and print the table."""
    torch.set_num_threads(1)
    rows = measure(turns)
    write({"threads": 1, "processor": platform.machine(), "torch": torch.__version__, "rows": rows}, file)
    print(pd.DataFrame(rows).to_string(index=False))


if __name__ == "__main__":
    typer.run(main)
