"""A model without the layer that turns its last states into logits: all that a recording of attention needs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from torch import nn

from headtools.heads.sites import sites


def backbone(model: nn.Module, inputs: Iterable[str]) -> nn.Module:
    """Return the part of a model that holds all its attention and takes ``inputs`` by name, or the model itself.

    A vocabulary of 49,152 makes the logits of a small language model cost more than all its layers. What is recorded
    in the layers is the same, bit for bit.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    >>> type(backbone(model, ["input_ids"])).__name__, type(backbone(model, ["labels"])).__name__
    ('GPT2Model', 'GPT2LMHeadModel')
    """
    if not type(model).__module__.startswith("transformers."):  # a subclass may do more in its forward
        return model
    base = model.base_model
    if base is model or model._forward_hooks or model._forward_pre_hooks:
        return model
    inside = {id(module) for module in base.modules()}
    takes = inspect.signature(base.forward).parameters
    holds_all = all(id(site.module) in inside for site in sites(model))
    return base if holds_all and set(inputs) <= takes.keys() else model
