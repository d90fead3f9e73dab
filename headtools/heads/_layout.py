"""Where an attention module keeps its projections, and which of their rows belong to which head.

The only file that knows the names by which models keep and fuse projections. Nothing is run, so that models on the meta
device have layouts too; sizes come from weights first, since a shared configuration is wrong after pruning; a layout
that is not certain is none, for with wrong rows every result would be silently wrong.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headtools.heads._kinds import names_in

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
_OUT = ("o_proj", "out_proj", "c_proj", "Wo", "proj", "projection", "projection_layer", "dense", "o", "out_lin")
_OUT += ("linear_out", "output", "attention_out", "post_proj", "output_projection")
_HEAD_DIM = ("v_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "head_size", "d_head", "dim_head")
QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
# children of layers that are called attention but compute no attention: state-space models, RWKV, delta rule
_NOT_ATTENTION = ("conv1d", "receptance", "b_proj", "A_log")
_FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)  # 8-bit floats come with scales

_COMPUTED = {"weight_orig", "bias_orig", "weight_g", "weight_v"}  # what torch.nn.utils computes a weight or bias from


@dataclass(frozen=True, eq=False)
class Projection:
    """The rows of one (possibly fused) weight that compute the heads' queries, keys or values.

    ``rows``: (heads, width) row indices in ``module``'s output.
    """

    module: nn.Module
    rows: Tensor

    def weight(self) -> Tensor:
        """Return the weight head by head: (heads, width, d_model); raises as ``plain_weight`` does."""
        matrix = plain_weight(self.module)
        return (matrix.T if is_transposed(self.module) else matrix)[self.rows.to(matrix.device)]

    def bias(self) -> Tensor | None:
        """Return the bias head by head: (heads, width), or None where the projection has none."""
        plain_weight(self.module)  # raises where the bias, too, would be another
        bias = getattr(self.module, "bias", None)
        return None if bias is None else bias[self.rows.to(bias.device)]


def plain_weight(layer: nn.Module) -> Tensor:
    """Return the weight of a layer, (out, in), or (in, out) in a Conv1D.

    Raises ``ValueError`` where that is not all the layer applies: adapters, computed weights, quantised layers.

    >>> plain_weight(nn.Linear(2, 3)).shape
    torch.Size([3, 2])
    """
    if reason := obstacle(layer):
        raise ValueError(f"the weights of heads cannot be read: {reason}")
    return layer.weight


def obstacle(layer: nn.Module) -> str | None:
    """Return why a layer applies more than its own floating-point weight, and what to do about it, or None.

    >>> obstacle(torch.nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))[:41]
    'the weight of a ParametrizedLinear is com'
    """
    kind = type(layer).__name__
    if unwrapped(layer) is not layer:
        return f"a {kind} of PEFT is an adapter around a layer; merge first: model = model.merge_and_unload()"
    # torch.nn.utils makes a weight from others, by a parametrization or before each forward pass
    if hasattr(layer, "parametrizations") or _COMPUTED & layer._parameters.keys():
        return (
            f"the weight of a {kind} is computed by torch.nn.utils (a norm, a mask or a parametrization); make it "
            "plain with its remove function, such as parametrize.remove_parametrizations(layer, 'weight')"
        )
    weight = layer._parameters.get("weight")
    if weight is None or weight.dtype not in _FLOAT_DTYPES or is_packed(weight):
        return (
            f"a {kind} does not keep its weight as a floating-point tensor (it is quantised); load the model in "
            "floating point. Gates, ablation and records of z work on quantised layers too"
        )
    return None


def is_packed(weight: Tensor) -> bool:
    """Return whether a weight is one of torchao's: it says float32, and knows how to multiply and little else."""
    return type(weight).__module__.startswith("torchao.")


def unwrapped(layer: nn.Module) -> nn.Module:
    """Return the layer inside PEFT's adapters and trained copies, or the layer itself where there are none."""
    while type(layer).__module__.startswith("peft."):
        inner = getattr(layer, "base_layer", None)
        inner = getattr(layer, "original_module", None) if inner is None else inner
        if inner is None:
            return layer
        layer = inner
    return layer


def is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is GPT-2's Conv1D, whose weight is (in, out), and not (out, in) as in nn.Linear."""
    kind = type(unwrapped(layer))
    return "Conv1D" in (kind.__name__, kind.__base__.__name__)


def is_projection(layer: nn.Module) -> bool:
    """Return whether a layer multiplies by one matrix, be it wrapped, quantised or plain."""
    layer = unwrapped(layer)
    if isinstance(layer, nn.Linear) or is_transposed(layer):
        return True
    weight = getattr(layer, "weight", None)
    if isinstance(weight, Tensor):
        return weight.dim() == 2
    packed = callable(weight) or isinstance(getattr(layer, "qweight", None), Tensor)  # torch.ao; GPTQ, AWQ
    return packed and isinstance(getattr(layer, "in_features", None), int)


def shape_of(layer: nn.Module) -> tuple[int, int]:
    """Return the numbers of output and input features of a projection; no weight is computed or unpacked.

    >>> shape_of(nn.Linear(2, 3))
    (3, 2)
    """
    layer = unwrapped(layer)
    weight = layer._parameters.get("weight")
    if weight is not None and weight.dim() == 2 and weight.dtype in _FLOAT_DTYPES:
        return tuple(weight.shape)[::-1] if is_transposed(layer) else tuple(weight.shape)
    if is_transposed(layer):
        return layer.nf, layer.nx
    if isinstance(getattr(layer, "out_features", None), int):  # the weight is computed, packed or quantised
        return layer.out_features, layer.in_features
    return tuple(layer.weight.shape)


