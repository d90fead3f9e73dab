"""Which kind of attention a module is: encoder, decoder or cross, read from what it and its owners say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import nn


def find_kind(name: str, module: nn.Module) -> str:
    """Return 'cross', 'decoder' (a query may look only at itself and before) or 'encoder' for an attention module.

    Only what the module says of itself is used; ``resolve_kind`` adds what is said around it.
    """
    numbered = re.search(r"\.\d+\.", "." + name)
    local = ("." + name)[numbered.end() :] if numbered else name  # the path inside the layer
    if getattr(module, "is_cross_attention", False) is True or re.search(r"cross|encoder_attn|enc_?dec", local, re.I):
        return "cross"
    causal = getattr(module, "is_causal", None)
    if causal is None:
        causal = _causal_by_name(name, module)
    return "decoder" if causal is True else "encoder"


def resolve_kind(root: nn.Module, name: str, module: nn.Module) -> tuple[str, bool]:
    """Return the kind of the attention module ``name`` of a model, and whether that is a guess.

    What decides, in this order: what the module says (``find_kind``), the masks that the model around it builds, and
    ``is_causal`` of the nearest owner that has it. An encoder of which nothing says that it is one is a guess.
    """
    kind, said = find_kind(name, module), getattr(module, "is_causal", None)
    if kind != "encoder":
        return kind, False
    causal = causal_by_masks(root, name)
    if causal is None and not isinstance(said, bool):
        causal = _causal_by_attribute(root, name)
    if causal is not None:
        return ("decoder" if causal else "encoder"), False
    # transformers' own classes that say nothing are encoders: the decoders among them are known by name
    known = isinstance(said, bool) or is_transformers_class(type(module))
    return "encoder", not known


def is_transformers_class(kind: type) -> bool:
    """Tell a class of transformers, or one made from such a class, from one written elsewhere.

    >>> is_transformers_class(nn.Linear)
    False
    """
    return any(base.__module__.startswith("transformers.") for base in kind.__mro__)


def causal_by_masks(root: nn.Module, name: str) -> bool | None:
    """Tell whether the model around an attention module builds a causal mask for it, and no other; None: neither.

    CLIP's text model does so, while its attention modules do not know of it. The nearest owner that builds masks
    decides; what lies above the next model with a configuration of its own is another model's business.
    """
    for owner in _enclosing_modules(root, name):
        called = _names_in_forward(type(owner))
        if "create_bidirectional_mask" in called:
            return False
        if "create_causal_mask" in called:
            config = getattr(owner, "config", None)
            causal = getattr(config, "is_causal", True) and not getattr(config, "use_bidirectional_attention", False)
            return bool(causal)
        if hasattr(owner, "_can_set_attn_implementation"):
            return None
    return None


def _causal_by_attribute(root: nn.Module, name: str) -> bool | None:
    """Return what the nearest owner says of itself: ``model.is_causal = True`` is how a user settles the kind."""
    said = (getattr(owner, "is_causal", None) for owner in _enclosing_modules(root, name))
    return next((value for value in said if isinstance(value, bool)), None)


def _enclosing_modules(root: nn.Module, name: str) -> Iterator[nn.Module]:
    """Give the modules around one, the nearest first, the root last."""
    parts = name.split(".")
    for depth in range(len(parts) - 1, -1, -1):
        yield root.get_submodule(".".join(parts[:depth]))


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
