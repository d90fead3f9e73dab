"""Find the attention heads of a model: ``sites(model)``."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from headtools.heads import _layout as layout
from headtools.heads._kinds import find_kind, resolve_kind
from headtools.heads._layout import Projection
from headtools.heads._weights import unused_copies, weight_of

KINDS = ("encoder", "decoder", "cross")
GUESSED_KIND = (
    "its kind is a guess, since nothing says whether a token sees what comes after it; write model.is_causal = True "
    "if it does not, or model.is_causal = False"
)
SiteKey = tuple  # (kind, layer), or (stack, kind, layer) where a model has several stacks of one kind


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer: where its heads are and how to reach them.

    ``kind`` is 'encoder' (every token sees every token), 'decoder' (only itself and before) or 'cross' (queries from
    one sequence, keys from another). ``layer`` counts from 0 within kind and stack. ``stack`` is '' unless the model
    has several stacks of one kind (CLIP: 'text_model' and 'vision_model'). ``heads`` query heads share ``kv_heads``
    key and value heads. A query or key has ``head_dim`` features, a value ``value_dim``. ``out`` is the output
    projection, which reads the heads' outputs z side by side. ``original[h]`` is the number head h had before any
    pruning. ``empty`` is true when all heads are cut (one silent head is left so that the model still runs).
    ``guessed`` is true when nothing said whether a token sees what comes after it, so that 'encoder' is a guess.
    """

    kind: str
    layer: int
    stack: str
    name: str
    module: nn.Module
    out: nn.Module
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    q: Projection | None
    k: Projection | None
    v: Projection | None
    interface: bool
    latent: bool
    original: tuple[int, ...]
    empty: bool
    tokens_first: bool
    guessed: bool = False

    @property
    def key(self) -> SiteKey:
        """Return what names this site: (kind, layer), with the stack in front where there are several."""
        return (self.stack, self.kind, self.layer) if self.stack else (self.kind, self.layer)

    @property
    def label(self) -> str:
        """Return the site's name for people: 'encoder 2', or 'text_model encoder 2'."""
        return " ".join(str(part) for part in self.key)

    @property
    def w_o(self) -> Tensor:
        """Return the output projection head by head, adapters included: (heads, value_dim, d_model), differentiable."""
        weight = weight_of(self.out)
        matrix = weight if layout.is_transposed(self.out) else weight.T
        return matrix.unflatten(0, (self.heads, self.value_dim))

    def split(self, read: Tensor) -> Tensor:
        """Return what ``out`` reads, (B, T, heads * value_dim), head by head: z (B, T, heads, value_dim)."""
        z = read.unflatten(-1, (self.heads, self.value_dim))
        return z.transpose(0, 1) if self.tokens_first else z

    def join(self, z: Tensor) -> Tensor:
        """Return z (B, T, heads, value_dim) as ``out`` reads it."""
        return (z.transpose(0, 1) if self.tokens_first else z).flatten(-2)


# what the argument sites= of a measure takes: see Sites.pick
SiteSelection = str | SiteKey | Site | Iterable[str | SiteKey | Site] | None


