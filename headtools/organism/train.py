"""Trains the organism: ``python -m headtools.organism.train`` (``make organism``).

Started again on the same folder, it goes on from the last checkpoint and ends at the same weights, bit for bit on the
same machine and thread count. ``--size half`` and ``--size double`` train the same language and width with 4 and 16
heads a layer. The finished model goes to ``RUN/model``, the shipped recipe's model and snapshots also to ``assets/``.
"""

import argparse
import json
import math
import random
from collections.abc import Collection
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

import headtools as ht
from headtools.organism import checkpoint, snapshots
from headtools.organism.grammar import SHORT, USUAL
from headtools.organism.language import sentences
from headtools.organism.objective import HEADS, Apprentice, encode
from headtools.organism.publish import ASSETS, publish
from headtools.organism.vocabulary import vocabulary
from headtools.roles.corpus import Sentence

# Heads a layer; the width stays, so that all sizes have the same number of weights.
SIZES = {"half": HEADS // 2, "whole": HEADS, "double": HEADS * 2}


@dataclass(frozen=True)
class Recipe:
    """One training run; lengths in optimizer steps, a batch in padded source and target tokens."""

    seed: int = 1
    steps: int = 9_000
    tokens: int = 1_024
    rate: float = 1.2e-3
    warmup: int = 400
    flat: float = 0.35  # share of the run before the rate falls along a cosine
    short: float = 0.10  # share of the run with short sentences only
    tag: float = 0.5  # weight of source-side tagging ...
    tag_until: float = 0.5  # ... for this share of the run
    guide: float = 1.0  # weight of guided alignment ...
    guide_late: float = 0.2  # ... and after tagging has stopped
    heads: int = HEADS
    without: tuple[str, ...] = ()  # heads cut before the first step, such as "encoder 5.1"
    chunk: int = 2_048  # sentences drawn and sorted by length at a time
    save_every: int = 250
    validate_on: int = 256  # sentences

    def rate_at(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, flat, then a cosine to a fiftieth."""
        flat = self.flat * self.steps
        down = max(0.0, (step - flat) / max(1.0, self.steps - flat))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * down)))


def batches(recipe: Recipe, chunk: int, short: bool) -> list[list[Sentence]]:
    """Batches of one chunk of training sentences, alike in length within a batch, in random order."""
    drawn = list(islice(sentences("train", SHORT if short else USUAL, recipe.seed * 1_000_003 + chunk), recipe.chunk))
    drawn.sort(key=lambda s: len(s.words))
    out: list[list[Sentence]] = [[]]
    for sentence in drawn:
        if out[-1] and 2 * (len(sentence.words) + 1) * (len(out[-1]) + 1) > recipe.tokens:
            out.append([])
        out[-1].append(sentence)
    random.Random(f"order {recipe.seed} {chunk}").shuffle(out)
    return out


def cut(model: nn.Module, without: Collection[str]) -> None:
    """Cut heads ("encoder 5.1") from a model that is yet to be trained, in place.

    A layer that loses all of them keeps a silent head for its shapes, whose weights are frozen, so that it stays silent
    when the rest learns. Raises ``ValueError`` for heads of cross-attention, which guided alignment needs all, and as
    ``prune`` does.

    >>> model = Apprentice().model
    >>> cut(model, [f"encoder 2.{head}" for head in range(8)])
    >>> ht.sites(model)["encoder", 2].empty, model.model.encoder.layers[2].self_attn.out_proj.weight.requires_grad
    (True, False)
    """
    if not without:
        return
    heads = [head_of(name) for name in without]
    if crossing := [name for name, head in zip(without, heads, strict=True) if head[0] == "cross"]:
        raise ValueError(f"guided alignment trains every cross head, so {crossing[0]} cannot be cut before training")
    ht.prune(model, heads)
    for name in silent(model):
        model.get_parameter(name).requires_grad_(False)


def silent(model: nn.Module) -> set[str]:
    """Return the names of parameters that belong to silent heads, and so must not learn."""
    empty = {id(site.module) for site in ht.sites(model) if site.empty}
    return {
        f"{place}.{name}"
        for place, module in model.named_modules() if id(module) in empty
        for name, _ in module.named_parameters() if name != "out_proj.bias"
    }  # fmt: skip


def head_of(name: str) -> tuple[str, int, int]:
    """Return the head of a name.

    >>> head_of("encoder 5.1")
    ('encoder', 5, 1)
    """
    kind, numbers = name.split()
    layer, head = numbers.split(".")
    return kind, int(layer), int(head)


@torch.no_grad()
def validate(apprentice: Apprentice, number: dict[str, int], n: int) -> dict[str, float]:
    """Loss and token accuracy on the first ``n`` validation sentences, given the right words so far."""
    drawn = sorted(islice(sentences("validation"), n), key=lambda s: len(s.words))
    parts = [apprentice(encode(drawn[i : i + 32], number), 1.0, 0.5)[1] for i in range(0, n, 32)]
    return {key: round(sum(p[key] for p in parts) / len(parts), 4) for key in parts[0]}


def train(
    recipe: Recipe, run: Path, stop: int | None = None, quiet: bool = False, kept: Collection[int] = ()
) -> Apprentice:
    """Train by a recipe in the folder ``run``, going on from its checkpoint; ``stop`` ends early (for tests).

    After the steps in ``kept`` the weights are put into ``run/snapshots``, in half precision.

    Raises ValueError if ``run`` holds a run of another recipe.
    """
    torch.manual_seed(recipe.seed)
    number = {word: i for i, word in enumerate(vocabulary())}
    apprentice = Apprentice(recipe.heads)
    cut(apprentice.model, recipe.without)
    optimizer = torch.optim.AdamW(
        [p for p in apprentice.parameters() if p.requires_grad], lr=recipe.rate, betas=(0.9, 0.98), weight_decay=0.01
    )
    told = asdict(recipe) | {"without": list(recipe.without)}  # as JSON gives it back
    state = {"step": 0, "chunk": 0, "within": 0, "short": recipe.short > 0, "recipe": told, "log": []}
    saved = checkpoint.restore(run, apprentice, optimizer)
    if saved:
        if {"without": []} | saved["recipe"] != told:
            raise ValueError(f"{run} holds a run of another recipe; use another folder: --run elsewhere")
        state = saved
    pending = batches(recipe, state["chunk"], state["short"])[state["within"] :]
    last = min(recipe.steps, stop or recipe.steps)
    if state["step"] == 0 and 0 in kept:
        snapshots.keep(apprentice.graduate(), 0, run / "snapshots")
    with tqdm(total=recipe.steps, initial=state["step"], disable=quiet, mininterval=2.0) as bar:
        while state["step"] < last:
            if not pending:
                short = state["step"] < recipe.short * recipe.steps
                state |= {"chunk": state["chunk"] + 1, "within": 0, "short": short}
                pending = batches(recipe, state["chunk"], state["short"])
            step = state["step"]
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(step)
            tagging = step < recipe.tag_until * recipe.steps
            guide, tag = (recipe.guide, recipe.tag) if tagging else (recipe.guide_late, 0.0)
            loss, parts = apprentice(encode(pending.pop(0), number), guide, tag)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(apprentice.parameters(), 1.0)
            optimizer.step()
            state |= {"step": step + 1, "within": state["within"] + 1}
            if state["step"] in kept:
                snapshots.keep(apprentice.graduate(), state["step"], run / "snapshots")
            if bar.update():
                bar.set_postfix(loss=f"{parts['loss']:.3f}", accuracy=f"{parts['accuracy']:.3f}")
            if state["step"] % recipe.save_every == 0 or state["step"] == last:
                state["log"].append({"step": state["step"], **validate(apprentice, number, recipe.validate_on)})
                checkpoint.save(run, apprentice, optimizer, state)
                if not quiet:
                    tqdm.write(json.dumps(state["log"][-1]))
    return apprentice


def main(arguments: list[str] | None = None) -> None:
    """The command: train, or go on training; the shipped recipe's model and snapshots go into the assets folder."""
    parser = argparse.ArgumentParser(prog="python -m headtools.organism.train", description=__doc__)
    parser.add_argument("--seed", type=int, default=Recipe.seed)
    parser.add_argument("--size", default="whole", choices=SIZES, help="half (4) or double (16) the heads a layer")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--run", type=Path, help="checkpoints (default: a folder named after seed, heads, steps)")
    parser.add_argument("--assets", type=Path, help="where the shipped recipe's model goes (default: the package)")
    parser.add_argument("--threads", type=int, default=1, help="the shipped model was trained with one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    recipe = Recipe(seed=options.seed, steps=options.steps, heads=SIZES[options.size])
    run = options.run or Path(f"organism-run-seed{recipe.seed}-heads{recipe.heads}-steps{recipe.steps}")
    model = train(recipe, run, kept=snapshots.KEPT).graduate()
    publish(model, run / "model")
    told = f"trained {recipe.steps} steps; the model is in {run / 'model'}"
    if options.assets or recipe == Recipe():
        assets = options.assets or ASSETS
        publish(model, assets)
        snapshots.ship(run / "snapshots", assets / "snapshots", [s for s in snapshots.KEPT if s <= recipe.steps])
        told += f" and in {assets}"
    print(told)


if __name__ == "__main__":
    main()
