"""Where an attention module keeps its projections, and which of their rows belong to which head.

Models name and fuse their projections differently. This file is the only one that knows the names; all other code asks
a :class:`Projection` for the rows of a head and never reads a model's attributes.

Requirements:

1. Nothing is run: layouts are read from names, shapes and code, so that they are found in models of any size, and also
   on the meta device.
2. Sizes come from weights first: after pruning, a configuration shared by all layers is wrong for some of them.
3. A layout that is not certain is none: with wrong rows every result would be silently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._kinds import names_in
from headtools.heads._weights import bias_of, is_projection, is_transposed, shape_of, weight_of

PRUNED = "_headtools_pruned"  # in the __dict__ of a module that prune() has cut: its remaining and removed heads

# query, key and value as three modules; names are tried in this order
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
_BY_HEAD = "query_key_value"
# q alone, keys and values through a low-rank latent (DeepSeek's multi-head latent attention)
_LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
_OUT = (
    "o_proj",
    "out_proj",
    "c_proj",
    "Wo",
    "proj",
    "projection",
    "projection_layer",
    "dense",
    "o",
    "out_lin",
    "linear_out",
    "output",
    "attention_out",
    "post_proj",
    "output_projection",
)
_HEAD_DIM = ("v_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "d_head", "dim_head")
QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
# children of layers that are called attention but compute no attention: state-space models, RWKV, delta rule
_NOT_ATTENTION = ("conv1d", "receptance", "b_proj", "A_log")


@dataclass(frozen=True, eq=False)
class Projection:
    """The rows of one (possibly fused) weight that compute the heads' queries, keys or values.

    ``rows``: (heads, width) row indices in ``module``'s output.
    """

    module: nn.Module
    rows: Tensor

    @property
    def transposed(self) -> bool:
        """Return whether ``module`` is GPT-2's Conv1D, whose weight is (in, out) instead of (out, in)."""
        return is_transposed(self.module)

    def weight(self) -> Tensor:
        """Return the weight in use, adapters included, head by head: (heads, width, d_model)."""
        weight = weight_of(self.module)
        matrix = weight.T if self.transposed else weight
        return matrix[self.rows.to(matrix.device)]

    def bias(self) -> Tensor | None:
        """Return the bias head by head: (heads, width), or None where the projection has none."""
        bias = bias_of(self.module)
        return None if bias is None else bias[self.rows.to(bias.device)]


def uses_interface(module: nn.Module) -> bool:
    """Return whether ``module``'s forward calls transformers' AttentionInterface (read from its code, not run)."""
    return "ALL_ATTENTION_FUNCTIONS" in names_in(type(module).forward)


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether ``module`` is attention without AttentionInterface, by its class name and its projections."""
    if "att" not in type(module).__name__.lower() or any(hasattr(module, name) for name in _NOT_ATTENTION):
        return False
    children = dict(module.named_children())
    fused = any(_linear(children.get(name)) is not None for name in (*_BLOCKS, _BY_HEAD))
    return fused or any(all(_linear(children.get(n)) is not None for n in names) for names in _SEPARATE)


def tokens_first(module: nn.Module) -> bool:
    """Return whether attention works on (T, B, d_model), as in fairseq, and not on (B, T, d_model)."""
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
        projection = _linear(getattr(module, child, None))
        if projection is not None:
            return projection
    if "." not in name:
        return None
    # BERT and its family keep it beside the attention module, in <parent>.output.dense
    parent = root.get_submodule(name.rsplit(".", 1)[0])
    output = getattr(parent, "output", None)
    projection = _linear(getattr(output, "dense", None)) or _linear(output)
    return projection or _linear(getattr(parent, "out_proj", None)) or _linear(getattr(parent, "dense", None))


def head_width(module: nn.Module, out: nn.Module) -> int | None:
    """Return the number of features of one head in ``out``'s input (value_dim), or None where nothing determines it."""
    width = width_in(out)
    for name in _HEAD_DIM:
        value = getattr(module, name, None)
        if type(value) is int and value > 0 and width % value == 0:
            return value
    for source in (module, getattr(module, "config", None)):  # a pruned module is right, its configuration is not
        for name in QUERY_HEADS:
            value = getattr(source, name, None)
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
        modules = [_linear(children.get(name)) for name in names]
        if names[0] == "q_proj" and modules[0] is not None and modules[1] is not None and modules[2] is None:
            modules[2] = modules[1]  # Gemma 4's global layers use the keys as values
        if all(projection is not None for projection in modules):
            return _separate(modules, heads, value_dim)
    if "q_attn" in children and "c_attn" in children:  # GPT-2's cross attention: q separate, k and v fused
        q, kv = children["q_attn"], children["c_attn"]
        q_rows = torch.arange(heads * value_dim).view(heads, value_dim)
        k_rows, v_rows = torch.arange(2 * heads * value_dim).view(2, heads, value_dim)
        return Layout(Projection(q, q_rows), Projection(kv, k_rows), Projection(kv, v_rows))
    for name in (*_BLOCKS, _BY_HEAD):
        fused = _linear(children.get(name))
        if fused is not None:
            grouped = hasattr(module, "new_decoder_architecture")  # only Falcon has this attribute, true or false
            return _fused(fused, heads, value_dim, by_head=name == _BY_HEAD, grouped=grouped)
    return Layout()


def _separate(modules: list[nn.Module], heads: int, value_dim: int) -> Layout:
    """Return the rows of each head in three modules q, k, v; query heads may share keys (grouped-query attention)."""
    q, k, v = modules
    query_dim, remainder = divmod(width_out(q), heads)
    if remainder or width_out(v) % value_dim:
        return Layout()
    kv_heads = width_out(v) // value_dim
    if width_out(k) % kv_heads or heads % kv_heads:
        return Layout()
    key_dim = width_out(k) // kv_heads
    q_rows = torch.arange(heads * query_dim).view(heads, query_dim)
    if query_dim == 2 * key_dim:  # Qwen 3.5: for each head the query projection also computes an output gate
        q_rows = q_rows[:, :key_dim]
    return Layout(
        Projection(q, q_rows),
        Projection(k, torch.arange(kv_heads * key_dim).view(kv_heads, key_dim)),
        Projection(v, torch.arange(kv_heads * value_dim).view(kv_heads, value_dim)),
    )


def _fused(fused: nn.Module, heads: int, dim: int, by_head: bool, grouped: bool) -> Layout:
    """Return the rows of each head in one fused matrix; the number of key heads follows from its width.

    With ``by_head`` each group of query heads is followed by its key and value; a group has one query head unless
    ``grouped`` (Falcon), because other models with this order do not share keys.
    """
    total = width_out(fused)
    kv_heads, remainder = divmod(total - heads * dim, 2 * dim)
    if remainder or kv_heads < 1 or heads % kv_heads or (by_head and kv_heads != heads and not grouped):
        return Layout()
    if by_head:
        groups = torch.arange(total).view(kv_heads, heads // kv_heads + 2, dim)
        q, k, v = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
    else:
        rows = torch.arange(total).view(heads + 2 * kv_heads, dim)
        q, k, v = rows.split([heads, kv_heads, kv_heads])
    return Layout(*(Projection(fused, rows.contiguous()) for rows in (q, k, v)))