@dataclass(frozen=True, eq=False, repr=False)
class Sites:
    """The attention layers of a model, in the order of its modules.

    ``sites["encoder"]`` gives those of a kind (or stack), ``sites["cross", 3]`` one of them, ``len`` counts sites
    and ``n_heads`` heads. ``skipped`` names attention modules whose heads could not be found.
    """

    all: tuple[Site, ...]
    skipped: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[Site]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def n_heads(self) -> int:
        """Return the number of heads that are there (a site whose heads are all cut has none)."""
        return sum(0 if site.empty else site.heads for site in self)

    @property
    def guessed(self) -> tuple[Site, ...]:
        """Return the sites whose kind is a guess: see ``sites``."""
        return tuple(site for site in self if site.guessed)

    @property
    def kinds(self) -> dict[str, int]:
        """Return how many heads there are of each kind present."""
        count = Counter()
        for site in self:
            count[site.kind] += 0 if site.empty else site.heads
        return dict(count)

    def __getitem__(self, key: str | SiteKey | Site) -> Site | Sites:
        if isinstance(key, str):
            found = tuple(s for s in self if key in (s.kind, s.stack))
            if found:
                return Sites(found)
            raise KeyError(f"no {key!r} attention in this model; it has {self._names()}")
        key = key.key if isinstance(key, Site) else _check_key(key)
        found = [s for s in self if s.key == key or (len(key) == 2 and (s.kind, s.layer) == key)]
        if len(found) == 1:
            return found[0]
        if found:
            raise KeyError(f"{key} names {len(found)} sites: add the stack, e.g. {found[0].key}")
        raise KeyError(f"no site {key} in this model; it has {self._names()} (layers count from 0)")

    def pick(self, which: SiteSelection) -> list[Site]:
        """Return the sites that an argument ``sites=`` names, each once and in the order in which they are named.

        ``which``: a kind or stack ("encoder"), a key (("cross", 3)), a site, a list of these, or None for all. A site
        of another model, such as the one that this was copied from, names the one with its key.

        Raises ``KeyError`` for one that is not there, ``TypeError`` for something else.

        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=3, vocab_size=9)
        >>> found = sites(BertModel(tiny))
        >>> [site.layer for site in found.pick(("encoder", 2))], [site.layer for site in found.pick(["encoder"])]
        ([2], [0, 1, 2])
        """
        if which is None:
            return list(self)
        if isinstance(which, (str, Site)) or _is_key(which):
            which = [which]
        elif isinstance(which, (Mapping, Tensor)) or not isinstance(which, Iterable):
            raise TypeError(
                f'sites are named by kind or key, "encoder", ("encoder", 0) or a list of them; got {which!r}'
            )
        picked = [self[name] for name in which]
        return list({site: None for part in picked for site in (part if isinstance(part, Sites) else [part])})

    def _names(self) -> str:
        groups: dict[tuple[str, str], list[Site]] = {}
        for s in self:
            groups.setdefault((s.stack, s.kind), []).append(s)
        return ", ".join(f"{' '.join(filter(None, k))} 0..{len(v) - 1}" for k, v in groups.items()) or "none"

    def __repr__(self) -> str:
        rows = [("site", "heads", "kv", "head_dim", "module")]
        for s in self:
            heads = "0 (all cut)" if s.empty else str(s.heads)
            rows.append((s.label, heads, str(s.kv_heads), str(s.head_dim), s.name))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(f"{len(self)} sites, {self.n_heads} heads")
        if self.guessed:
            lines.append(f"{self.guessed[0].label}{' and others' * (len(self.guessed) > 1)}: {GUESSED_KIND}")
        if self.skipped:
            lines.append("not understood: " + ", ".join(self.skipped))
        return "\n".join(lines)


def as_int(value: object) -> int:
    """Return an integer of any library as a Python int; raise ``TypeError`` for True, 1.0 or "1".

    >>> import numpy
    >>> as_int(numpy.int64(3))
    3
    """
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise TypeError(f"got {value!r}; expected an integer")
    return operator.index(value)


def _check_key(key: object) -> SiteKey:
    """Return a key with its layer as an int; True and 1.0 equal 1, and would quietly name layer 1."""
    *names, layer = key if isinstance(key, (tuple, list)) and len(key) else (key,)
    if isinstance(layer, str):
        return (*names, layer)  # the name of nothing, as the caller will say
    try:
        return (*names, as_int(layer))
    except TypeError:
        kind = names or ["encoder"]
        raise TypeError(
            f"a layer is an integer, got {layer!r} in {key!r}; write ({', '.join(map(repr, kind))}, 1)"
        ) from None


def _is_key(value: object) -> bool:
    """Tell a key, ("encoder", 0), from a tuple of kinds or keys: it ends in something that is no name."""
    return (
        isinstance(value, tuple)
        and len(value) in (2, 3)
        and isinstance(value[0], str)
        and not (isinstance(value[-1], (str, tuple, Site)))
    )


