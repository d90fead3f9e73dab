"""Statistics of attention on long texts: time beside a pass with maps and one without, and what memory each takes.

    python tools/bench/long_texts.py [--rounds 3] [--json FILE] [--quick]
    python tools/bench/long_texts.py --memory            # peaks against length, one process each, as a table

``ht.statistics`` with the largest weight, the entropy and the previous token, of all heads. The
unit is transformers' own pass with ``output_attentions=True`` (two layers, so that its maps fit), which reads nothing
off its maps. Peaks are by how much the largest memory of a process grew during the pass.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import timing
import torch
import transformers
from torch import nn

import headtools as ht
from headtools.importance.statistics import entropy, largest, offset

WANTED = {"confidence": largest, "entropy": entropy, "previous": offset(-1)}
BOUND, TOKENS = 1.6, 2048
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SMOL = {"hidden_size": 576, "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536}
WORKS = ("plain forward", "ht.statistics", "eager maps", "TransformerLens")  # whose peaks are compared
HERE = Path(__file__).parent
PEER = HERE.parents[1] / ".venv-peers" / "transformer_lens" / "bin" / "python"  # made by tools/peers.sh
WHY = "reading rows beside making them"


def model_of(shape: str, tokens: int) -> nn.Module:
    """Two random layers of BERT-base's or SmolLM2-135M's width."""
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "max_position_embeddings": tokens, "vocab_size": 64}
    if shape == "SmolLM2":
        return transformers.LlamaModel(transformers.LlamaConfig(**SMOL, **sizes)).eval()
    return transformers.BertModel(transformers.BertConfig(**sizes), add_pooling_layer=False).eval()


def run(work: str, model: nn.Module, ids: torch.Tensor) -> object:
    """One of the three works."""
    if work == "ht.statistics":
        return ht.statistics(model, {"input_ids": ids}, WANTED)
    model.set_attn_implementation("eager" if work == "eager maps" else "sdpa")
    with torch.no_grad():
        return model(ids, output_attentions=work == "eager maps", use_cache=False)


def measure(rounds: int, tokens: int) -> list[dict]:
    """Rows of both shapes and units."""
    rows = []
    for shape in ("BERT-base", "SmolLM2"):
        model, ids = model_of(shape, tokens), torch.randint(3, 60, (1, tokens))
        works = ("plain forward", "eager maps", "ht.statistics")
        taken = timing.interleaved({work: partial(run, work, model, ids) for work in works}, rounds)
        about = {"model": f"{shape} width, 2 layers, {tokens} tokens", "counted": None, "why": WHY}
        rows.append(timing.row(taken, "ht.statistics", "eager maps", bound=BOUND, **about))
        rows.append(timing.row(taken, "ht.statistics", "plain forward", **about))
    return rows


def peak(work: str, shape: str, tokens: int) -> float:
    """By how many MB the peak of this process grows, after a short pass of the same kind."""
    model, ids = model_of(shape, tokens), torch.randint(3, 60, (1, tokens))
    run(work, model, ids[:, :64])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(work, model, ids)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def in_a_process(work: str, shape: str, tokens: int) -> str:
    """Return a peak, measured in a process of its own; that of TransformerLens in its own environment."""
    if work == "TransformerLens":
        command = [str(PEER), str(HERE / "peers" / "long_with_transformer_lens.py"), json.dumps([shape, tokens])]
    else:
        command = [sys.executable, __file__, "--point", json.dumps([work, shape, tokens])]
    paths = os.pathsep.join(map(str, (HERE, HERE / "peers", HERE.parents[1])))
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
    return done.stdout.strip()


def memory(lengths: tuple = LENGTHS) -> None:
    """Print the table of peaks; what would need more than 6 GB of maps is left out."""
    print(f"| shape | tokens | {' | '.join(f'{work}, MB' for work in WORKS)} |\n|{'---|' * (2 + len(WORKS))}")
    for shape, heads in (("BERT-base", 12), ("SmolLM2", 9)):
        for tokens in lengths:
            left_out = ["eager maps", "TransformerLens"] if 4 * heads * 4 * tokens**2 > 6e9 else []
            left_out += [] if PEER.exists() else ["TransformerLens"]
            cells = ["-" if work in left_out else in_a_process(work, shape, tokens) for work in WORKS]
            print(f"| {shape} | {tokens:,} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    if "--point" in sys.argv:
        print(f"{peak(*json.loads(sys.argv[-1])):,.0f}")
    elif "--memory" in sys.argv:
        memory()
    else:
        given = timing.options(__doc__, rounds=3)
        timing.tell(measure(given.rounds, 300 if given.quick else TOKENS), given.json)


if __name__ == "__main__":
    main()
