"""Which kind of attention a module is: encoder, decoder or cross, read from what it and its owners say."""

from __future__ import annotations

import inspect
import re

from torch import nn


def find_kind(name: str, module: nn.Module) -> str:
    """Return 'cross', 'decoder' (a query may look only at itself and before) or 'encoder' for an attention module.

    Only what the module says of itself is used; ``causal_by_caller`` adds what the model around it does.
    """
    numbered = re.search(r"\.\d+\.", "." + name)
    local = ("." + name)[numbered.end() :] if numbered else name  # the path inside the layer
    if getattr(module, "is_cross_attention", False) is True or re.search(r"cross|encoder_attn|enc_?dec", local, re.I):
        return "cross"
    causal = getattr(module, "is_causal", None)
    if causal is None:
        causal = _causal_by_name(name, module)
    return "decoder" if causal is True else "encoder"


def causal_by_caller(root: nn.Module, name: str) -> bool:
    """Tell whether the model around an attention module builds a causal mask for it, and no other.

    CLIP's text model does so, while its attention modules do not know of it. The nearest owner that builds masks
    decides; what lies above the next model with a configuration of its own is another model's business.
    """
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        owner = root.get_submodule(".".join(parts[:depth]))
        called = _names_in_forward(type(owner))
        if "create_bidirectional_mask" in called:
            return False
        if "create_causal_mask" in called:
            config = getattr(owner, "config", None)
            return getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
        if hasattr(owner, "_can_set_attn_implementation"):
            return False
    return False


def _names_in_forward(kind: type) -> set[str]:
    """Return the names that a class's forward uses, and the methods about masks that it calls."""
    found = set(_names(inspect.unwrap(kind.forward)))
    for method in [name for name in found if "mask" in name and inspect.isfunction(getattr(kind, name, None))]:
        found |= set(_names(getattr(kind, method)))
    return found


def _names(function: object) -> tuple[str, ...]:
    return getattr(getattr(function, "__code__", None), "co_names", ())


def _causal_by_name(name: str, module: nn.Module) -> bool:
    """Tell older decoders, whose modules do not say ``is_causal``, by their path or class."""
    older = ("Bloom", "CodeGen", "Mpt", "XGLM", "GPTNeoXJapanese", "ImageGPT", "CpmAnt", "CTRL", "Doge", "Clvp")
    path = f".{name}."
    in_decoder = ".decoder." in path and ".encoder." not in path
    return in_decoder or getattr(module, "is_decoder", False) is True or type(module).__name__.startswith(older)
