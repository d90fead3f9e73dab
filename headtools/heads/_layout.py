"""Where an attention module keeps its projections, and which of their rows belong to which head.

Models name and fuse their projections differently. This file is the one place that knows the names; everything else
asks a :class:`Projection` for "the rows of head h" and never looks at a model's attributes again.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._weights import bias_of, is_projection, is_transposed, shape_of, weight_of

PRUNED = "_headtools_pruned"  # in the __dict__ of a module that prune() has cut: what is left and what is gone

# query, key and value as three modules, in the order in which the names are tried
_SEPARATE = [
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q", "k", "v"),
    ("q_lin", "k_lin", "v_lin"),
    ("linear_q", "linear_k", "linear_v"),
    ("Wq", "Wk", "Wv"),
    ("query_proj", "key_proj", "value_proj"),
    ("project_q", "project_k", "project_v"),
    ("q_head", "k_head", "v_head"),
]
# all three in one module: [q of all heads | k of all heads | v of all heads] ...
_BLOCKS = ("Wqkv", "qkv_proj", "qkv", "c_attn", "att_proj")
# ... or head by head: [q0 k0 v0 | q1 k1 v1 | ...]
_BY_HEAD = ("query_key_value",)
# q alone, keys and values through a low-rank latent (DeepSeek's multi-head latent attention)
_LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
_OUT = ("o_proj", "out_proj", "c_proj", "Wo", "proj", "projection", "projection_layer", "dense", "o", "out_lin",
        "linear_out", "output", "attention_out", "post_proj", "output_projection")  # fmt: skip
_HEAD_DIM = ("v_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "d_head", "dim_head")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
# modules that look like attention but have no heads that attend: state-space and delta-rule layers
_NOT_ATTENTION = ("conv1d", "receptance", "b_proj", "A_log")


@dataclass(frozen=True, eq=False)
class Projection:
    """The rows of one (possibly shared) weight that make a head's query, key or value.

    ``rows``: (heads, width) row numbers in ``module``'s output; ``transposed`` marks GPT-2's Conv1D, whose weight is
    (in, out) instead of (out, in).
    """

    module: nn.Module
    rows: Tensor
    transposed: bool = False

    def weight(self) -> Tensor:
        """Return the weight that is applied, adapters included, head by head: (heads, width, d_model)."""
        weight = weight_of(self.module)
        matrix = weight.T if self.transposed else weight
        return matrix[self.rows.to(matrix.device)]

    def bias(self) -> Tensor | None:
        """Return the bias head by head: (heads, width), or None where the projection has none."""
        bias = bias_of(self.module)
        return None if bias is None else bias[self.rows.to(bias.device)]


def uses_interface(module: nn.Module) -> bool:
    """Tell whether ``module``'s forward calls transformers' AttentionInterface (read from its code, not run)."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names


def looks_like_attention(module: nn.Module) -> bool:
    """Tell whether ``module`` is attention of the older kind, by its class name and its query/key/value children."""
    if "att" not in type(module).__name__.lower() or any(hasattr(module, name) for name in _NOT_ATTENTION):
        return False
    children = dict(module.named_children())
    fused = any(_linear(children.get(name)) is not None for name in _BLOCKS + _BY_HEAD)
    return fused or any(all(_linear(children.get(n)) is not None for n in names) for names in _SEPARATE)


def tokens_first(module: nn.Module) -> bool:
    """Tell attention that works on (T, B, d_model), as fairseq did, from the usual (B, T, d_model)."""
    return type(module).__module__.endswith(".modeling_fsmt")


def width_in(module: nn.Module) -> int:
    """Return how many features a projection reads."""
    return shape_of(module)[1]


def width_out(module: nn.Module) -> int:
    """Return how many features a projection writes."""
    return shape_of(module)[0]


def _linear(module: object) -> nn.Module | None:
    """Return the matrix inside ``module``: itself, or the ``linear`` it wraps (Moshi, Gemma 4 vision), or None."""
    if isinstance(module, nn.Module):
        if is_projection(module):
            return module
        inner = getattr(module, "linear", None)
        return _linear(inner) if isinstance(inner, nn.Module) else None
    return None


def find_output(root: nn.Module, name: str, module: nn.Module) -> nn.Module | None:
    """Return the output projection of the attention module called ``name``: its own child, or its parent's."""
    for child in _OUT:
        found = _linear(getattr(module, child, None))
        if found is not None:
            return found
    if "." not in name:
        return None
    # BERT and its family keep it beside the attention module, in <parent>.output.dense
    parent = root.get_submodule(name.rsplit(".", 1)[0])
    output = getattr(parent, "output", None)
    found = _linear(getattr(output, "dense", None)) or _linear(output)
    return found or _linear(getattr(parent, "out_proj", None)) or _linear(getattr(parent, "dense", None))


