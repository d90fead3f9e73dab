"""Cut heads for good: ``prune`` slices the weights, ``pruned`` says what is gone, ``replay`` cuts a fresh model alike.

A pruned model gives what the gated model gives with the same heads at gate 0: the head's rows of the query, key and
value projections and its columns of the output projection are taken away; the output projection's bias stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType

import torch
from torch import Tensor, nn

from headtools.heads import _layout as layout
from headtools.heads._attention import PRUNED_BIAS
from headtools.heads._checks import check_not_compiled, check_not_offloaded
from headtools.heads._interventions import check_no_open_context
from headtools.heads._layer_config import LayerConfig
from headtools.heads._layout import PRUNED, Projection
from headtools.heads._select import Heads, select
from headtools.heads._weights import check_plain_weights
from headtools.heads.groups import query_heads, spared
from headtools.heads.sites import Site, sites

# what attention modules call their sizes
QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "num_attn_heads")
KEY_HEADS = ("num_key_value_heads", "kv_heads", "num_kv_heads")
_WIDTHS = ("all_head_size", "split_size", "embed_dim", "inner_dim", "q_dim")
_KEY_WIDTHS = ("kv_dim",)


def prune(
    model: nn.Module, heads: Heads, gqa: str = "ungroup", *, spare: Heads | None = None, groups: bool = False
) -> None:
    """Remove ``heads`` from ``model`` in place, by slicing its weights.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...], numbered as ``sites(model)`` has them now. Where
    query heads share keys and values, a cut that leaves the groups uneven gives every query head its own copy of its
    keys and values (``gqa="ungroup"``: the same function, a bigger cache) or is refused (``gqa="error"``). When all
    heads of a layer go, one silent head is left, since models cannot run with none. Parameters are replaced: make
    optimizers and compile after pruning.

    ``spare`` names heads that stay even if ``heads`` has them: a ranking holds for the corpus it was measured on, and
    may be blind to heads that other texts need (induction heads, say). With ``groups`` the numbers in ``heads`` are
    those of key-value heads, and each goes with all query heads that read it, so that weights and cache both shrink
    (``group_scores`` ranks them, ``model_size`` tells what a cut bought); a group with a spared query head stays.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there, named twice or cut before, and
    ``ValueError`` for attention that cannot be sliced, always before anything is changed: latent keys and values
    (DeepSeek), models without AttentionInterface, parameters that mix heads or that headtools does not know, weights
    that are offloaded; ``ValueError`` for no heads at all, and ``RuntimeError`` for a model compiled before or inside
    another context of headtools.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny)
    >>> ht.prune(model, {("encoder", 0): [1, 2]})
    >>> ht.sites(model)["encoder", 0].heads, ht.pruned(model)
    (2, [('encoder', 0, 1), ('encoder', 0, 2)])
    """
    if not cut_heads(model, heads, gqa, spare=spare, groups=groups):
        raise ValueError(
            'no heads came, so nothing was cut: prune(model, {("encoder", 2): [0, 5]}); where there may be none, write '
            "if heads: prune(model, heads)"
        )


def cut_heads(
    model: nn.Module, heads: Heads, gqa: str = "ungroup", *, spare: Heads | None = None, groups: bool = False
) -> int:
    """Do what ``prune`` does, of heads that may be none, as at the first point of a curve; return how many are cut.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> cut_heads(BertModel(tiny), [])
    0
    """
    if gqa not in ("ungroup", "error"):
        raise ValueError(f'gqa must be "ungroup" or "error", got {gqa!r}')
    check_not_compiled(model)
    check_no_open_context(model, "prune()")
    check_not_offloaded(model, "prune")
    chosen = select(sites(model), query_heads(model, heads) if groups else heads)
    chosen = spared(chosen, select(sites(model), spare or []), groups)
    check_plain_weights(model, [module for site in chosen for module in (*site.module.modules(), site.out)], "prune")
    _cut(chosen, gqa)
    return sum(map(len, chosen.values()))


def pruned(model: nn.Module) -> list[tuple]:
    """Return the heads that ``prune`` removed, by their original numbers: what ``replay`` needs, and fit for JSON.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> ht.pruned(BertModel(BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, vocab_size=9)))
    []
    """
    found = []
    for site in sites(model):
        state = site.module.__dict__.get(PRUNED)
        found += [(*site.key, head) for head in (state["removed"] if state else ())]
    return found


def replay(model: nn.Module, heads: Heads) -> None:
    """Prune a fresh model of the same architecture as another was pruned, so that its weights can be loaded.

    ``heads`` is what ``pruned`` returned, or the same after a trip through JSON. Numbers are the original ones,
    whatever was cut before. Raises as ``prune`` does, and ``ValueError`` when a head is gone already.

    >>> import headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> cut, fresh = BertModel(tiny), BertModel(tiny)
    >>> ht.prune(cut, {("encoder", 0): [1]})
    >>> ht.prune(cut, {("encoder", 0): [1]})  # a second head: number 2 of the original
    >>> ht.replay(fresh, ht.pruned(cut))
    >>> fresh.load_state_dict(cut.state_dict())
    <All keys matched successfully>
    """
    cut_heads(model, {site.key: some for site, some in select(sites(model), heads, original=True).items()})


def ungrouped(model: nn.Module) -> list[tuple]:
    """Return the sites in which a cut gave every query head its own copy of its keys and values.

    What is cut later does not join them again, so the same heads cut at once may leave other shapes.
    """
    return [site.key for site in sites(model) if site.module.__dict__.get(PRUNED, {}).get("ungrouped")]


def replay_before_loading(model: nn.Module, heads: Heads, copied: Iterable[Sequence] = ()) -> None:
    """Prune as ``replay`` does a model whose weights are still to be read: they may be on the meta device.

    ``copied``: what ``ungrouped`` returned of the model that was cut first.
    """
    copied = {tuple(key) for key in copied}
    with torch.device("cpu"):  # numbers of rows are looked at, whatever device the weights are made on
        chosen = select(sites(model), heads, original=True)
        _cut({site: some for site, some in chosen.items() if site.key not in copied}, "ungroup")
        _cut({site: some for site, some in chosen.items() if site.key in copied}, "copy")


def _cut(chosen: Mapping[Site, list[int]], gqa: str) -> None:
    cuts = [_plan_cut(site, some, gqa) for site, some in chosen.items() if some]  # raises before anything is changed
    with torch.no_grad():
        for cut in cuts:
            cut()


def _plan_cut(site: Site, cut: list[int], gqa: str) -> Callable[[], None]:
    """Work out the cut of one site and return the function that makes it; raise where it cannot be made."""
    check_prunable(site)
    keep = [h for h in range(site.heads) if h not in cut]
    empty = not keep
    keep = keep or [0]  # the silent head
    query, key, value, kv_heads = _remaining_heads(site, keep, gqa)
    parts = _rows_to_keep(site, query, key, value)
    state = site.module.__dict__.get(PRUNED) or {"removed": (), "physical": site.original}
    after = {
        "kept": () if empty else tuple(site.original[h] for h in keep),
        "removed": tuple(sorted((*state["removed"], *(site.original[h] for h in cut)))),
        "physical": tuple(state["physical"][h] for h in keep),
        "empty": empty,
        "ungrouped": state.get("ungrouped", False) or len(set(key)) < len(key),
    }
    columns = torch.arange(site.heads * site.value_dim).view(site.heads, site.value_dim)[keep].flatten()

    def apply() -> None:
        for module, rows in parts:
            _slice(module, rows, outgoing=True)
        _slice(site.out, columns, outgoing=False)
        if empty:
            site.out.weight.zero_()
        sinks = getattr(site.module, "sinks", None)
        if isinstance(sinks, Tensor):
            site.module.sinks = nn.Parameter(sinks[keep].clone(), sinks.requires_grad)
        _resize(site, len(keep), kv_heads)
        site.module.__dict__[PRUNED] = after

    return apply


def check_prunable(site: Site) -> None:
    """Raise where slicing would not be the same as gating."""
    name = f"{type(site.module).__name__} ({site.label})"
    advice = "use ablate(model, heads) instead, which gives the same outputs"
    if site.empty:
        raise ValueError(f"all heads of {site.label} are cut already")
    if site.latent:
        raise ValueError(f"{name} makes keys and values of all heads from one latent vector; none can be cut: {advice}")
    if not site.interface:
        raise ValueError(
            f"{name} does not use transformers' AttentionInterface, its forward may rely on its full width: {advice}"
        )
    if type(site.module).__name__ == "UMT5Attention":
        raise ValueError(f"{name} shapes its tensors by the full number of heads: {advice}")
    ours = {id(p) for m in (site.q.module, site.k.module, site.v.module, site.out) for p in m.parameters()}
    for parameter, tensor in site.module.named_parameters():
        known = (
            id(tensor) in ours
            # a norm inside each head; where n_heads == head_dim the shape alone does not tell it from one number a head
            or (
                tuple(tensor.shape) in ((site.head_dim,), (site.value_dim,))
                and not _may_be_one_per_head(parameter, tensor, site)
            )
            or (parameter == "sinks" and tensor.shape == (site.heads,))
            or parameter.startswith("relative_attention_bias")  # T5's, shared by all layers: sliced when it is used
            or parameter.startswith("LayerNorm")  # ALBERT's, after the output projection
        )
        if not known:
            shape = tuple(tensor.shape)
            raise ValueError(f"{name} has a parameter {parameter!r} of shape {shape} that may mix heads: {advice}")
    for module in {id(m): m for m in (site.q.module, site.k.module, site.v.module, site.out)}.values():
        if not isinstance(module, nn.Linear) and not layout.is_transposed(module):
            other = type(module).__name__
            raise ValueError(f"{name} projects with {other}; only nn.Linear and Conv1D can be sliced: {advice}")
        rows = [p.rows.flatten() for p in (site.q, site.k, site.v) if p.module is module]
        if rows and len(torch.cat(rows).unique()) != layout.width_out(module):
            raise ValueError(f"{name}: a projection makes more than queries, keys and values: {advice}")


def _may_be_one_per_head(parameter: str, tensor: Tensor, site: Site) -> bool:
    """Tell a parameter of the attention module itself that may hold one number for each head."""
    return "." not in parameter and tuple(tensor.shape) == (site.heads,)


def _remaining_heads(site: Site, keep: list[int], gqa: str) -> tuple[list[int], list[int], list[int], int]:
    """Return which query, key and value heads stay, and how many key heads that makes."""
    share = site.heads // site.kv_heads
    if share == 1:
        return keep, keep, keep, len(keep)
    owners = [h // share for h in keep]
    counts = {owner: owners.count(owner) for owner in owners}
    if len(set(counts.values())) == 1 and gqa != "copy":
        groups = sorted(counts)
        return keep, groups, groups, len(groups)
    if gqa == "error":
        raise ValueError(
            f"{site.label}: {share} query heads share a key head and the cut leaves groups of "
            f"{sorted(counts.values())}; "
            'cut evenly, or allow gqa="ungroup", which copies keys and values for every query head'
        )
    return keep, owners, owners, len(keep)


def _rows_to_keep(site: Site, query: list[int], key: list[int], value: list[int]) -> list[tuple[nn.Module, Tensor]]:
    """Return each projection module with the rows to keep, in the order in which the model's forward reads them."""
    asked: dict[int, tuple[nn.Module, list[tuple[Projection, Tensor]]]] = {}
    for part, some in ((site.q, query), (site.k, key), (site.v, value)):
        asked.setdefault(id(part.module), (part.module, []))[1].append((part, part.rows[some]))
    result = []
    for module, parts in asked.values():
        if all(torch.equal(p.rows, parts[0][0].rows) for p, _ in parts):
            rows = parts[0][1].flatten()  # one alone, or keys that serve as values
        elif _is_head_by_head(site):
            rows = torch.stack([r for _, r in parts], 1).flatten()
        else:
            rows = torch.cat([r.flatten() for _, r in parts])
        result.append((module, rows))
    return result


