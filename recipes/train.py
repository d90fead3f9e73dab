"""Train the organism: ``python -m recipes.train`` (``make organism``).

Started again on the same folder, it continues from the last checkpoint and ends at the same weights, bit for bit on the
same machine with the same number of threads. ``--size half`` and ``--size double`` train the same language and width
with 4 and 16 heads per layer. The finished model goes to ``RUN/model``, the shipped recipe's model and snapshots also
to the package.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import torch
import typer
from safetensors.torch import save
from torch import Tensor, nn
from tqdm import tqdm
from transformers import MarianMTModel

import headtools as ht
from headtools._engine.store import write_bytes
from headtools.organism import snapshots
from headtools.organism.batches import training_sentences
from headtools.organism.language import sentences
from headtools.roles.sentence import Sentence
from recipes import _training_state
from recipes._publish import publish, publish_snapshots
from recipes._results import ASSETS, head_of
from recipes._training_model import HEADS, AuxiliaryTrainingModel, training_batch

# Heads per layer; the model's width is the same, so all sizes have the same number of weights.
SIZES = {"half": HEADS // 2, "whole": HEADS, "double": HEADS * 2}


@dataclass(frozen=True)
class Recipe:
    """One training run; lengths in optimizer steps, a batch in padded source and target tokens."""

    seed: int = 1
    steps: int = 9_000
    tokens: int = 1_024
    rate: float = 1.2e-3
    warmup: int = 400
    flat: float = 0.35  # fraction of the run before the learning rate falls along a cosine
    short: float = 0.10  # fraction of the run with short sentences only
    tag: float = 0.5  # weight of source-side tagging ...
    tag_until: float = 0.5  # ... for this fraction of the run
    guide: float = 1.0  # weight of guided alignment ...
    guide_late: float = 0.2  # ... and after tagging has stopped
    heads: int = HEADS
    without: tuple[str, ...] = ()  # heads cut before the first step, such as "encoder 5.1"
    chunk: int = 2_048  # sentences drawn and sorted by length at a time
    save_every: int = 250
    validate_on: int = 256  # sentences

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, constant, then a cosine down to a fiftieth."""
        flat = self.flat * self.steps
        decayed = max(0.0, (step - flat) / max(1.0, self.steps - flat))  # fraction of the decay that is done
        cosine = 0.5 * (1 + math.cos(math.pi * decayed))
        return self.rate * min(1.0, (step + 1) / self.warmup) * (0.02 + 0.98 * cosine)


def cut(model: nn.Module, without: Collection[str]) -> None:
    """Cut heads ("encoder 5.1") from an untrained model, in place.

    A layer that loses all its heads keeps a silent one, so that its weights have a shape; their weights are frozen, so
    that it stays silent when the rest learns. Raises ``ValueError`` for heads of cross-attention, all of which guided
    alignment needs, and as ``prune`` does.

    >>> model = AuxiliaryTrainingModel().model
    >>> cut(model, [f"encoder 2.{head}" for head in range(8)])
    >>> ht.sites(model)["encoder", 2].empty, model.model.encoder.layers[2].self_attn.out_proj.weight.requires_grad
    (True, False)
    """
    if not without:
        return
    heads = [head_of(name) for name in without]
    if cross := [name for name, head in zip(without, heads, strict=True) if head[0] == "cross"]:
        raise ValueError(f"guided alignment trains every cross head, so {cross[0]} cannot be cut before training")
    ht.prune(model, heads)
    for name in silent(model):
        model.get_parameter(name).requires_grad_(False)


def silent(model: nn.Module) -> set[str]:
    """Return the names of the parameters of silent heads, which must not learn.

    The bias of the output projection is not among them: it belongs to the layer.
    """
    empty = {id(site.module) for site in ht.sites(model) if site.empty}
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if id(module) in empty
        for name, _ in module.named_parameters()
        if name != "out_proj.bias"
    }


@torch.no_grad()
def validate(
    training_model: AuxiliaryTrainingModel, drawn: Iterator[Sentence], n: int, guide: float, ids: Mapping | None = None
) -> dict[str, float]:
    """Return loss and token accuracy on the first ``n`` sentences drawn, given the preceding words."""
    by_length = sorted(islice(drawn, n), key=lambda sentence: len(sentence.words))
    parts = [training_model(training_batch(by_length[i : i + 32], ids), guide, 0.5)[1] for i in range(0, n, 32)]
    return {key: round(sum(part[key] for part in parts) / len(parts), 4) for key in parts[0]}


def keep_snapshot(model: MarianMTModel, step: int, folder: Path) -> None:
    """Write a model's weights to ``folder`` in half precision, without the tied ones."""
    weights = {name: w.half().contiguous() for name, w in model.state_dict().items() if name not in snapshots.DERIVED}
    write_bytes(snapshots.path(step, folder), save(weights, metadata={"step": str(step)}))


