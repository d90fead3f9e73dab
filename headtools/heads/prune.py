"""Structured pruning of heads: ``prune`` slices the weights, ``pruned`` lists the pruned heads, ``replay`` repeats it.

A pruned model computes what it computes with the same heads at gate 0; the output projection's bias stays. Every check
comes before the first change. Slices keep the order in which the forward reads a fused projection, and the module must
learn its new size, under the names that its class uses or a configuration shared by all layers. The module keeps the
original indices, so that ``pruned`` and ``replay`` do not depend on the order of cuts.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType

import torch
from torch import Tensor, nn

from headtools.heads import _layout as layout
from headtools.heads._attention import PRUNED_BIAS, LayerConfig
from headtools.heads._checks import check_interface, check_not_compiled, check_not_offloaded, check_plain_weights
from headtools.heads._hooks import check_no_open_context
from headtools.heads._layout import PRUNED, QUERY_HEADS
from headtools.heads.groups import model_size
from headtools.heads.sites import Heads, Site, select, sites
from headtools.heads.verify import check_verified

# names of sizes in attention modules
KEY_HEADS = ("num_key_value_heads", "kv_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "embed_dim", "inner_dim", "q_dim")
_KEY_WIDTH = "kv_dim"


def prune(model: nn.Module, heads: Heads, *, groups: bool = False) -> None:
    """Remove ``heads`` from ``model`` in place, by slicing its weights.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...], with indices as ``sites(model)`` has them now. A
    cut that leaves groups of query heads uneven gives each query head its own copy of its keys and values: the same
    function, and a warning (``UserWarning``) where weights or cache grow by it. With ``groups`` the indices are those
    of key-value heads, and each goes with all query heads that read it, so that weights and cache shrink. Of a layer
    without heads one silent head remains, which does not learn. Create optimizers afterwards.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there, named twice or none,
    ``ValueError`` for attention that cannot be sliced (latent keys, no AttentionInterface, parameters that mix heads,
    adapters, quantised or offloaded weights), ``RuntimeError`` for a compiled model or inside another context; nothing
    is changed then.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> ht.prune(model, {("encoder", 0): [1, 2]})
    >>> ht.sites(model)["encoder", 0].heads, ht.pruned(model)
    (2, [('encoder', 0, 1), ('encoder', 0, 2)])
    """
    check_not_offloaded(model, "prune")
    selected = select(sites(model), heads)
    for site, indices in list(selected.items()) if groups else ():
        size = site.heads // site.kv_heads
        if indices and max(indices) >= site.kv_heads:
            raise IndexError(
                f"{site.label} has key-value heads 0..{site.kv_heads - 1}, got {max(indices)}: with groups=True heads "
                "are key-value heads; name query heads without it"
            )
        selected[site] = [group * size + i for group in indices for i in range(size)]
    if not selected:
        raise ValueError(
            'got no heads, so nothing was pruned: prune(model, {("encoder", 2): [0, 5]}); where there may be none, '
            "write if heads: prune(model, heads)"
        )
    # Only where query heads share keys can a cut copy some, and so make the model larger.
    before = model_size(model, 1) if any(site.kv_heads < site.heads for site in selected) else None
    _cut(model, selected)
    if before:
        _warn_of_growth(before, model_size(model, 1))


def _warn_of_growth(before: dict[str, int], after: dict[str, int]) -> None:
    """Warn where a cut made the weights or the cache larger."""
    units = {"parameters": "parameters", "cache_bytes": "bytes of cache a token"}
    grown = [
        f"{after[name]:,} {unit} for {before[name]:,}" for name, unit in units.items() if after[name] > before[name]
    ]
    if grown:
        warnings.warn(
            f"the cut made the model larger: {', '.join(grown)}. Query heads that shared keys and values have copies "
            "of their own now. Cut whole groups: prune(model, group_scores(model, scores).order()[:n], groups=True)",
            stacklevel=3,
        )


def pruned(model: nn.Module) -> list[tuple]:
    """Return the heads that ``prune`` removed, by their original indices: what ``replay`` takes, and JSON can hold.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> ht.pruned(BertModel(BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, vocab_size=9)))
    []
    """
    return [
        (*site.key, head) for site in sites(model) for head in site.module.__dict__.get(PRUNED, {}).get("removed", ())
    ]


def replay(model: nn.Module, heads: Heads, copied: Iterable[Sequence] = ()) -> None:
    """Prune a fresh model of the same architecture as another was pruned, so that its weights can be loaded.

    ``heads``: what ``pruned`` returned, original indices, also read back from JSON. ``copied``: what ``ungrouped``
    returned for the model pruned first, whose shapes may depend on the order of cuts. Weights need not be loaded yet,
    and may be on the meta device. Raises as ``prune`` does, and ``ValueError`` for a head that is already pruned.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> cut, fresh = BertModel(tiny), BertModel(tiny)
    >>> ht.prune(cut, {("encoder", 0): [1]})
    >>> ht.prune(cut, {("encoder", 0): [1]})  # a second head: index 2 of the original
    >>> ht.replay(fresh, ht.pruned(cut))
    >>> fresh.load_state_dict(cut.state_dict())
    <All keys matched successfully>
    """
    if any(hasattr(module, "_hf_hook") for module in model.modules()):
        check_not_offloaded(model, "replay")  # accelerate would load the weights in their old shapes
    copied = {tuple(key) for key in copied}
    selected = select(sites(model), heads, original=True)
    _cut(model, {site: indices for site, indices in selected.items() if site.key not in copied})
    _cut(model, {site: indices for site, indices in selected.items() if site.key in copied}, copied=True)


def ungrouped(model: nn.Module) -> list[tuple]:
    """Return the sites in which pruning gave every query head its own copy of its keys and values.

    Later cuts do not group them again, so pruning the same heads in one step may result in other shapes.
    """
    return [site.key for site in sites(model) if site.module.__dict__.get(PRUNED, {}).get("ungrouped")]


def _cut(model: nn.Module, selected: Mapping[Site, list[int]], copied: bool = False) -> None:
    check_not_compiled(model)
    check_no_open_context(model, "prune()")
    for site in selected:
        check_plain_weights(model, (*site.module.modules(), site.out), "prune")
    check_verified(model, list(selected), "queries", "keys", "values", "gate")
    cuts = [_plan_cut(site, heads, copied) for site, heads in selected.items()]  # raises before any change
    with torch.no_grad():
        for apply_cut in cuts:
            apply_cut()


def _plan_cut(site: Site, cut: list[int], copied: bool) -> Callable[[], None]:
    """Return the function that removes the heads ``cut`` of one site; raise where that is impossible.

    With ``copied`` every query head gets its own keys and values, also where it could share them.
    """
    check_prunable(site)
    keep = sorted(set(range(site.heads)) - set(cut))
    empty = not keep
    keep = keep or [0]  # the silent head: its columns of the output projection become 0
    groups = [head // (site.heads // site.kv_heads) for head in keep]  # the key-value head of each query head
    # groups of one size still share their keys and values; else a repeated index copies them
    even = len(set(map(groups.count, groups))) == 1
    key_heads = sorted(set(groups)) if even and not copied else groups
    slices = list(_rows_to_keep(site, keep, key_heads))
    state = site.module.__dict__.get(PRUNED) or {"removed": (), "physical": site.original}
    new_state = {
        "removed": tuple(sorted((*state["removed"], *map(site.original.__getitem__, cut)))),
        "physical": tuple(map(state["physical"].__getitem__, keep)),
        "empty": empty,
        "ungrouped": state.get("ungrouped", False) or len(set(key_heads)) < len(key_heads),
    }
    # on the CPU, also where a model is built on the meta device
    columns = torch.arange(site.heads * site.value_dim, device="cpu").view(site.heads, -1)[keep].flatten()

    def apply() -> None:
        for module, rows in slices:
            _slice(module, rows, outgoing=True)
        _slice(site.out, columns, outgoing=False)
        if empty:
            # A silent head that learned would be there again, and counted as gone. With values of 0 as well, the
            # gradients of both are 0, so that it stays silent where someone unfreezes the weights of the whole model.
            site.out.weight.zero_()  # the bias stays: it belongs to no head
            site.out.weight.requires_grad_(False)
            _silence_values(site, dict(slices)[site.v.module], site.v.rows[key_heads])
        sinks = getattr(site.module, "sinks", None)
        if isinstance(sinks, Tensor):
            site.module.sinks = nn.Parameter(sinks[keep].clone(), sinks.requires_grad)
        _resize(site, len(keep), len(key_heads))
        site.module.__dict__[PRUNED] = new_state  # not an attribute that state_dict would save

    return apply


def check_prunable(site: Site) -> None:
    """Raise ``ValueError`` for a site where slicing would not equal gating."""
    name = f"{type(site.module).__name__} ({site.label})"
    advice = "use ablate(model, heads) instead, which gives the same outputs"
    if site.empty:
        raise ValueError(f"all heads of {site.label} are already pruned")
    if site.latent:
        raise ValueError(
            f"{name} computes the keys and values of all heads from one latent vector, so none can be cut: {advice}"
        )
    check_interface(site, f"its forward may rely on its full width: {advice}")
    if type(site.module).__name__ in ("UMT5Attention", "EomtAttention", "EomtDinov3Attention"):
        raise ValueError(f"{name} shapes its tensors by the full number of heads: {advice}")
    projections = list(dict.fromkeys((site.q.module, site.k.module, site.v.module, site.out)))
    sliced: set[int] = set()
    for module in projections:
        sliced |= set(map(id, module.parameters()))
    for parameter, tensor in site.module.named_parameters():
        harmless = (
            id(tensor) in sliced
            # a norm inside each head; where n_heads == head_dim the shape alone does not tell it from a parameter of
            # the attention module itself with one number for each head
            or (
                tuple(tensor.shape) in ((site.head_dim,), (site.value_dim,))
                and ("." in parameter or tuple(tensor.shape) != (site.heads,))
            )
            or (parameter == "sinks" and tensor.shape == (site.heads,))
            or parameter.startswith("relative_attention_bias")  # T5's, shared by all layers: sliced when it is used
            or parameter.startswith("LayerNorm")  # ALBERT's, after the output projection
        )
        if not harmless:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} has a parameter {parameter!r} of shape {shape} that may mix heads: {advice}")
    for module in projections:
        if not isinstance(module, nn.Linear) and not layout.is_transposed(module):
            kind = type(module).__name__
            raise ValueError(f"{name} projects with {kind}; only nn.Linear and Conv1D can be sliced: {advice}")
        rows: set[int] = set()
        for projection in (site.q, site.k, site.v):
            rows |= set(projection.rows.flatten().tolist()) if projection.module is module else set()
        if rows and len(rows) != layout.shape_of(module)[0]:
            raise ValueError(f"{name}: a projection computes more than queries, keys and values: {advice}")


def _rows_to_keep(site: Site, queries: list[int], keys: list[int]) -> Iterator[tuple[nn.Module, Tensor]]:
    """Yield each projection module with the rows to keep, in the order in which the model's forward reads them."""
    kept = [(site.q, queries), (site.k, keys)]
    if site.k.module is not site.v.module or not torch.equal(site.k.rows, site.v.rows):  # Gemma 4: keys are the values
        kept.append((site.v, keys))
    by_module: dict[nn.Module, list[Tensor]] = {}
    for projection, heads in kept:
        by_module.setdefault(projection.module, []).append(projection.rows[heads])  # (heads, width)
    # in a fused projection: head by head, [q0 k0 v0 | q1 k1 v1 | ...] (GPT-NeoX), and not [q | k | v]
    by_head = site.q.module is site.k.module and site.heads > 1 and bool(site.q.rows[1, 0] > site.k.rows[0, 0])
    for module, parts in by_module.items():
        yield module, torch.stack(parts, 1).flatten() if by_head else torch.cat(parts).flatten()


