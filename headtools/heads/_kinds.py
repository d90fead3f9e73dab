"""Whether an attention module is of kind encoder, decoder or cross, from its own and its enclosing modules' attributes.

In transformers nothing states this in one place. A module may say ``is_causal``; the enclosing model may build a causal
mask that the module does not know of (CLIP's text model); older decoders say it by their class name only.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

from torch import nn

# decoders without ``is_causal``, by the beginning of their class name
_DECODERS = ("Bloom", "CodeGen", "Mpt", "XGLM", "GPTNeoXJapanese", "ImageGPT", "CpmAnt", "CTRL", "Doge", "Clvp")
_ENCODERS = ("FastSpeech2Conformer",)  # its decoder writes all at once
# Both stacks use these classes, whose default is is_causal=False. Other classes say is_decoder where nothing is causal:
# SeamlessM4T v2 writes all units at once.
_SAY_IS_DECODER = ("NllbMoe", "PegasusX", "BigBirdPegasus")
# Called decoder, or is_causal=True beside a mask that hides padding only: every token sees every other
_SEE_ALL = ("Funnel", "BridgeTowerSelf")


def find_kind(name: str, module: nn.Module) -> str:
    """Return 'cross', 'decoder' (causal) or 'encoder' for an attention module, from the module alone.

    ``resolve_kind`` also uses the enclosing modules.
    """
    numbered = re.search(r"\.\d+\.", "." + name)
    local_path = ("." + name)[numbered.end() :] if numbered else name  # within the layer
    if getattr(module, "is_cross_attention", False) is True or re.search(
        r"cross|encoder_attn|enc_?dec", local_path, re.I
    ):
        return "cross"
    if type(module).__name__.startswith(_SEE_ALL) and not getattr(module, "is_decoder", False):
        return "encoder"
    causal, is_decoder = getattr(module, "is_causal", None), getattr(module, "is_decoder", False) is True
    in_decoder = ".decoder." in f".{name}." and ".encoder." not in f".{name}."
    in_decoder = in_decoder and not type(module).__name__.startswith(_ENCODERS)
    if causal is None:
        gpt1 = type(module).__module__.endswith(".modeling_openai")  # its class is called Attention
        causal = in_decoder or is_decoder or gpt1 or type(module).__name__.startswith(_DECODERS)
    causal = causal is True or (is_decoder and type(module).__name__.startswith(_SAY_IS_DECODER))
    return "decoder" if causal else "encoder"


def resolve_kind(root: nn.Module, name: str, module: nn.Module) -> tuple[str, bool]:
    """Return the kind of the attention module ``name`` of a model, and whether that is a guess.

    In this order: the module (``find_kind``), the masks that an enclosing model builds, and ``is_causal`` of the
    nearest enclosing module that has it. 'encoder' without any evidence is a guess.
    """
    kind, said = find_kind(name, module), isinstance(getattr(module, "is_causal", None), bool)
    if kind != "encoder":
        return kind, False
    if any(type(owner).__name__ == "BlipTextLMHeadModel" for owner in enclosing_modules(root, name)):
        return "decoder", False  # it tells its encoder to be one in each call
    causal = _causal_by_masks(root, name)
    if causal is None and not said:  # users set it on a model of their own to decide the kind
        values = (getattr(owner, "is_causal", None) for owner in enclosing_modules(root, name))
        causal = next((value for value in values if isinstance(value, bool)), None)
    if causal is not None:
        return ("decoder" if causal else "encoder"), False
    # transformers' own classes without is_causal are encoders: ``_DECODERS`` lists the decoders among them
    return "encoder", not (said or is_transformers_class(type(module)))


def is_transformers_class(kind: type) -> bool:
    """Return whether a class is from transformers or derived from one of its classes.

    >>> is_transformers_class(nn.Linear)
    False
    """
    return any(base.__module__.startswith("transformers.") for base in kind.__mro__)


def _causal_by_masks(root: nn.Module, name: str) -> bool | None:
    """Return whether the enclosing model builds a causal mask for an attention module; None where it builds no mask.

    The nearest enclosing module that builds masks decides. The search ends at the first model with its own
    configuration: anything outside belongs to another model.
    """
    for owner in enclosing_modules(root, name):
        kind = type(owner)
        called = names_in(kind.forward)
        for method in list(called):
            if "mask" in method and inspect.isfunction(getattr(kind, method, None)):
                called |= names_in(getattr(kind, method))  # its forward leaves the masks to a method
        if "create_bidirectional_mask" in called:
            return False
        if "create_causal_mask" in called:
            config = getattr(owner, "config", None)
            return bool(
                getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
            )
        if hasattr(owner, "_can_set_attn_implementation"):
            return None
    return None


def enclosing_modules(root: nn.Module, name: str) -> Iterator[nn.Module]:
    """Yield the modules that enclose the module ``name``, the nearest first, the root last."""
    path = name.split(".")
    for depth in range(len(path) - 1, -1, -1):
        yield root.get_submodule(".".join(path[:depth]))


def names_in(function: Callable) -> set[str]:
    """Return the names that a function uses, read from its code without running it."""
    return set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))