def sites(model: nn.Module) -> Sites:
    """Return every attention layer of ``model`` with its heads, found by reading its modules; nothing is run.

    Head counts come from the weights' shapes, so they stay right after pruning. A module shared by several layers
    (ALBERT) is one site.

    What decides a site's kind: 'cross' by ``is_cross_attention`` or its name; 'decoder' or 'encoder' by ``is_causal``
    of the attention module, its path ("decoder"), the masks that the model around it builds, or ``is_causal`` of a
    model around it. Where none of them says anything, as in a model written by hand, 'encoder' is a guess, the table
    says so, and ``model.is_causal = True`` (or False) settles it. The kind also decides which labels the default loss
    takes: see ``label_loss``.

    Raises ``TypeError`` for something that is no module and ``ValueError`` where no head can be found, saying which
    attention classes were seen. Warns when only part of a model's attention is understood.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> sites(BertModel(tiny))
    site       heads  kv  head_dim  module
    encoder 0  4      4   4         encoder.layer.0.attention.self
    encoder 1  4      4   4         encoder.layer.1.attention.self
    2 sites, 8 heads
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"sites() needs a torch model, got {type(model).__name__}; pass the model itself: sites(model)")
    found, skipped, seen, unused = [], [], [], unused_copies(model)
    for name, module in model.named_modules():
        if module in unused:
            continue
        interface = layout.uses_interface(module)
        if not interface and not layout.looks_like_attention(module):
            if "attention" in type(module).__name__.lower() or isinstance(module, nn.MultiheadAttention):
                seen.append(type(module).__name__)
            continue
        site = _find_site(model, name, module, interface)
        if site is None:
            skipped.append(f"{name} ({type(module).__name__})")
        else:
            found.append(site)
    if not found:
        raise ValueError(_no_sites_message(model, skipped, seen))
    if skipped:
        warnings.warn(f"headtools does not understand {len(skipped)} attention modules: {skipped[0]}", stacklevel=2)
    return Sites(tuple(_number_layers(model, found)), tuple(skipped))


def _find_site(model: nn.Module, name: str, module: nn.Module, interface: bool) -> Site | None:
    """Return the site of one attention module (not numbered yet), or None where its heads cannot be made out."""
    out = layout.find_output(model, name, module)
    if out is None:
        return None
    value_dim = layout.head_width(module, out)
    if value_dim is None:
        return None
    heads = layout.width_in(out) // value_dim
    parts = layout.find_projections(module, heads, value_dim)
    if parts.q is None and not parts.latent:
        return None
    state = module.__dict__.get(layout.PRUNED)  # written by prune()
    return Site(
        kind=find_kind(name, module), layer=-1, stack="", name=name, module=module, out=out,
        heads=heads, kv_heads=heads if parts.latent else parts.k.rows.shape[0],
        head_dim=_latent_dim(module, value_dim) if parts.latent else parts.q.rows.shape[1], value_dim=value_dim,
        q=parts.q, k=parts.k, v=parts.v, interface=interface, latent=parts.latent,
        original=state["kept"] if state else tuple(range(heads)), empty=bool(state and state["empty"]),
        tokens_first=layout.tokens_first(module),
    )  # fmt: skip


def _latent_dim(module: nn.Module, value_dim: int) -> int:
    return getattr(module, "qk_head_dim", getattr(module, "head_dim", value_dim))


def _number_layers(model: nn.Module, found: list[Site]) -> Iterable[Site]:
    """Count layers within each kind and stack, and name the stacks where one kind has several."""
    prefixes = {s.name: _prefix(s.name) for s in found}
    count: Counter = Counter()
    for s in found:
        rivals = {prefixes[o.name] for o in found if o.kind == s.kind}
        stack = _stack_name(prefixes[s.name], rivals) if len(rivals) > 1 else ""
        kind, guessed = resolve_kind(model, s.name, s.module)
        yield replace(s, stack=stack, kind=kind, layer=count[kind, stack], guessed=guessed)
        count[kind, stack] += 1


def _prefix(name: str) -> str:
    """Return the path above the first layer number: 'text_model.encoder.layers'."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0]] if numbers else parts[:-1])


def _stack_name(prefix: str, rivals: set[str]) -> str:
    """Return the first part of ``prefix`` that tells it from its rivals: 'text_model'."""
    parts = prefix.split(".")
    for depth in range(len(parts)):
        head = parts[: depth + 1]
        if all(r == prefix or r.split(".")[: depth + 1] != head for r in rivals):
            common = {tuple(r.split(".")[:depth]) for r in rivals}
            return parts[depth] if len(common) == 1 else ".".join(head)
    return prefix


def _no_sites_message(model: nn.Module, skipped: list[str], seen: list[str]) -> str:
    name = type(model).__name__
    if skipped:
        return (
            f"{name}: found attention but not its heads, in {', '.join(skipped[:3])}; needs query, key, value "
            "and output projections that are modules, or one module with queries, keys and values in an order that "
            "headtools knows"
        )
    if "MultiheadAttention" in seen:
        return (
            f"{name} uses torch.nn.MultiheadAttention, which never calls its output projection as a module, so no hook "
            "can reach its heads; use an attention written with nn.Linear modules instead"
        )
    if seen:
        return (
            f"{name}: {', '.join(sorted(set(seen)))} keeps its projections as bare tensors or under unknown names, "
            "so its heads cannot be reached; use a model whose attention has query, key, value and output "
            "projection modules"
        )
    count = sum(1 for _ in model.modules())
    return f"{name} has no attention: none of its {count} modules looks like it; pass a transformer, e.g. load()[0]"
