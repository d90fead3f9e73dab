"""What cutting heads buys in time: ``python -m headtools.organism.latency`` (``make latency``).

Times the encoder with all heads and with some of them cut, at several lengths and batch sizes, and counts the
multiplications of both. Two encoders: the organism's (width 128), and one of random weights with the sizes of
Transformer-base (width 512, Vaswani et al. 2017). Processor time of one thread, the models taking turns, so that a busy
machine slows all of them alike. What it finds goes into ``assets/latency.json``.

>>> sorted({row["model"] for row in latency()["rows"]})
['Transformer-base', 'organism']
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools.heads.files import read_json
from headtools.organism.publish import ASSETS, write
from headtools.sparse.curves import random_order

if TYPE_CHECKING:
    import pandas as pd

FILE = ASSETS / "latency.json"
LENGTHS, ROWS, KEPT = (16, 64, 128), (1, 8, 32), (24, 12, 4)  # tokens, sentences a batch, of 48 heads
MOST = 1_024  # tokens a batch
TURNS = 25


def multiplications(heads: int, length: int, width: int, inner: int, head_width: int) -> int:
    """Return how many numbers an encoder layer with ``heads`` heads multiplies for one sentence of ``length`` tokens.

    Projections to query, key, value and back, scores, weighted sums, and the two matrices of the feed-forward part.

    >>> multiplications(heads=8, length=10, width=128, inner=256, head_width=16)
    1336320
    """
    attention = heads * (4 * length * width * head_width + 2 * length * length * head_width)
    return attention + 2 * length * width * inner


def transformer_base() -> nn.Module:
    """Return a translation model with the sizes of Transformer-base and random weights; only its encoder matters."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=100, decoder_vocab_size=100, d_model=512, encoder_layers=6, decoder_layers=1,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=2048, decoder_ffn_dim=8,
        max_position_embeddings=512, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0,
    )  # fmt: skip
    return MarianMTModel._from_config(config, attn_implementation="eager").eval()


def cut(model: nn.Module, kept: int) -> nn.Module:
    """Return a copy whose encoder keeps ``kept`` heads, drawn at random."""
    small = copy.deepcopy(model)
    heads = random_order(ht.sites(model)["encoder"], seed=0)
    ht.prune(small, heads[: len(heads) - kept])
    return small


def ideal(model: nn.Module, kept: int, length: int) -> float:
    """Return the share of an encoder's multiplications that is left with ``kept`` of its heads."""
    config, found = model.config, ht.sites(model)["encoder"]
    sizes = {"length": length, "width": config.d_model, "inner": config.encoder_ffn_dim,
             "head_width": found.all[0].head_dim}  # fmt: skip
    layers, heads = len(found), found.n_heads
    rest = layers * multiplications(0, **sizes)
    per_head = multiplications(1, **sizes) - multiplications(0, **sizes)
    return (rest + kept * per_head) / (rest + heads * per_head)


@torch.no_grad()
def in_turns(models: Sequence[nn.Module], length: int, rows: int, turns: int = TURNS) -> list[list[float]]:
    """Return processor seconds of each model on the same batch, ``turns`` times each, one model after the other."""
    ids = torch.randint(2, 90, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    encoders: list[Callable] = [model.get_encoder() for model in models]
    seconds: list[list[float]] = [[] for _ in models]
    for turn in range(turns + 1):
        for encoder, told in zip(encoders, seconds, strict=True):
            began = time.process_time()
            encoder(input_ids=ids, attention_mask=mask)
            if turn:  # the first warms up
                told.append(time.process_time() - began)
    return seconds


def measure(
    lengths: Sequence[int] = LENGTHS, rows: Sequence[int] = ROWS, kept: Sequence[int] = KEPT, turns: int = TURNS
) -> list[dict]:
    """Return rows fit for JSON: ``model``, ``length``, ``rows``, ``kept``, ``milliseconds``, ``time`` and ``ideal``.

    ``milliseconds`` is the median of the uncut encoder, ``time`` the share of it that the cut one takes, ``low`` and
    ``high`` the quartiles of that share over turns, ``ideal`` the share of the multiplications.
    """
    told = []
    for name, model in (("organism", ht.load()[0]), ("Transformer-base", transformer_base())):
        models = [model, *(cut(model, k) for k in kept)]
        cases = [(length, n) for length in lengths for n in rows if length * n <= MOST]
        for length, n in tqdm(cases, desc=name):
            whole, *others = in_turns(models, length, n, turns)
            for k, seconds in zip(kept, others, strict=True):
                shares = [a / b for a, b in zip(seconds, whole, strict=True)]
                low, _, high = statistics.quantiles(shares, n=4)
                told.append({
                    "model": name, "length": length, "rows": n, "kept": k,
                    "milliseconds": round(1e3 * statistics.median(whole), 2),
                    "time": round(statistics.median(seconds) / statistics.median(whole), 3),
                    "low": round(low, 3), "high": round(high, 3), "ideal": round(ideal(model, k, length), 3),
                })  # fmt: skip
    return told


def latency(file: Path = FILE) -> dict:
    """Return what the command measured: ``threads``, ``processor`` and ``rows``."""
    return read_json(file, "rows")


def frame(file: Path = FILE) -> "pd.DataFrame":
    """Return the rows of :func:`measure` as a table.

    >>> sorted(frame().kept.unique().tolist())
    [4, 12, 24]
    """
    import pandas as pd

    return pd.DataFrame(latency(file)["rows"])


def main(words: list[str] | None = None) -> None:
    """The command: time, print, keep."""
    import platform

    parser = argparse.ArgumentParser(prog="python -m headtools.organism.latency", description=__doc__)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    rows = measure(turns=options.turns)
    write({"threads": 1, "processor": platform.machine(), "torch": torch.__version__, "rows": rows}, options.file)
    print(frame(options.file).to_string(index=False))


if __name__ == "__main__":
    main()
