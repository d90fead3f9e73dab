"""captum: ``LayerGradientXActivation`` and ``LayerFeatureAblation`` at what the output projections read.

The sum over a head's columns of gradient times activation is the slope of the loss at the head's gate, so that the
first gives gradient importance. The second switches off one feature after the other, a head where the mask says so.
captum's ``LRP`` has no rule for embeddings, norms of the transformer kind or attention, and says so.
"""

from __future__ import annotations

from collections.abc import Callable

import common
import subjects
import torch
from torch import Tensor, nn

OUT = {
    "bert": {"encoder": ("bert.encoder.layer", "attention.output.dense")},
    "gpt2": {"decoder": ("transformer.h", "attn.c_proj")},
    "marian": {
        "encoder": ("model.encoder.layers", "self_attn.out_proj"),
        "decoder": ("model.decoder.layers", "self_attn.out_proj"),
        "cross": ("model.decoder.layers", "encoder_attn.out_proj"),
    },
}


def works(kind: str, size: str) -> dict[str, Callable]:
    """Gradient, leave-one-out, and the attempt at LRP."""
    from captum.attr import LRP, LayerFeatureAblation, LayerGradientXActivation

    subject = common.subject(kind, size)
    model, few, heads = subject.model, subject.part(common.EXACT_ROWS), subject.size.heads
    layers = {
        (which, n): layer.get_submodule(inner)
        for which, (stack, inner) in OUT[kind].items()
        for n, layer in enumerate(model.get_submodule(stack))
    }

    def each(ids: Tensor, some: subjects.Subject) -> Tensor:
        return subjects.loss(model(**{**some.batch, "input_ids": ids}).logits, some.labels)

    def gradient() -> dict:
        asked = LayerGradientXActivation(lambda ids: each(ids, subject), list(layers.values()))
        found = asked.attribute(subject.batch["input_ids"], attribute_to_layer_input=True)
        slopes = [(x[0] if isinstance(x, tuple) else x).unflatten(-1, (heads, -1)).sum((1, 3)) for x in found]
        return common.by_head((*key, s.abs().mean(0)) for key, s in zip(layers, slopes, strict=True))

    @torch.no_grad()
    def ablation() -> tuple[dict, float]:
        key = next(reversed(layers))
        width = layers[key].weight.shape[1] if kind != "gpt2" else layers[key].weight.shape[0]
        mask = torch.arange(width).div(width // heads, rounding_mode="floor").view(1, 1, width)
        asked = LayerFeatureAblation(lambda ids: each(ids, few), layers[key])
        found = asked.attribute(
            few.batch["input_ids"], layer_baselines=0, attribute_to_layer_input=True, layer_mask=mask
        )
        found = found[0] if isinstance(found, tuple) else found
        return common.by_head([(*key, -found[:, 0, :: width // heads].mean(0))]), 1 / len(layers)

    def relevance() -> dict:
        LRP(OfIds(model)).attribute(subject.batch["input_ids"], target=0)
        return {}

    return {
        "plain": lambda: common.logits(model, subject),
        "plain, 2 rows": lambda: common.logits(model, few),
        "gradient": gradient,
        "leave-one-out": ablation,
        "relevance": relevance,
    }


class OfIds(nn.Module):
    """A model as captum's LRP wants it: tensors in, a tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the last token."""
        return self.model(input_ids=ids).logits[:, -1]
