"""What stands between a head's weights and its scores: where W_QK or W_OV would not tell the truth.

Read from an attention module's code, its children and its attributes; nothing is run.
"""

from __future__ import annotations

import inspect
import re

from torch import nn

from headtools.heads._layout import width_out
from headtools.heads.sites import Site

_ROTARY = re.compile(r"rotary|rotate|(^|_)rope(_|$)|rotation", re.I)
_SWITCHES = ("use_rope", "use_rotary", "use_rotary_embeddings", "rotary", "apply_rope")  # False: this layer does not
_CAP = re.compile(r"(attn|attention|logits?).*cap|soft_?cap|cap_logits", re.I)
_POSITION = re.compile(
    r"alibi|relative|position_bias|rel_(pos|att|emb|shift|logits)|(^|_)rpe(_|$)|pos_(bias|proj)|distance_emb|r_r_bias",
    re.I,
)
_NORM = r"(layer_?norm|norm|ln)"
_QK_NORM = re.compile(rf"^(q|k|qk|query|key)s?_?{_NORM}|^{_NORM}_?(q|k|qk|query|key)$", re.I)
_V_NORM = re.compile(rf"^(v|value)s?_?{_NORM}|^{_NORM}_?(v|value)$", re.I)
_Z_NORM = re.compile(r"sub_?(layer_?)?norm|group_?norm|inner_attn_ln|attn_ln|^[go]_norm|^norm$", re.I)
_GATE = re.compile(r"^(\w_|attn_|out(put)?_)?(gate|g)(_proj|_per_head)?$", re.I)
_QK_CONV, _V_CONV = re.compile(r"^[qk]_?s?conv", re.I), re.compile(r"^v_?s?conv", re.I)


def query_key_obstacles(site: Site) -> tuple[list[str], list[str]]:
    """Return why a site's scores are not the bilinear form x W_QK yᵀ (any reason spoils it), and what is added to it.

    The first list: rotated queries and keys, normalised ones, bent scores, latent keys. The second: terms that depend
    on positions and come on top, so that W_QK tells the part of the score that content makes.
    """
    module, spoil, add = site.module, [], []
    names = _names(module)
    if site.q is None or site.k is None:
        spoil.append("keys come out of a normalised latent")
    if any(_ROTARY.search(n) for n in names) and not any(getattr(module, s, None) is False for s in _SWITCHES):
        spoil.append("queries and keys are rotated by their positions (RoPE)")
    if _child(module, _QK_NORM) or "normalize" in names:
        spoil.append("queries and keys are normalised, each by its own length")
    if _child(module, _QK_CONV):
        spoil.append("queries or keys are mixed with those of neighbouring tokens by a convolution")
    if _capped(module, names):
        spoil.append("scores go through a soft cap, c tanh(score / c)")
    # T5's cross-attention is handed a bias of zeros
    if site.kind != "cross" and any(_POSITION.search(n) for n in names | _arguments(module)):
        add.append("a term of relative positions is added to the scores (ALiBi, T5, DeBERTa)")
    return spoil, add


def output_value_obstacles(site: Site) -> list[str]:
    """Return why what a site's heads write is not A Y W_OV: latent or normalised values, a norm or gate on z."""
    module, found = site.module, []
    if site.v is None:
        found.append("values come out of a normalised latent")
    elif _child(module, _V_NORM):
        found.append("values are normalised, each by its own length")
    if _child(module, _V_CONV):
        found.append("values are mixed with those of neighbouring tokens by a convolution")
    if _child(module, _Z_NORM):
        found.append("the heads' outputs are normalised before the output projection")
    doubled = site.q is not None and width_out(site.q.module) == 2 * site.heads * site.head_dim
    if _child(module, _GATE) or (doubled and site.q.module is not site.k.module):  # Qwen 3.5: a gate beside the query
        found.append("each token gates the heads' outputs")
    return found


def _names(module: nn.Module) -> set[str]:
    """Return the names that a module's forward uses, and those of its own methods that it calls."""
    kind = type(module)
    found = _code_names(kind.forward)
    for name in list(found):
        method = inspect.getattr_static(kind, name, None)
        if inspect.isfunction(method) and method is not kind.forward:
            found |= _code_names(method)
    return found


def _code_names(function: object) -> set[str]:
    return set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))


def _arguments(module: nn.Module) -> set[str]:
    return set(inspect.signature(inspect.unwrap(type(module).forward)).parameters)


def _child(module: nn.Module, pattern: re.Pattern) -> bool:
    """Tell whether a child that does something has a name of this kind."""
    return any(pattern.search(n) and not isinstance(c, nn.Identity) for n, c in module.named_children())


def _capped(module: nn.Module, names: set[str]) -> bool:
    """Tell whether a soft cap is used and set: Gemma 3 has the place for one, and None in it."""
    used = [n for n in names if _CAP.search(n)]
    if not used:
        return False
    held = [getattr(h, n) for h in (module, getattr(module, "config", None)) for n in used if hasattr(h, n)]
    return any(held) if held else True
