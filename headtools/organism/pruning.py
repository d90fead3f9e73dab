"""How many encoder heads the organism needs: ``python -m headtools.organism.pruning`` (``make pruning``).

Two answers: a curve, with heads switched off in gradient order and nothing trained, and Hard Concrete gates, with
which the model trains on while heads close. Prints the model card's tables as Markdown and keeps them in
``assets/pruning.json``, each row of gates as soon as it is measured; rows of other penalties, seeds and weights stay.
"""

import argparse
import math
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads.files import read_json
from headtools.heads.progress import say
from headtools.importance.gradient import gradient
from headtools.organism import accuracy
from headtools.organism.objective import arguments, encode
from headtools.organism.publish import ASSETS, changed
from headtools.organism.score import bleu
from headtools.organism.train import Recipe, batches
from headtools.organism.vocabulary import vocabulary
from headtools.roles.corpus import Sentence
from headtools.sparse.curves import curves, random_order
from headtools.sparse.fit import fit_gates

FILE = ASSETS / "pruning.json"
SHARES = (1.0, 0.875, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0)  # of the encoder's heads, kept
RANDOM_ORDERS = 5
CURVE_ON = 200  # sentences
PENALTIES = (0.0, 0.02, 0.05)  # nats for one open gate; 0 is the control: as many steps, no price
STEPS, DECAY = 1_000, 0.3  # steps, and the share of them at the end in which the learning rates fall to 0
SENTENCES = 500  # of the test split
FRESH = 500_000  # chunks of training sentences from here on: the training of the organism ends long before


class TrainingBatches:
    """Batches of training sentences by step, as ``fit_gates`` takes them: about ``tokens`` padded tokens each.

    >>> batch = TrainingBatches(seed=1, tokens=128)(0)
    >>> sorted(batch)
    ['attention_mask', 'decoder_input_ids', 'input_ids', 'labels']
    >>> len(batch["input_ids"]) * (batch["input_ids"].shape[1] + batch["labels"].shape[1]) <= 128
    True
    """

    def __init__(self, seed: int = 0, tokens: int = Recipe.tokens) -> None:
        self.recipe = Recipe(seed=seed, tokens=tokens, chunk=512)
        self.chunk, self.first, self.inside = -1, 0, []
        self.number = {word: i for i, word in enumerate(vocabulary())}

    def __call__(self, step: int) -> dict[str, Tensor]:
        """Return the batch of a step, whichever step was asked for before."""
        if step < self.first:
            self.chunk, self.first, self.inside = -1, 0, []
        while step >= self.first + len(self.inside):
            self.first += len(self.inside)
            self.chunk += 1
            self.inside = batches(self.recipe, FRESH + self.chunk, short=False)
        return arguments(encode(self.inside[step - self.first], self.number))


def encoder_curve(model: nn.Module, validation: Sequence[Sentence], test: Sequence[Sentence]) -> list[dict]:
    """Token accuracy with encoder heads switched off, those of least gradient importance first, nothing trained.

    Importance is measured on ``validation``, accuracy on ``test``. One dict for each of ``SHARES``: ``kept`` heads,
    their ``share``, ``accuracy`` with the ends ``low`` and ``high`` of its 95 % interval, and ``random``, the mean
    accuracy over five random orders, of which ``best`` is the greatest.

    >>> few = ht.corpus("organism", limit=4)
    >>> [point["kept"] for point in encoder_curve(ht.load()[0], few, few)]
    [48, 42, 36, 24, 18, 12, 6, 0]
    """
    heads = ht.sites(model)["encoder"]
    orders = {"gradient": gradient(model, accuracy.batches(validation), sites=["encoder"])}
    orders |= {str(seed): random_order(heads, seed) for seed in range(RANDOM_ORDERS)}
    frame = curves(model, orders, lambda model: accuracy.token_accuracy(model, test), SHARES)
    blind = frame[frame.order != "gradient"].groupby("kept").metric
    found = frame[frame.order == "gradient"].set_index("kept")
    return [
        {"kept": int(kept), "share": round(kept / heads.n_heads, 4), "accuracy": round(row.metric, 4),
         "low": round(row.low, 4), "high": round(row.high, 4), "random": round(blind.mean()[kept], 4),
         "best": round(blind.max()[kept], 4)}
        for kept, row in found.iterrows()
    ]  # fmt: skip