def _slice(module: nn.Module, index: Tensor, outgoing: bool) -> None:
    """Keep the outputs (or inputs) ``index`` of a projection."""
    transposed = layout.is_transposed(module)
    dim = 1 if transposed == outgoing else 0
    index = index.to(module.weight.device)
    module.weight = nn.Parameter(module.weight.index_select(dim, index).contiguous(), module.weight.requires_grad)
    bias = getattr(module, "bias", None)
    if outgoing and bias is not None:
        module.bias = nn.Parameter(bias[index].clone(), bias.requires_grad)
    names = ("nf", "nx") if transposed else ("out_features", "in_features")
    if hasattr(module, names[0 if outgoing else 1]):
        setattr(module, names[0 if outgoing else 1], len(index))


def _silence_values(site: Site, kept: Tensor, values: Tensor) -> None:
    """Set the values of a sliced site to 0: the rows ``kept`` of its projection that are among ``values``."""
    module, silent = site.v.module, torch.isin(kept, values).nonzero().flatten().to(site.v.module.weight.device)
    module.weight.index_fill_(1 if layout.is_transposed(module) else 0, silent, 0)
    if getattr(module, "bias", None) is not None:
        module.bias.index_fill_(0, silent, 0)


def _resize(site: Site, heads: int, kv_heads: int) -> None:
    """Set the attention module's sizes, under the names that its class uses."""
    module, own = site.module, vars(site.module)
    if "has_relative_attention_bias" in own:
        # T5 computes one position bias, with all heads, for all layers. The sizes stay, and the layer's own attention
        # function selects the rows of its remaining heads from the bias.
        module.config = LayerConfig(module.config, {"_attn_implementation": PRUNED_BIAS})
        return
    reads = _names_read(inspect.unwrap(type(module).forward).__code__)
    sizes = {**dict.fromkeys(QUERY_HEADS, heads), **dict.fromkeys(KEY_HEADS, kv_heads)}
    for name in sizes.keys() & own.keys():
        setattr(module, name, sizes[name])
    if "num_key_value_groups" in own:
        module.num_key_value_groups = heads // kv_heads
    for name in _WIDTHS:
        if own.get(name) == site.heads * site.value_dim and name in reads:
            setattr(module, name, heads * site.value_dim)
    if own.get(_KEY_WIDTH) == site.kv_heads * site.head_dim and _KEY_WIDTH in reads:
        setattr(module, _KEY_WIDTH, kv_heads * site.head_dim)
    for name in sizes.keys() - (reads - own.keys()):
        del sizes[name]
    if sizes and hasattr(module, "config"):  # Phi-3 reads its sizes from the shared configuration
        module.config = LayerConfig(module.config, sizes)


def _names_read(code: CodeType) -> set[str]:
    """Return the names that a function reads, its comprehensions included."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            names |= _names_read(inner)
    return names
