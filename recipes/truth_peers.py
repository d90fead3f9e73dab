"""What other packages find on the bench of written circuits. ``python -m recipes.truth_peers``

captum, TransformerLens and lxt score the heads of the models of ``recipes.truth``, with their own functions or with a
few lines on their hooks: captum on the input of each output projection, TransformerLens on a ``HookedTransformer`` with
the same weights, lxt with its rules around the model's attention. Results: ``truth_peers.json``.

    pip install --no-deps --target peers captum==0.9.0 lxt==2.1 transformer-lens==3.9.0 better-abc
    PYTHONPATH=peers python -m recipes.truth_peers
"""

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated

import torch
import typer
from torch import Tensor
from tqdm import tqdm
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headtools.heads.scores import HeadScores
from headtools.importance.loss import each_loss
from headtools.organism.toy_decoder import eager_attention_forward
from headtools.organism.written_models import HEAD_DIM, HEADS, LENGTH, SYMBOLS, WrittenModel
from recipes._results import ASSETS, write
from recipes.truth import (
    CIRCUITS,
    _flat,
    _gated_loss,
    auroc,
    batch_of,
    gradient,
    leave_one_out,
    patching,
    relevance,
    right_answers,
)

FILE = ASSETS / "truth_peers.json"
SEEDS = 3
PERMUTATIONS = 25  # captum's own default for ShapleyValueSampling


def by_head(of_features: list[Tensor]) -> Tensor:
    """Sum attributions of the features that an output projection reads over tokens and over each head's features.

    Of each layer (B, T, heads * width); returns rows (B, layers * heads).
    """
    return torch.stack([layer.unflatten(-1, (HEADS, -1)).sum((1, 3)) for layer in of_features], 1).flatten(1)


# --- captum -----------------------------------------------------------------------------------------------------------


def captum_layers(method: str, **options: object) -> Callable:
    """Score what every output projection reads, as captum's tutorial on BERT does; above 0: it lowers the loss."""

    def measure(model: WrittenModel, batch: dict, other: dict, _seed: int) -> HeadScores:
        import captum.attr

        def losses(ids: Tensor, labels: Tensor) -> Tensor:
            return each_loss(model, {"input_ids": ids, "labels": labels}, "aligned")

        model.symbol.weight.requires_grad_(True)  # so that there is a graph
        baseline = {"baselines": other["input_ids"]} if "n_steps" in options else {}
        try:
            found = [
                getattr(captum.attr, method)(losses, layer.out_proj).attribute(
                    batch["input_ids"],
                    additional_forward_args=batch["labels"],
                    attribute_to_layer_input=True,
                    **baseline,
                    **options,
                )
                for layer in model.layers
            ]
        finally:
            model.symbol.weight.requires_grad_(False)
        return _flat(model, -by_head(found).mean(0), method)

    return measure


def captum_gates(method: str, **options: object) -> Callable:
    """Let captum switch heads off, through gates: what it calls features are heads."""

    def measure(model: WrittenModel, batch: dict, _other: dict, seed: int) -> HeadScores:
        import captum.attr

        torch.manual_seed(seed)

        def loss(gates: Tensor) -> Tensor:
            with torch.no_grad():
                return _gated_loss(model, batch, gates.view(-1, HEADS))[None]

        every = torch.ones(1, HEADS * len(model.layers))
        return _flat(model, -getattr(captum.attr, method)(loss).attribute(every, **options), method)

    return measure


# --- TransformerLens --------------------------------------------------------------------------------------------------