def gates_kept(
    model: nn.Module,
    tokenizer: object,
    penalty: float,
    *,
    weights: str = "encoder",
    steps: int = STEPS,
    decay: float = DECAY,
    seed: int = 0,
    sentences: int = SENTENCES,
    run: Path | None = None,
    quiet: bool = True,
) -> dict:
    """Train gates on the encoder's heads, cut those that closed, and translate: one row of the table, fit for JSON.

    ``weights`` is what learns with the gates: "encoder" freezes the decoder, "all" does not. The model is left as it
    is. Returns ``kept`` (labels such as "5.1"), ``bleu``, ``low`` and ``high`` on the first ``sentences`` test
    sentences, ``seconds`` of training, ``decided`` (how many gates are 0 or 1 with a probability of .9 or more),
    ``with_role`` (how many of the kept heads have a role, by ``scores.json``), ``chance`` (how many of as many heads
    drawn at random would have one) and ``p`` (how likely a random draw has as many or more).

    >>> row = gates_kept(*ht.load(), penalty=0.02, steps=1, sentences=4)
    >>> len(row["kept"]), row["chance"] == row["with_role"]
    (48, True)
    """
    fit = fit_gates(
        model, TrainingBatches(seed), penalty, steps=steps, over="encoder", weights=weights, decay=decay, seed=seed,
        run=run, quiet=quiet,
    )  # fmt: skip
    score, low, high = bleu(fit.cut().eval(), tokenizer, ht.corpus("organism", "test", sentences))
    kept = [f"{layer}.{head}" for _, layer, head in fit.open_heads]
    sure = torch.maximum(fit.gates.p_zero(), fit.gates.p_one()) >= 0.9
    row = {"penalty": penalty, "weights": weights, "seed": seed, "steps": steps, "sentences": sentences, "kept": kept,
           "bleu": round(score, 4), "low": round(low, 4), "high": round(high, 4), "seconds": round(fit.seconds, 1),
           "decided": int(sure.sum())}  # fmt: skip
    return row | against_chance(kept, heads_with_role(), len(fit.gates.heads))


@lru_cache
def heads_with_role() -> frozenset[str]:
    """Labels of the encoder heads that have a role, by the shipped ``scores.json``."""
    return frozenset(read_json(ASSETS / "scores.json", "heads")["heads"])


def against_chance(kept: Collection[str], with_role: Collection[str], n: int) -> dict[str, float]:
    """Count the kept heads that have a role, beside a random choice of as many of all ``n`` (hypergeometric).

    >>> against_chance(["0.0", "0.1"], ["0.0", "0.1"], 4)
    {'with_role': 2, 'chance': 1.0, 'p': 0.166667}
    """
    k, r = len(kept), len(with_role)
    hit = len(set(kept) & set(with_role))
    more = sum(math.comb(r, i) * math.comb(n - r, k - i) for i in range(hit, min(k, r) + 1))
    return {"with_role": hit, "chance": round(k * r / n, 2), "p": round(more / math.comb(n, k), 6)}


def markdown(told: Mapping[str, list[dict]]) -> str:
    """Return the tables of what :func:`main` keeps: the curve, and the rows of gates."""
    lines = ["| encoder heads kept | accuracy | 95 % | random orders: mean, best |", "|---|---|---|---|"]
    lines += [f"| {p['kept']} | {p['accuracy']:.3f} | {p['low']:.3f}–{p['high']:.3f} "
              f"| {p['random']:.3f}, {p['best']:.3f} |" for p in told["curve"]]  # fmt: skip
    header = "what learned | steps | penalty | seed | heads kept | BLEU | 95 % | with a role (chance) | p | kept"
    lines += ["", f"| {header} |",
              "|" + "---|" * 10]  # fmt: skip
    for r in told["gates"]:
        learned = "encoder, gates" if r["weights"] == "encoder" else "all, gates"
        kept = " ".join(r["kept"]) if len(r["kept"]) <= 16 else "…"
        role = f"{r['with_role']} ({r['chance']:.1f}) | {r['p']:.2g}"
        lines.append(
            f"| {learned} | {r['steps']:,} | {r['penalty']:g} | {r['seed']} | {len(r['kept'])} "
            f"| {r['bleu']:.1f} | {r['low']:.1f}–{r['high']:.1f} | {role} | {kept} |"
        )
    return "\n".join(lines)


def place(rows: list[dict], row: dict) -> list[dict]:
    """Return rows of gates with one more, or with one replaced, in order of weights, steps, seed and penalty."""

    def key(r: dict) -> tuple:
        return -len(r["weights"]), r["steps"], r["seed"], r["penalty"]  # "encoder" before "all"

    return sorted([*(r for r in rows if key(r) != key(row)), row], key=key)


def main(words: list[str] | None = None) -> None:
    """The command: the curve, then gates for every penalty, seed and choice of weights; print and keep the tables."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.pruning", description=__doc__)
    parser.add_argument("--penalty", nargs="*", type=float, default=PENALTIES)
    parser.add_argument("--weights", nargs="+", choices=("encoder", "all"), default=("encoder",))
    parser.add_argument("--seed", nargs="+", type=int, default=(0,))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--decay", type=float, default=DECAY, help="share of the steps in which the rates fall to 0")
    parser.add_argument("--limit", type=int, default=SENTENCES, help="test sentences translated")
    parser.add_argument("--file", type=Path, default=FILE, help="where the numbers go")
    parser.add_argument("--run", type=Path, help="folder of checkpoints, to go on after a stop")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    model, tokenizer = ht.load()
    curve = encoder_curve(model, *(ht.corpus("organism", split, CURVE_ON) for split in ("validation", "test")))
    told = changed(options.file, lambda told: {"gates": [], **told, "curve": curve})
    for seed in options.seed:
        for weights in options.weights:
            for penalty in options.penalty:
                run = options.run and options.run / f"{weights}-{penalty:g}-{seed}"
                row = gates_kept(model, tokenizer, penalty, weights=weights, steps=options.steps, decay=options.decay,
                                 seed=seed, sentences=options.limit, run=run, quiet=False)  # fmt: skip
                told = changed(options.file, lambda told, row=row: {**told, "gates": place(told["gates"], row)})
    say(markdown(told))


if __name__ == "__main__":
    main()
