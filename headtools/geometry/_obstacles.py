"""What comes between a head's weights and its scores, so that W_QK or W_OV would not describe the head.

An architecture that the package has never seen must be refused if it does something to queries, keys, values or scores
that a product of weights cannot express. So nothing is looked up by class: an attention module's code, its children and
its attributes are searched for names; nothing is run. A name too many is an error message with a way out; a name too
few would be a wrong number.
"""

from __future__ import annotations

import inspect
import re

from torch import nn

from headtools.heads._kinds import names_in
from headtools.heads._layout import shape_of
from headtools.heads.sites import Site

_ROTARY = re.compile(r"rotary|rotate|(^|_)rope(_|$)|rotation", re.I)
# Attributes that are False in a layer without rotary positions (Llama 4 and SmolLM 3 have both sorts of layers).
_ROTARY_SWITCHES = ("use_rope", "use_rotary", "use_rotary_embeddings", "rotary", "apply_rope")
_CAP = re.compile(r"(attn|attention|logits?).*cap|soft_?cap|cap_logits", re.I)
_POSITION = re.compile(
    r"alibi|relative|position_bias|rel_(pos|att|emb|shift|logits)|(^|_)rpe(_|$)|pos_(bias|proj)|distance_emb|r_r_bias",
    re.I,
)
_NORM = r"(layer_?norm|norm|ln)"
_NORMALISED = "queries and keys are normalised, each by its own length"
_QUERY_KEY = {  # the name of a child module -> what it does to queries and keys
    rf"^(q|k|qk|query|key)s?_?{_NORM}|^{_NORM}_?(q|k|qk|query|key)$": _NORMALISED,
    r"^[qk]_?s?conv": "queries or keys are mixed with those of neighbouring tokens by a convolution",
}
_VALUE = {  # ... and to values, or to the heads' outputs
    rf"^(v|value)s?_?{_NORM}|^{_NORM}_?(v|value)$": "values are normalised, each by its own length",
    r"^v_?s?conv": "values are mixed with those of neighbouring tokens by a convolution",
    r"sub_?(layer_?)?norm|group_?norm|inner_attn_ln|attn_ln|^[go]_norm|^norm$": (
        "the heads' outputs are normalised before the output projection"
    ),
    r"^(\w_|attn_|out(put)?_)?(gate|g)(_proj|_per_head)?$": "each token gates the heads' outputs",
}


def query_key_obstacles(site: Site) -> tuple[list[str], list[str]]:
    """Return why a site's scores are not the bilinear form x W_QK yᵀ, and what is added to that form.

    The first list has reasons of which one is enough. The second has terms that depend on positions and are added, so
    that W_QK is the part of the score that depends on content.
    """
    module, additions, names = site.module, [], _names_used(site.module)
    obstacles = _children(module, _QUERY_KEY)
    if site.q is None or site.k is None:
        obstacles.append("keys come out of a normalised latent")
    if any(map(_ROTARY.search, names)) and not any(getattr(module, s, None) is False for s in _ROTARY_SWITCHES):
        obstacles.append("queries and keys are rotated by their positions (RoPE)")
    if "normalize" in names and _NORMALISED not in obstacles:  # F.normalize, no module
        obstacles.append(_NORMALISED)
    if _capped(module, names):
        obstacles.append("scores go through a soft cap, c tanh(score / c)")
    arguments = inspect.signature(inspect.unwrap(type(module).forward)).parameters
    # T5's cross-attention has the argument too, but is given a bias of zeros.
    if site.kind != "cross" and any(map(_POSITION.search, names | set(arguments))):
        additions.append("a term of relative positions is added to the scores (ALiBi, T5, DeBERTa)")
    return obstacles, additions


def output_value_obstacles(site: Site) -> list[str]:
    """Return why a site's heads do not write A Y W_OV: latent or normalised values, a norm or gate on z."""
    obstacles = _children(site.module, _VALUE)
    if site.v is None:
        return [*obstacles, "values come out of a normalised latent"]
    # Qwen 3.5 projects a gate beside the query, by a matrix of twice the width; a fused q, k, v matrix can be as wide.
    doubled = shape_of(site.q.module)[0] == 2 * site.heads * site.head_dim and site.q.module is not site.k.module
    return [*obstacles, "each token's queries come with gates"] if doubled else obstacles


def _names_used(module: nn.Module) -> set[str]:
    """Return the names in the code of a module's forward, and in that of its own methods that forward calls."""
    module_class = type(module)
    names = names_in(module_class.forward)
    for name in list(names):
        method = inspect.getattr_static(module_class, name, None)
        if inspect.isfunction(method) and method is not module_class.forward:
            names |= names_in(method)
    return names


def _children(module: nn.Module, reasons: dict[str, str]) -> list[str]:
    """Return the reasons whose pattern the name of a child module that is not an identity matches."""
    names = [name for name, child in module.named_children() if not isinstance(child, nn.Identity)]
    return [reason for pattern, reason in reasons.items() if any(re.search(pattern, name, re.I) for name in names)]


def _capped(module: nn.Module, names: set[str]) -> bool:
    """Return whether a soft cap is used and set: Gemma 3 uses the name of one, and its value is None."""
    used = [name for name in names if _CAP.search(name)]
    owners = (module, getattr(module, "config", None))
    values = [getattr(owner, name) for owner in owners for name in used if hasattr(owner, name)]
    return any(values) if values else bool(used)