def train(
    recipe: Recipe, run: Path, stop: int | None = None, progress: bool = True, keep: Collection[int] = ()
) -> AuxiliaryTrainingModel:
    """Train by a recipe in the folder ``run``, as :func:`run_training` says."""
    torch.manual_seed(recipe.seed)
    training_model = AuxiliaryTrainingModel(recipe.heads)
    cut(training_model.model, recipe.without)

    def loss(group: list[Sentence], step: int) -> tuple[Tensor, dict[str, float]]:
        tagging = step < recipe.tag_until * recipe.steps
        guide, tag = (recipe.guide, recipe.tag) if tagging else (recipe.guide_late, 0.0)
        return training_model(training_batch(group), guide, tag)

    def valid() -> dict[str, float]:
        return validate(training_model, sentences("validation"), recipe.validate_on, guide=1.0)

    short = recipe.short * recipe.steps
    run_training(training_model, recipe, run, training_sentences, loss, valid, short, stop, progress, keep)
    return training_model


def run_training(
    training_model: AuxiliaryTrainingModel,
    recipe: Recipe,
    run: Path,
    draw: Callable[..., list[list[Sentence]]],
    loss: Callable[[list[Sentence], int], tuple[Tensor, dict[str, float]]],
    valid: Callable[[], dict[str, float]],
    short_until: float,
    stop: int | None = None,
    progress: bool = True,
    keep: Collection[int] = (),
    **adam: object,
) -> None:
    """Train in the folder ``run``, continuing from its checkpoint; ``stop`` is the last step, if given.

    ``draw(seed, chunk, tokens, n, short)`` gives the groups of sentences of a chunk, short ones before the step
    ``short_until``; ``loss(group, step)`` the loss of one group. After the steps in ``keep`` the weights are written to
    ``run/snapshots``, in half precision. Raises ValueError if ``run`` holds a run of another recipe.
    """
    optimizer = torch.optim.AdamW(
        [p for p in training_model.parameters() if p.requires_grad],
        lr=recipe.rate,
        betas=(0.9, 0.98),
        weight_decay=0.01,
        **adam,
    )
    settings = asdict(recipe) | {"without": list(recipe.without)}  # as it is read back from JSON
    state = {"step": 0, "chunk": 0, "within": 0, "short": short_until > 0, "recipe": settings, "log": []}
    if saved := _training_state.restore(run, training_model, optimizer):
        if saved["recipe"] != settings:
            raise ValueError(f"{run} holds a run of another recipe; use another folder: --run elsewhere")
        state = saved

    def groups() -> list[list[Sentence]]:
        return draw(recipe.seed, state["chunk"], recipe.tokens, recipe.chunk, state["short"])

    pending = groups()[state["within"] :]
    last = min(recipe.steps, stop or recipe.steps)
    if state["step"] == 0 and 0 in keep:
        keep_snapshot(training_model.export(), 0, run / "snapshots")
    with tqdm(total=recipe.steps, initial=state["step"], disable=not progress, mininterval=2.0) as bar:
        while state["step"] < last:
            if not pending:
                state |= {"chunk": state["chunk"] + 1, "within": 0, "short": state["step"] < short_until}
                pending = groups()
            step = state["step"]
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate_at(step)
            total, parts = loss(pending.pop(0), step)
            optimizer.zero_grad(set_to_none=True)
            total.backward()
            torch.nn.utils.clip_grad_norm_(training_model.parameters(), 1.0)
            optimizer.step()
            state |= {"step": step + 1, "within": state["within"] + 1}
            if state["step"] in keep:
                keep_snapshot(training_model.export(), state["step"], run / "snapshots")
            if bar.update():
                bar.set_postfix(loss=f"{parts['loss']:.3f}", accuracy=f"{parts['accuracy']:.3f}")
            if state["step"] % recipe.save_every == 0 or state["step"] == last:
                state["log"].append({"step": state["step"], **valid()})
                _training_state.save(run, training_model, optimizer, state)
                if progress:
                    tqdm.write(json.dumps(state["log"][-1]))


def main(
    seed: int = Recipe.seed,
    size: Annotated[Literal["half", "whole", "double"], typer.Option(help="4, 8 or 16 heads a layer")] = "whole",
    steps: int = Recipe.steps,
    run: Annotated[Path | None, typer.Option(help="checkpoints (default: named after seed, heads, steps)")] = None,
    assets: Annotated[Path | None, typer.Option(help="where the shipped recipe's model goes")] = None,
    threads: Annotated[int, typer.Option(help="the shipped model was trained with one")] = 1,
) -> None:
    """Train the organism, or continue its training."""
    torch.set_num_threads(threads)
    recipe = Recipe(seed=seed, steps=steps, heads=SIZES[size])
    run = run or Path(f"organism-run-seed{recipe.seed}-heads{recipe.heads}-steps{recipe.steps}")
    model = train(recipe, run, keep=snapshots.STEPS).export()
    publish(model, run / "model")
    print(f"trained {recipe.steps} steps; the model is in {run / 'model'}")
    if assets or recipe == Recipe():
        assets = assets or ASSETS
        publish(model, assets)
        publish_snapshots(run / "snapshots", assets / "snapshots", [s for s in snapshots.STEPS if s <= recipe.steps])
        print(f"and in {assets}")


if __name__ == "__main__":
    typer.run(main)