def hooked(model: WrittenModel, ids: Tensor) -> ModuleType:
    """Return TransformerLens' model with the same weights; its positions are of the kind that it calls shortformer.

    Raises ``ValueError`` where the two do not give the same logits for these symbols.
    """
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    kv_heads = model.layers[0].k_proj.out_features // HEAD_DIM
    config = HookedTransformerConfig(
        n_layers=len(model.layers),
        d_model=HEADS * HEAD_DIM,
        n_ctx=LENGTH,
        d_head=HEAD_DIM,
        n_heads=HEADS,
        n_key_value_heads=None if kv_heads == HEADS else kv_heads,
        d_vocab=SYMBOLS,
        attn_only=True,
        normalization_type=None,
        positional_embedding_type="shortformer",
        attention_dir="causal" if model.layers[0].is_causal else "bidirectional",
        default_prepend_bos=False,
        device="cpu",
    )
    twin = HookedTransformer(config)
    state = dict(twin.state_dict())
    for name, value in state.items():
        if ".b_" in name or "._b_" in name:
            state[name] = torch.zeros_like(value)
    state["embed.W_E"], state["pos_embed.W_pos"] = model.symbol.weight, model.position.weight
    state["unembed.W_U"] = model.unembed.weight.T
    for i, layer in enumerate(model.layers):
        shared = "" if kv_heads == HEADS else "_"  # the names of keys and values that heads share
        for name, of in {"W_Q": layer.q_proj, f"{shared}W_K": layer.k_proj, f"{shared}W_V": layer.v_proj}.items():
            state[f"blocks.{i}.attn.{name}"] = of.weight.unflatten(0, (-1, HEAD_DIM)).transpose(1, 2)
        state[f"blocks.{i}.attn.W_O"] = layer.out_proj.weight.T.unflatten(0, (HEADS, HEAD_DIM))
    twin.load_state_dict(state)
    twin = twin.eval().requires_grad_(False)
    off = (twin(ids) - model(ids).logits).abs().max().item()
    if off > 1e-3:
        raise ValueError(f"the logits of TransformerLens' model differ by {off:.2g}")
    return twin