def looks_like_attention(module: nn.Module) -> bool:
    """Return whether ``module`` is attention without AttentionInterface, by its class name and its projections."""
    if "att" not in type(module).__name__.lower() or any(hasattr(module, name) for name in _NOT_ATTENTION):
        return False
    children = dict(module.named_children())
    fused = any(_linear(children.get(name)) is not None for name in (*_BLOCKS, _BY_HEAD))
    return fused or any(all(_linear(children.get(n)) is not None for n in names) for names in _SEPARATE)


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
    width, config = shape_of(out)[1], getattr(module, "config", None)
    # a pruned module is right, its configuration is not
    for source, names in ((module, _HEAD_DIM), (module, QUERY_HEADS), (config, QUERY_HEADS)):
        for name in names:
            value = getattr(source, name, None)
            if type(value) is int and value > 0 and width % value == 0:
                return value if names is _HEAD_DIM else width // value
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
    if hasattr(module, "lambda_q1"):  # differential attention: z is made of differences of pairs of heads
        return Layout()
    if "MergedAttention" in type(module).__name__:  # T5Gemma 2 reads two sequences at once: no kind is right
        return Layout()
    methods = filter(inspect.isfunction, vars(type(module)).values())
    if any("multi_head_attention_forward" in names_in(method) for method in methods):
        return Layout()  # WavLM: torch's function takes the weights, and the projections are never called
    if None not in map(_linear, map(children.get, _LATENT)):
        return Layout(latent=True)
    for names in _SEPARATE:
        q, k, v = map(_linear, map(children.get, names))
        if names[0] == "q_proj" and q is not None and k is not None and v is None:
            v = k  # Gemma 4's global layers use the keys as values
        if q is not None and k is not None and v is not None:
            return _separate(q, k, v, heads, value_dim)
    if "q_attn" in children and "c_attn" in children:  # GPT-2's cross attention: q separate, k and v fused
        q, kv = children["q_attn"], children["c_attn"]
        k_rows, v_rows = _rows(2 * heads, value_dim).split(heads)
        return Layout(Projection(q, _rows(heads, value_dim)), Projection(kv, k_rows), Projection(kv, v_rows))
    for name in (*_BLOCKS, _BY_HEAD):
        fused = _linear(children.get(name))
        if fused is not None:
            if type(module).__name__.startswith("CodeGen"):
                return _fused_in_four(fused, heads, value_dim)
            grouped = hasattr(module, "new_decoder_architecture")  # only Falcon has this attribute, true or false
            return _fused(fused, heads, value_dim, by_head=name == _BY_HEAD, grouped=grouped)
    return Layout()


def _rows(heads: int, width: int) -> Tensor:
    """Return row indices head by head, (heads, width); on the CPU, also where a model is built on the meta device."""
    return torch.arange(heads * width, device="cpu").view(heads, width)


def _separate(q: nn.Module, k: nn.Module, v: nn.Module, heads: int, value_dim: int) -> Layout:
    """Return the rows of each head in three modules; query heads may share keys (grouped-query attention)."""
    query_dim, remainder = divmod(shape_of(q)[0], heads)
    kv_heads, remainder_v = divmod(shape_of(v)[0], value_dim)
    if remainder or remainder_v or shape_of(k)[0] % kv_heads or heads % kv_heads:
        return Layout()
    key_dim = shape_of(k)[0] // kv_heads
    q_rows = _rows(heads, query_dim)
    if query_dim == 2 * key_dim and key_dim == value_dim:  # Qwen 3.5: the query projection also makes an output gate
        q_rows = q_rows[:, :key_dim]
    elif query_dim != key_dim:  # ConvBERT: half of these heads are convolutions
        return Layout()
    return Layout(
        Projection(q, q_rows), Projection(k, _rows(kv_heads, key_dim)), Projection(v, _rows(kv_heads, value_dim))
    )


def _fused(fused: nn.Module, heads: int, dim: int, by_head: bool, grouped: bool) -> Layout:
    """Return the rows of each head in one fused matrix; the number of key heads follows from its width.

    With ``by_head`` each group of query heads is followed by its key and value; a group has one query head unless
    ``grouped`` (Falcon), because other models with this order do not share keys.
    """
    total = shape_of(fused)[0]
    kv_heads, remainder = divmod(total - heads * dim, 2 * dim)
    if remainder or kv_heads < 1 or heads % kv_heads or (by_head and kv_heads != heads and not grouped):
        return Layout()
    rows = _rows(total // dim, dim)
    if by_head:
        groups = rows.view(kv_heads, heads // kv_heads + 2, dim)
        q, k, v = groups[:, :-2].flatten(0, 1), groups[:, -2], groups[:, -1]
    else:
        q, k, v = rows.split([heads, kv_heads, kv_heads])
    return Layout(*(Projection(fused, part.contiguous()) for part in (q, k, v)))


def _fused_in_four(fused: nn.Module, heads: int, dim: int) -> Layout:
    """Return the rows of each head in CodeGen's matrix: four blocks, each with queries, values, keys of its heads."""
    if heads % 4 or shape_of(fused)[0] != 3 * heads * dim:
        return Layout()
    q, v, k = _rows(3 * heads, dim).view(4, 3, heads // 4, dim).unbind(1)
    return Layout(*(Projection(fused, part.flatten(0, 1).contiguous()) for part in (q, k, v)))
