"""Exercises of lesson 00: switch heads off for real, count the heads of the shipped model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from headtools.course.exercises.exercise import Exercise, Hint, NotTried, article, call, same

LAYERS, HEADS, WIDTH = 6, 8, 128  # of the shipped model
KINDS = ("encoder", "decoder", "cross")


def _count(answer: Any) -> str | None:
    """The number of heads of the shipped model, as {"encoder": n, "decoder": n, "cross": n}."""
    right = LAYERS * HEADS
    if answer == 3 * right:
        return "That is all of them together. Give the three kinds apart: {'encoder': n, 'decoder': n, 'cross': n}."
    if not isinstance(answer, Mapping):
        raise Hint(f"A dict is asked for, {{'encoder': n, 'decoder': n, 'cross': n}}; this is {article(answer)}.")
    if any(n is None or n is ... for n in answer.values()):
        raise NotTried
    if set(answer) != set(KINDS):
        return f"The keys should be 'encoder', 'decoder' and 'cross'; yours are {', '.join(map(repr, answer))}."
    for kind in KINDS:
        if isinstance(answer[kind], str):
            raise Hint(f"{kind}: a number is asked for, this is a str, {answer[kind]!r}: leave out the quotes.")
    mistakes = {
        2 * right: "Two kinds are taken for one. A decoder layer has two: one to itself, one across to the encoder.",
        3 * right: "That is all three kinds together; each kind has a third of them.",
        LAYERS: "That is the number of layers. Each layer has several heads of this kind.",
        HEADS: "That is the number of heads in one layer. There are several layers.",
        WIDTH: "That is d_model, the width of a token's vector; the heads of a layer share it out.",
        WIDTH // HEADS: "That is d_head, the width of one head.",
        LAYERS * WIDTH: "That is layers times width. Each layer shares its width out over its heads: count the heads.",
    }
    for kind in KINDS:
        if answer[kind] != right:
            hint = mistakes.get(
                answer[kind], "The number of layers times the number of heads in a layer: see ht.sites(model)."
            )
            return f"{kind}: {answer[kind]} is not it. {hint}"
    return None


def _ablate(answer: Any) -> str | None:
    """switched_off(model, batch, heads): the model's logits (or encoder output) for batch with these heads off."""
    for heads in ({("encoder", 1): [0]}, {("encoder", 0): [3], ("decoder", 1): [1, 2], ("cross", 1): [0]}):
        model, batch = _tiny_translator()
        on = _outputs(model, batch)
        off = _outputs(_without(model, heads), batch)
        weights_before = {name: value.clone() for name, value in model.state_dict().items()}
        recorded = []
        watch = model.register_forward_pre_hook(lambda _, args, kwargs, s=recorded: s.extend(kwargs), with_kwargs=True)
        got = _read(call(answer, model=model, batch=dict(batch), heads=deepcopy(heads)), on, heads)
        watch.remove()
        example = f"\nSee it for heads = {heads}."
        output = "logits" if got.shape == on["logits"].shape else "encoder"
        weights_kept = all(torch.equal(value, weights_before[name]) for name, value in model.state_dict().items())
        if not weights_kept or not same(_outputs(model.eval(), batch)["logits"], on["logits"], 1e-6):
            return (
                "Afterwards the model is no longer what it was. A context manager puts everything back: run the model "
                f"inside with ht.ablate(model, heads):{example}"
            )
        if same(got, off[output]):
            continue
        if not same(got, on[output]):
            return _other_heads(model, batch, heads, got, output) + example
        if any("head_mask" in name for name in recorded):
            return f"Every head is on: the model took head_mask= without a word and did nothing with it.{example}"
        return f"Every head is on. Is the model run inside the with block? After it, every head is on again.{example}"
    return None


def _other_heads(model: nn.Module, batch: dict[str, Tensor], heads: Mapping, got: Tensor, output: str) -> str:
    """The hint for an output that belongs to other heads."""

    def shifted(up: int, along: int) -> dict:
        return {(kind, layer + up): [h + along for h in numbers] for (kind, layer), numbers in heads.items()}

    first = next(iter(heads))
    tried = [
        ("Another layer is off. Layers count from 0: ('encoder', 1) is the second.", shifted(1, 0)),
        ("Another layer is off. Layers count from 0: ('encoder', 1) is the second.", shifted(-1, 0)),
        ("Another head is off. Heads count from 0.", shifted(0, 1)),
        ("Another head is off. Heads count from 0.", shifted(0, -1)),
        ("Another layer and head are off. Both count from 0.", shifted(1, 1)),
        ("Another layer and head are off. Both count from 0.", shifted(-1, -1)),
        (
            "The wrong way round: the heads named are on, the rest of their layer is off.",
            {site: [h for h in range(4) if h not in numbers] for site, numbers in heads.items()},
        ),
        ("Whole layers are off; only the heads named should be.", {site: range(4) for site in heads}),
        ("Only the first of the heads is off; there may be several, in several layers.", {first: heads[first][:1]}),
    ]
    for hint, others in tried:
        there = all(0 <= layer < 3 for _, layer in others) and all(0 <= h < 4 for n in others.values() for h in n)
        if there and same(got, _outputs(_without(model, others), batch)[output]):
            return hint
    return "This is not the output of the model with these heads off."


def _tiny_translator() -> tuple[nn.Module, dict[str, Tensor]]:
    """A random translation model of three layers and four heads, and one batch."""
    from transformers import MarianConfig, MarianMTModel

    size = {"d_model": 16, "vocab_size": 12, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    for stack in ("encoder", "decoder"):
        size |= {f"{stack}_layers": 3, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 16}
    # Large random weights, so that one head more or less shows in every output.
    config = MarianConfig(**size, max_position_embeddings=16, init_std=0.5, dropout=0.0, forced_eos_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MarianMTModel(config).eval()
    ids = {"input_ids": torch.tensor([[3, 7, 5, 1]]), "decoder_input_ids": torch.tensor([[0, 4, 9]])}
    return model, ids | {"attention_mask": torch.ones(1, 4, dtype=torch.long)}


def _without(model: nn.Module, heads: Mapping) -> nn.Module:
    """A copy with the heads' columns of the output projection zeroed: the judge's own way, apart from ht.ablate."""
    copy = deepcopy(model)
    for (kind, layer), numbers in heads.items():
        block = (copy.model.encoder if kind == "encoder" else copy.model.decoder).layers[layer]
        attention = block.encoder_attn if kind == "cross" else block.self_attn
        with torch.no_grad():
            for head in numbers:
                attention.out_proj.weight[:, head * attention.head_dim : (head + 1) * attention.head_dim] = 0
    return copy


def _outputs(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        out = model(**batch)
    return {"logits": out.logits, "encoder": out.encoder_last_hidden_state}


def _read(result: Any, on: dict[str, Tensor], heads: Mapping) -> Tensor:
    """The tensor in what the learner returned: logits, or the encoder's output when only encoder heads are off."""
    for name in ("logits", "last_hidden_state"):
        result = getattr(result, name, result)
    welcome = [on["logits"]] + ([on["encoder"]] if all(kind == "encoder" for kind, _ in heads) else [])
    if not isinstance(result, Tensor) or result.shape not in [w.shape for w in welcome]:
        came = f"shape {tuple(result.shape)}" if isinstance(result, Tensor) else article(result)
        raise Hint(f"Return the logits, model(**batch).logits, of shape {tuple(on['logits'].shape)}; this is {came}.")
    return result.detach()


EXERCISES = (Exercise("00.count", "count the heads", _count), Exercise("00.ablate", "switch heads off", _ablate))