def head_width(module: nn.Module, out: nn.Module) -> int | None:
    """Return how many features of ``out``'s input are one head's, or None where nothing says so."""
    width = width_in(out)
    for name in _HEAD_DIM:
        value = getattr(module, name, None)
        if type(value) is int and value > 0 and width % value == 0:
            return value
    config = getattr(module, "config", None)
    for holder in (module, config):
        for name in _HEADS:
            value = getattr(holder, name, None)
            if type(value) is int and value > 0 and width % value == 0:
                return width // value
    return None


@dataclass(frozen=True)
class Layout:
    """Query, key and value projections of one attention module, and whether keys and values are latent."""

    q: Projection | None = None
    k: Projection | None = None
    v: Projection | None = None
    latent: bool = False


def find_projections(module: nn.Module, heads: int, value_dim: int) -> Layout:
    """Return the query, key and value projections of ``module`` with each head's rows; empty where unknown."""
    children = dict(module.named_children())
    if all(_linear(children.get(n)) is not None for n in _LATENT):
        return Layout(latent=True)
    for names in _SEPARATE:
        found = [_linear(children.get(n)) for n in names]
        if names[0] == "q_proj" and found[0] is not None and found[1] is not None and found[2] is None:
            found[2] = found[1]  # Gemma 4's wide layers use the keys as values
        if all(f is not None for f in found):
            return _separate(found, heads, value_dim)
    if "q_attn" in children and "c_attn" in children:  # GPT-2's cross attention: q apart, k and v fused
        q, kv = children["q_attn"], children["c_attn"]
        span = torch.arange(2 * heads * value_dim).view(2, heads, value_dim)
        rows = torch.arange(heads * value_dim).view(heads, value_dim)
        return Layout(*(Projection(m, r, True) for m, r in ((q, rows), (kv, span[0]), (kv, span[1]))))
    for name in (*_BLOCKS, *_BY_HEAD):
        fused = _linear(children.get(name))
        if fused is not None:
            shared = hasattr(module, "new_decoder_architecture")  # Falcon's, also when it is the old one
            return _fused(fused, heads, value_dim, by_head=name in _BY_HEAD, shared=shared)
    return Layout()


def _separate(found: list[nn.Module], heads: int, value_dim: int) -> Layout:
    """Give each head its rows when query, key and value are three modules, keys possibly shared by query heads."""
    q, k, v = found
    dim, extra = divmod(width_out(q), heads)
    if extra or width_out(v) % value_dim:
        return Layout()
    kv_heads = width_out(v) // value_dim
    if width_out(k) % kv_heads or heads % kv_heads:
        return Layout()
    key_dim = width_out(k) // kv_heads
    if dim == 2 * key_dim:  # Qwen 3.5: the query projection also makes an output gate, head by head
        query = torch.arange(heads * dim).view(heads, dim)[:, :key_dim]
    else:
        query = torch.arange(heads * dim).view(heads, dim)
    return Layout(
        Projection(q, query, is_transposed(q)),
        Projection(k, torch.arange(kv_heads * key_dim).view(kv_heads, key_dim), is_transposed(k)),
        Projection(v, torch.arange(kv_heads * value_dim).view(kv_heads, value_dim), is_transposed(v)),
    )


def _fused(fused: nn.Module, heads: int, dim: int, by_head: bool, shared: bool = False) -> Layout:
    """Give each head its rows in one fused matrix, with as many key heads as the width leaves.

    ``by_head``: the key and the value of each group of query heads follow these, and only where that is known of the
    module (``shared``: Falcon) may a group have several.
    """
    total, transposed = width_out(fused), is_transposed(fused)
    kv_heads, extra = divmod(total - heads * dim, 2 * dim)
    if extra or kv_heads < 1 or heads % kv_heads or (by_head and kv_heads != heads and not shared):
        return Layout()
    if by_head:
        groups = torch.arange(total).view(kv_heads, heads // kv_heads + 2, dim)
        q, k, v = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
    else:
        rows = torch.arange(total).view(heads + 2 * kv_heads, dim)
        q, k, v = rows.split([heads, kv_heads, kv_heads])
    return Layout(*(Projection(fused, r.contiguous(), transposed) for r in (q, k, v)))
