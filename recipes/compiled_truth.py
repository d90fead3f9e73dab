"""Does it hold in a model that a compiler wrote? ``python -m recipes.compiled_truth``

The circuits of :mod:`recipes.truth` were written by the authors of the measures. Here an independent program,
torchwright 0.2.0, turns the same kind of circuit into an ordinary Phi-3 checkpoint, with rotary positions, RMSNorm and
heads of its own for moving and clearing what it stores. Which heads matter is not taken from its plan but from removal:
the circuit is every head whose removal alone costs more than a tenth of a nat, and it is right if the loss stays as it
is without all others. Needs ``pip install torchwright==0.2.0``. Results: ``compiled_truth.json``, with a digest of each
model.
"""

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer

import headtools as ht
from headtools.heads.record import contributions
from headtools.heads.scores import HeadScores
from headtools.importance.loss import each_loss
from recipes._results import ASSETS, write
from recipes.truth import Circuit, auroc, gradient, leave_one_out, relevance

FILE = ASSETS / "compiled_truth.json"
LETTERS = "abcdefghijklmnop"
EXAMPLES, PERIOD, SEEDS, NEEDED = 64, 10, 3, 0.1
# name: how sharp the softmax of the induction head is, which matches a symbol with the one before
CIRCUITS = {"induction, soft": 5.0, "induction": 50.0, "induction, sharp": 500.0}


def compiled(gain: float, folder: Path) -> None:
    """Compile an induction circuit beside two decoys that write a twentieth of what it writes."""
    from torchwright import compile_hf_bundle  # here, as only this needs it
    from torchwright.graph import RopeConfig
    from torchwright.ops.attention_ops import attend_argmax_dot, attend_to_offset
    from torchwright.ops.inout_nodes import create_onehot_embedding
    from torchwright.ops.linear import add, add_scaled_nodes

    symbol = create_onehot_embedding(["<bos>", "<eos>", *LETTERS])
    rope = RopeConfig(d_head=64, max_positions=128)
    before = attend_to_offset(rope, symbol, -1)
    found = attend_argmax_dot(rope, symbol, before, symbol, match_gain=gain)
    decoys = add(attend_to_offset(rope, symbol, -2), attend_to_offset(rope, symbol, -3))
    out = add_scaled_nodes(1.0, found, 0.05, decoys)
    compile_hf_bundle(out, symbol, str(folder), d=512, d_head=64, n_heads=8, max_seq_len=128, trim_heads=False)


def digest(folder: Path) -> str:
    """Return the SHA-256 of all weights of a checkpoint, its files in the order of their names."""
    sums = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        sums.update(path.read_bytes())
    return sums.hexdigest()[:16]


def batch_of(tokenizer: object, seed: int) -> dict[str, Tensor]:
    """Return sequences of different letters, twice; the second copy is to be predicted."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.tensor(tokenizer.convert_tokens_to_ids(list(LETTERS)))
    half = torch.stack([letters[torch.randperm(len(letters), generator=generator)[:PERIOD]] for _ in range(EXAMPLES)])
    ids = torch.nn.functional.pad(torch.cat([half, half], 1), (1, 0), value=tokenizer.convert_tokens_to_ids("<bos>"))
    labels = torch.full_like(ids, -100)
    labels[:, PERIOD + 1 : -1] = ids[:, PERIOD + 2 :]  # aligned: what the position is to say
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def norm_written(model: nn.Module, batch: dict, *_: object) -> HeadScores:
    """The mean length of what a head adds to the residual stream."""
    with torch.no_grad(), ht.record(model, want="z") as seen:
        model(**{key: value for key, value in batch.items() if key != "labels"})
    rows = {site.key: contributions(site, seen[site].z).norm(dim=-1).mean((0, 1)) for site in ht.sites(model)}
    return HeadScores(rows, "norm")


MEASURES: dict[str, Callable] = {
    "gradient": gradient(),
    "gradient by secant": gradient(softmax="secant"),
    "leave one out, zero": leave_one_out("zero"),
    "leave one out, mean": leave_one_out("mean"),
    "leave one out, resample": leave_one_out("resample"),
    "confidence": lambda model, batch, *_: ht.confidence(model, batch),
    "norm of what is written": norm_written,
    **{f"relevance, {rules}": relevance(rules) for rules in ("attnlrp", "cp", "epsilon")},
}


def losses(model: nn.Module, batch: dict, off: list[tuple[str, int, int]]) -> float:
    """Return the mean loss without some heads."""
    with torch.no_grad(), ht.ablate(model, off):
        return each_loss(model, batch, "aligned").mean().item()


def truth(model: nn.Module, batch: dict) -> tuple[list[tuple[str, int, int]], dict[str, float]]:
    """Return the circuit, by removal, and the losses that say whether it is one."""
    every = [(site.kind, site.layer, head) for site in ht.sites(model) for head in range(site.heads)]
    with torch.no_grad():
        full = each_loss(model, batch, "aligned").mean().item()
    own = [head for head in every if losses(model, batch, [head]) - full > NEEDED]
    others = [head for head in every if head not in own]
    told = {"full": full, "without_others": losses(model, batch, others), "without": losses(model, batch, own)}
    return own, told | {"without_one": min(losses(model, batch, [head]) for head in own)}


def main(seeds: int = SEEDS, file: Annotated[Path, typer.Option(help="where results go")] = FILE) -> None:
    """Compile, check the truth, measure, write the table."""
    torch.set_num_threads(1)
    circuits, runs = [], []
    for name, gain in CIRCUITS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "model"
            compiled(gain, folder)
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
            tokenizer, weights = AutoTokenizer.from_pretrained(folder), digest(folder)
        own, told = truth(model, batch_of(tokenizer, 0))
        heads = sum(site.heads for site in ht.sites(model))
        about = {
            "circuit": name,
            "gain": gain,
            "digest": weights,
            "heads": heads,
            "own": [list(head[1:]) for head in own],
        }
        circuits.append(about | {key: round(value, 4) for key, value in told.items()})
        for seed in range(seeds):
            batch = batch_of(tokenizer, seed)
            for measure, of in tqdm(MEASURES.items(), desc=f"{name}, seed {seed}"):
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="the softmax of")  # that it is saturated is what is tried
                    scores = of(model, batch, {}, seed)  # no measure here takes a counterfactual batch
                lowest = min(scores.values[head[:2]][head[2]].item() for head in own)
                highest = max(
                    float(value) for head, value in zip(scores, scores.flat(), strict=True) if head not in own
                )
                row = {
                    "circuit": name,
                    "measure": measure,
                    "seed": seed,
                    "auroc": round(auroc(scores, Circuit(model, [head[1:] for head in own])), 4),
                }
                runs.append(row | {"lowest": float(f"{lowest:.3g}"), "highest_other": float(f"{highest:.3g}")})
    about = {"compiler": "torchwright 0.2.0", "examples": EXAMPLES, "seeds": seeds, "needed": NEEDED}
    write({"setting": about, "torch": torch.__version__, "circuits": circuits, "runs": runs}, file, row_key="circuit")


if __name__ == "__main__":
    typer.run(main)