def _is_head_by_head(site: Site) -> bool:
    """Tell a fused projection that goes head by head (GPT-NeoX) from one that goes query, key, value."""
    return site.heads > 1 and bool(site.q.rows[1, 0] > site.k.rows[0, 0]) and site.q.module is site.k.module


def _slice(module: nn.Module, index: Tensor, outgoing: bool) -> None:
    """Keep some outputs (or inputs) of a projection."""
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


def _resize(site: Site, heads: int, kv_heads: int) -> None:
    """Tell the attention module its new size, under whatever names it uses."""
    module, own = site.module, vars(site.module)
    if _shared_bias(module):
        # T5 makes one position bias for all layers and all its heads, so a layer keeps its old numbers and its
        # attention function takes the rows of its remaining heads
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
    for name in _KEY_WIDTHS:
        if own.get(name) == site.kv_heads * site.head_dim and name in reads:
            setattr(module, name, kv_heads * site.head_dim)
    missing = {name: size for name, size in sizes.items() if name in reads and name not in own}
    if missing and hasattr(module, "config"):  # Phi-3 reads its sizes from the configuration: give the layer its own
        module.config = LayerConfig(module.config, missing)


def _names_read(code: CodeType) -> set[str]:
    """Return the names that a function reads, also inside its comprehensions."""
    return set(code.co_names).union(*(_names_read(part) for part in code.co_consts if isinstance(part, CodeType)))


def _shared_bias(module: nn.Module) -> bool:
    return "has_relative_attention_bias" in vars(module)
