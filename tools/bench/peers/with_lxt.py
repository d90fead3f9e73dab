"""lxt's efficient AttnLRP, in the transformers it was tested with; it knows BERT and GPT-2, and no encoder-decoder.

lxt patches classes for the whole process, so the plain pass here runs on the patched model, which computes the same
forward. It brings its own copy of BERT. Its map of models imports torchvision, for vision transformers only: an empty
module stands in for it. The relevance of a head is z times its gradient, read at the output projection.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable

import common
import torch
from torch import Tensor, nn

OUT = {"bert": ("bert.encoder.layer", "attention.output.dense"), "gpt2": ("transformer.h", "attn.c_proj")}


def no_torchvision() -> None:
    """Put empty modules where lxt looks for torchvision's vision transformer."""
    names = ("torchvision", "torchvision.models", "torchvision.models.vision_transformer")
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    sys.modules[names[1]].vision_transformer = sys.modules[names[2]]
    for name in ("VisionTransformer", "EncoderBlock", "MLPBlock"):
        setattr(sys.modules[names[2]], name, type(name, (nn.Module,), {}))
    sys.modules[names[2]].nn = nn


def works(kind: str, size: str) -> dict[str, Callable]:
    """AttnLRP of the greatest logit of the last token, at every head."""
    if kind not in OUT:
        raise ValueError("lxt has no map for an encoder-decoder")
    import transformers
    from transformers.models.bert import modeling_bert
    from transformers.models.gpt2 import modeling_gpt2

    no_torchvision()
    from lxt.efficient import monkey_patch

    module = modeling_bert if kind == "bert" else modeling_gpt2
    monkey_patch(module)
    transformers.BertForMaskedLM = modeling_bert.BertForMaskedLM  # lxt's copy, where it was patched
    subject = common.subject(kind, size)
    model, heads = subject.model, subject.size.heads
    which = "decoder" if kind == "gpt2" else "encoder"
    stack, inner = OUT[kind]
    outs = [layer.get_submodule(inner) for layer in model.get_submodule(stack)]

    def relevance() -> dict:
        seen: dict[int, Tensor] = {}

        def keep(n: int) -> Callable:
            return lambda _module, args: seen.__setitem__(n, args[0])

        hooks = [out.register_forward_pre_hook(keep(n)) for n, out in enumerate(outs)]
        model.requires_grad_(False)
        words = model.get_input_embeddings()(subject.batch["input_ids"]).requires_grad_()
        rest = {name: value for name, value in subject.batch.items() if name != "input_ids"}
        score = model(inputs_embeds=words, **rest).logits[:, -1].amax(-1).sum()
        slopes = torch.autograd.grad(score, [words, *seen.values()])[1:]
        for hook in hooks:
            hook.remove()
        products = ((z * s).detach() for z, s in zip(seen.values(), slopes, strict=True))
        sums = [p.unflatten(-1, (heads, -1)).sum((0, 1, 3)) for p in products]
        return common.by_head((which, n, part) for n, part in zip(seen, sums, strict=True))

    return {"plain": lambda: common.logits(model, subject), "relevance": relevance}