def lens_direct(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
    """Direct logit attribution from the cache: the right answer's logit above the mean of all."""
    twin, labels = hooked(model, batch["input_ids"]), batch["labels"]
    _logits, cache = twin.run_with_cache(batch["input_ids"])
    logits = cache.stack_head_results() @ twin.W_U  # (layers * heads, B, T, V)
    right = logits.gather(3, labels.clamp(0)[None, ..., None].expand(*logits.shape[:3], 1))[..., 0] - logits.mean(-1)
    return _flat(model, right[:, labels >= 0].mean(1), "direct logit attribution")


def lens_patching(model: WrittenModel, batch: dict, other: dict, _seed: int) -> HeadScores:
    """Activation patching of each head's output at all positions, by the function of ``transformer_lens.patching``."""
    from transformer_lens.patching import get_act_patch_attn_head_out_all_pos

    twin, labels = hooked(model, batch["input_ids"]), batch["labels"]

    def loss(logits: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    with torch.no_grad():
        cache = twin.run_with_cache(other["input_ids"])[1]
        found = get_act_patch_attn_head_out_all_pos(twin, batch["input_ids"], cache, loss)
        found = found - loss(twin(batch["input_ids"]))  # what it returns is the loss itself
    return _flat(model, found, "activation patching")


def lens_attribution(model: WrittenModel, batch: dict, other: dict, _seed: int) -> HeadScores:
    """Attribution patching: the change of each head's z, times the slope of the loss, as in Nanda's demonstration."""
    twin, labels, clean = hooked(model, batch["input_ids"]), batch["labels"], {}
    twin.embed.W_E.requires_grad_(True)  # so that there is a graph

    def keep(z: Tensor, hook: ModuleType) -> None:
        z.retain_grad()
        clean[hook.name] = z

    with torch.no_grad():
        changed = twin.run_with_cache(other["input_ids"])[1]
    with twin.hooks([(lambda name: name.endswith("hook_z"), keep)]):
        logits = twin(batch["input_ids"])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    rises = [((changed[name] - z) * z.grad).sum((0, 1, 3)) for name, z in clean.items()]
    return _flat(model, torch.stack(rises), "attribution patching")


# --- lxt --------------------------------------------------------------------------------------------------------------


def lxt_rules(name: str) -> Callable:
    """Gradient times input with lxt's rules around the attention function: relevance of the right answers' logits."""

    def measure(model: WrittenModel, batch: dict, *_: object) -> HeadScores:
        patches = lxt_patches()
        wrap = {"attnlrp": patches.wrap_attention_forward, "cp": patches.cp_wrap_attention_forward}[name]
        z: list[Tensor] = []

        def keep(_module: torch.nn.Module, args: tuple) -> None:
            args[0].retain_grad()
            z.append(args[0])

        ALL_ATTENTION_FUNCTIONS["lxt"] = wrap(eager_attention_forward)
        before, model.config._attn_implementation = model.config._attn_implementation, "lxt"
        hooks = [layer.out_proj.register_forward_pre_hook(keep) for layer in model.layers]
        model.symbol.weight.requires_grad_(True)
        try:
            right_answers(model(batch["input_ids"]), batch).sum().backward()
        finally:
            model.symbol.weight.requires_grad_(False)
            model.symbol.weight.grad = None
            model.config._attn_implementation = before
            for hook in hooks:
                hook.remove()
        return _flat(model, by_head([one * one.grad for one in z]).mean(0), name)

    return measure


def lxt_patches() -> ModuleType:
    """Return ``lxt.efficient.patches`` without the package around it, which imports models of transformers 4."""
    folder = Path(importlib.util.find_spec("lxt").submodule_search_locations[0]) / "efficient"
    package = sys.modules.setdefault("lxt.efficient", ModuleType("lxt.efficient"))
    package.__path__ = [str(folder)]
    return importlib.import_module("lxt.efficient.patches")


# Each with its cost in forward passes, and the measure of ours that should give the same numbers, up to a factor.
MEASURES: dict[str, tuple[Callable, str, Callable | None]] = {
    "captum, gradient times activation": (captum_layers("LayerGradientXActivation"), "2 L", gradient(signed=True)),
    "captum, integrated gradients by layer": (captum_layers("LayerIntegratedGradients", n_steps=16), "32 L", None),
    "captum, feature ablation of gates": (captum_gates("FeatureAblation"), "H + 1", leave_one_out("zero")),
    "captum, Shapley values of gates": (
        captum_gates("ShapleyValueSampling", n_samples=PERMUTATIONS),
        f"{PERMUTATIONS} H",
        None,
    ),
    "TransformerLens, direct logit attribution": (lens_direct, "1", None),
    "TransformerLens, attribution patching": (lens_attribution, "3", None),
    "TransformerLens, activation patching": (lens_patching, "H + 1", patching),
    "lxt, AttnLRP": (lxt_rules("attnlrp"), "2", relevance("attnlrp")),
    "lxt, CP-LRP": (lxt_rules("cp"), "2", relevance("cp")),
}


def distance(scores: HeadScores, ours: HeadScores) -> float:
    """Return the largest difference of two scores, each as a part of its own largest entry, without signs where ours
    has none."""
    one, two = (found.flat().double() / found.flat().double().abs().max() for found in (scores, ours))
    one = one.abs() if (two >= 0).all() else one
    return (one - two).abs().max().item()


def main(seeds: int = SEEDS, file: Annotated[Path, typer.Option(help="where results go")] = FILE) -> None:
    """Measure every cell of the table."""
    torch.set_num_threads(1)
    runs = []
    for seed in range(seeds):
        for name, make in tqdm(CIRCUITS.items(), desc=f"seed {seed}"):
            circuit = make()
            batch, other = batch_of(circuit.kind, seed), batch_of(circuit.kind, 1_000 + seed)
            for measure, (of, cost, twin) in MEASURES.items():
                scores = of(circuit.model, batch, other, seed)
                row = {"circuit": name, "measure": measure, "cost": cost, "seed": seed}
                row["auroc"] = round(auroc(scores, circuit), 4)
                if twin is not None:
                    row["distance"] = float(f"{distance(scores, twin(circuit.model, batch, other, seed)):.2g}")
                runs.append(row | {"scores": [float(f"{x:.3g}") for x in scores.flat().tolist()]})
    versions = {name: importlib.metadata.version(name) for name in ("captum", "transformer-lens", "lxt")}
    about = {"seeds": seeds, "permutations": PERMUTATIONS} | versions
    write({"setting": about, "torch": torch.__version__, "runs": runs}, file, row_key="circuit")


if __name__ == "__main__":
    typer.run(main)
