"""Find the attention heads of a model: ``sites(model)``."""

from __future__ import annotations

import operator
import re
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import headtools
from headtools.heads import _layout as layout
from headtools.heads._kinds import find_kind, names_in, resolve_kind
from headtools.heads._layout import Projection

if TYPE_CHECKING:
    from headtools.heads.verify import Verification

KINDS = ("encoder", "decoder", "cross")
GUESSED_KIND = (
    "its kind is a guess, since nothing in the model says whether attention is causal; write model.is_causal = True "
    "or model.is_causal = False"
)
SiteKey = tuple  # (kind, layer), or (stack, kind, layer) where a model has several stacks of one kind
Heads = Mapping[tuple, Iterable[int]] | Iterable[tuple]  # {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]


@dataclass(frozen=True, eq=False)
class Site:
    """One attention layer: where its heads are and how to reach them.

    ``kind`` is 'encoder' (every token sees every token), 'decoder' (causal: itself and earlier tokens) or 'cross'
    (queries from one sequence, keys from another). ``layer`` counts from 0 within kind and stack. ``stack`` is ''
    unless the model has several stacks of one kind (CLIP: 'text_model' and 'vision_model'). ``heads`` query heads share
    ``kv_heads`` key and value heads. A query or key has ``head_dim`` features, a value ``value_dim``. ``out`` is the
    output projection, which reads the heads' outputs z side by side. ``original[h]`` is the index of head h before any
    pruning. ``empty`` is true when all heads are pruned (one silent head remains so that the model still runs).
    ``guessed`` is true when nothing in the model says whether attention is causal, so that 'encoder' is a guess.
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
        """Return the key of this site: (kind, layer), or (stack, kind, layer) where there are several stacks."""
        return (self.stack, self.kind, self.layer) if self.stack else (self.kind, self.layer)

    @property
    def label(self) -> str:
        """Return the key as text: 'encoder 2', or 'text_model encoder 2'."""
        return " ".join(map(str, self.key))

    @property
    def w_o(self) -> Tensor:
        """Return the output projection head by head: (heads, value_dim, d_model), differentiable.

        Raises ``ValueError`` where it is not a plain weight: under an adapter (merge it first), or quantised.
        """
        weight = layout.plain_weight(self.out)
        matrix = weight if layout.is_transposed(self.out) else weight.T
        return matrix.unflatten(0, (self.heads, self.value_dim))

    def split(self, flat: Tensor) -> Tensor:
        """Return the input of ``out``, (B, T, heads * value_dim), head by head: z (B, T, heads, value_dim)."""
        z = flat.unflatten(-1, (self.heads, self.value_dim))
        return z.transpose(0, 1) if self.tokens_first else z

    def join(self, z: Tensor) -> Tensor:
        """Return z (B, T, heads, value_dim) in the shape that ``out`` reads: (B, T, heads * value_dim)."""
        return (z.transpose(0, 1) if self.tokens_first else z).flatten(-2)


# what the argument sites= of a measure takes: see Sites.pick
SiteSelection = str | SiteKey | Site | Iterable[str | SiteKey | Site] | None


@dataclass(frozen=True, eq=False, repr=False)
class Sites:
    """The attention layers of a model, in the order of its modules.

    ``sites["encoder"]`` returns those of a kind (or stack), ``sites["cross", 3]`` one of them. ``len`` counts sites,
    ``n_heads`` counts heads. ``skipped`` names attention modules whose heads could not be found.
    """

    all: tuple[Site, ...]
    skipped: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Site]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def n_heads(self) -> int:
        """Return the number of heads; a site whose heads are all pruned has none."""
        return sum(self.kinds.values())

    @property
    def verified(self) -> Verification | None:
        """What ``verify`` found when it last tried this model, with date and versions; None before."""
        from headtools.heads.verify import _VERIFIED

        return _VERIFIED.get(self)

    @cached_property
    def guessed(self) -> tuple[Site, ...]:
        """Return the sites whose kind is a guess: see ``sites``."""
        return tuple(site for site in self if site.guessed)

    @cached_property
    def kinds(self) -> dict[str, int]:
        """Return how many heads there are of each kind present."""
        kinds: Counter[str] = Counter()
        for site in self.all:
            kinds[site.kind] += 0 if site.empty else site.heads
        return dict(kinds)

    def __getitem__(self, key: str | SiteKey | Site) -> Site | Sites:
        if isinstance(key, str):
            if matches := tuple(site for site in self.all if key in (site.kind, site.stack)):
                return Sites(matches)
            raise KeyError(f"no {key!r} attention in this model; it has {self._names()}")
        if isinstance(key, Site):
            key = key.key
        else:  # True and 1.0 equal 1, and would silently select layer 1; a string matches no site
            *names, layer = key if isinstance(key, (tuple, list)) and len(key) else (key,)
            try:
                key = (*names, layer if isinstance(layer, str) else as_int(layer))
            except TypeError:
                kind = ", ".join(map(repr, names or ["encoder"]))
                raise TypeError(f"a layer is an integer, got {layer!r} in {key!r}; write ({kind}, 1)") from None
        matches = [site for site in self.all if site.key == key or (len(key) == 2 and (site.kind, site.layer) == key)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise KeyError(f"{key} names {len(matches)} sites: add the stack, e.g. {matches[0].key}")
        raise KeyError(f"no site {key} in this model; it has {self._names()} (layers count from 0)")

    def one(self, key: SiteKey | Site) -> Site:
        """Return the site of a key, or of a site's key; raise ``KeyError`` for a kind, which names several."""
        match = self[key]
        if isinstance(match, Sites):
            raise KeyError(f"{key!r} names a kind, not a site: write one entry a layer, e.g. {match.all[0].key}")
        return match

    def pick(self, selection: SiteSelection) -> list[Site]:
        """Return the sites that an argument ``sites=`` selects, each once, in the order in which they are named.

        ``selection``: a kind or stack ("encoder"), all but one ("not cross"), a key (("cross", 3)), a site of this
        model or of one that it was copied from, a list of these, or None for all.

        Raises ``KeyError`` for an unknown site, ``TypeError`` for anything else.

        >>> from transformers import BertConfig, BertModel
        >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=3, vocab_size=9)
        >>> all_sites = sites(BertModel(tiny))
        >>> [site.layer for site in all_sites.pick(("encoder", 2))], len(all_sites.pick("not cross"))
        ([2], 3)
        """
        if selection is None:
            return list(self)
        # a tuple that ends in a number is one key, ("encoder", 0), and not several
        is_key = isinstance(selection, tuple) and len(selection) in (2, 3) and isinstance(selection[0], str)
        if isinstance(selection, (str, Site)) or (is_key and not isinstance(selection[-1], (str, tuple, Site))):
            selection = [selection]
        elif isinstance(selection, (Mapping, Tensor)) or not isinstance(selection, Iterable):
            raise TypeError(
                f'sites are named by kind or key, "encoder", ("encoder", 0) or a list of them; got {selection!r}'
            )
        picked: dict[Site, None] = {}
        for name in selection:
            if isinstance(name, str) and name.startswith("not "):
                other = name.removeprefix("not ")
                # "not cross" is every site of a model without cross-attention, but a misspelt name is an error
                without = [] if other in KINDS and other not in self.kinds else self[other].all
                matches = [site for site in self if site not in without]
            else:
                match = self[name]
                matches = match.all if isinstance(match, Sites) else [match]
            picked |= dict.fromkeys(matches)
        return list(picked)

    def _names(self) -> str:
        count = Counter((site.stack, site.kind) for site in self)
        return ", ".join(f"{' '.join(filter(None, names))} 0..{n - 1}" for names, n in count.items()) or "none"

    def _repr_html_(self) -> str | None:
        return headtools.draw("sites_html", self)

    def __repr__(self) -> str:
        rows = [("site", "heads", "kv", "head_dim", "module")]
        for site in self:
            heads = "0 (all cut)" if site.empty else str(site.heads)
            rows.append((site.label, heads, str(site.kv_heads), str(site.head_dim), site.name))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.append(f"{len(self)} sites, {self.n_heads} heads")
        if self.guessed:
            lines.append(f"{self.guessed[0].label}{' and others' * (len(self.guessed) > 1)}: {GUESSED_KIND}")
        if self.skipped:
            lines.append("not understood: " + ", ".join(self.skipped))
        return "\n".join(lines)


def select(sites: Sites, heads: Heads, original: bool = False) -> dict[Site, list[int]]:
    """Return the selected heads as {site: [head, ...]}, sorted.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...], with head indices as the sites have them now, or,
    with ``original``, as they were before any pruning. A site may stand for its key.

    Raises ``TypeError`` for any other form, ``KeyError`` for an unknown site, ``IndexError`` for a head out of range
    and ``ValueError`` for one named twice.
    """
    if isinstance(heads, Mapping):
        requests = list(heads.items())
    elif isinstance(heads, Iterable) and not isinstance(heads, (str, Tensor)):
        names = list(heads)
        for name in names:
            if not isinstance(name, (tuple, list)) or len(name) not in (3, 4):
                raise TypeError(f'a head is named (kind, layer, head), e.g. ("encoder", 2, 0), got {name!r}')
        requests = [(tuple(name[:-1]), [name[-1]]) for name in names]
    else:
        raise TypeError(f'heads must look like {{("encoder", 2): [0, 5]}} or [("encoder", 2, 0)], got {heads!r}')
    selected: dict[Site, list[int]] = {}
    for key, indices in requests:
        if not isinstance(indices, Iterable) or isinstance(indices, (str, bytes)):
            raise TypeError(f"the heads of {key} must be a list, got {indices!r}; write {{{key}: [{indices}]}}")
        site = sites.one(key)
        for index in indices:
            try:
                head = as_int(index)
            except TypeError:
                raise TypeError(f"a head is an integer, got {index!r} for {site.label}") from None
            if original:  # the weights have the heads that remain
                if head not in site.original:
                    remaining = list(site.original)
                    raise ValueError(f"head {site.label}.{head} is not there; the remaining heads are {remaining}")
                head = site.original.index(head)
            if not 0 <= head < site.heads:
                counted = "heads count from 0"
                if site.original != tuple(range(site.heads)):
                    counted += f"; others were cut: these are what was {list(site.original)}"
                raise IndexError(f"{site.label} has heads 0..{site.heads - 1}, got {head} ({counted})")
            if head in selected.setdefault(site, []):
                raise ValueError(f"head {site.label}.{head} is named twice: name each head once")
            selected[site].append(head)
    for chosen in selected.values():
        chosen.sort()
    return selected


def as_int(value: object) -> int:
    """Return an integer of any library as a Python int; raise ``TypeError`` for True, 1.0 or "1".

    >>> import numpy
    >>> as_int(numpy.int64(3))
    3
    """
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise TypeError(f"got {value!r}; expected an integer")
    return operator.index(value)


# the sites of each model, with the state that they were found in
_KNOWN: weakref.WeakKeyDictionary[nn.Module, tuple[list, Sites]] = weakref.WeakKeyDictionary()


def sites(model: nn.Module) -> Sites:
    """Return every attention layer of ``model`` with its heads, found by inspecting its modules; nothing is run.

    Head counts come from the weights' shapes, so they stay correct after pruning. A module shared by several layers
    (ALBERT) is one site. A model is searched once, and again when it has changed. Where nothing says whether attention
    is causal, 'encoder' is a guess, the table says so, and ``model.is_causal = True`` (or False) decides.

    Raises ``TypeError`` for anything but a module, ``ValueError`` where no head can be found; warns when only some of a
    model's attention is understood.

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
    state = _state(model)
    known_state, known = _KNOWN.get(model, (None, None))
    if known is not None and known_state == state:
        return known
    with torch.inference_mode(False):  # rows of projections are kept, and may be used where gradients are needed
        found = _search(model)
    if found.all[0].name:  # a model that is itself attention would be kept alive by its own site
        _KNOWN[model] = state, found
    return found


def _state(model: nn.Module) -> list:
    """Return all that a search depends on: sites that were found in another state may be wrong.

    Of each module its identity and class and the shape of its weight; of those that hold others, the others' names, its
    own numbers and flags (``is_causal``, ``num_heads``) and what was pruned; of configurations their numbers and flags.
    """
    state, configs, seen, plain = [], {}, set(), (bool, int, str)
    waiting = [model]  # faster than named_modules, which every call of a context would pay for
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        own = vars(module)
        children, weight = own["_modules"], own["_parameters"].get("weight")
        shape = None if weight is None or is_lazy(weight) else (weight.shape, weight.dtype)
        state.append((id(module), type(module), shape))
        if children:
            values = [(key, value) for key, value in own.items() if type(value) in plain and key != "training"]
            state.append((*children, values, str(own.get(layout.PRUNED, ""))))
            config = getattr(own.get("config"), "shared", own.get("config"))  # a pruned layer has a view of the shared
            configs[id(config)] = getattr(config, "__dict__", {})
            waiting += children.values()
    for config in configs.values():  # an underscore: the attention function, which contexts switch
        state.append([(key, value) for key, value in config.items() if type(value) in plain and key[0] != "_"])
    return state


def _search(model: nn.Module) -> Sites:
    found, skipped, unknown = [], [], {}
    paths: dict[str, set[str]] = {}  # of the stacks of each kind
    for name, module in model.named_modules():
        interface = "ALL_ATTENTION_FUNCTIONS" in names_in(type(module).forward)  # its code is read, not run
        if not interface and not layout.looks_like_attention(module):
            # a class of this name whose heads no hook can reach
            if "attention" in type(module).__name__.lower() or isinstance(module, nn.MultiheadAttention):
                unknown[name] = module
            continue
        if ".modules_to_save." in f".{name}.":
            raise ValueError(
                f"{name} is a trained copy of attention (PEFT's modules_to_save), beside which the original is kept; "
                "merge first: model = model.merge_and_unload()"
            )
        site = _find_site(model, name, module, interface)
        if site is None:
            skipped.append(f"{name} ({type(module).__name__})")
        else:
            # the path above the first layer number: 'text_model.encoder.layers'
            parts = re.split(r"(?:^|\.)\d+(?:\.|$)", name, maxsplit=1)
            path = parts[0] if len(parts) > 1 else name.rpartition(".")[0]
            found.append((site, path))
            paths.setdefault(site.kind, set()).add(path)
    if not found:
        raise ValueError(_no_sites_message(model, skipped, [type(module).__name__ for module in unknown.values()]))
    # beside understood layers: attention of another kind, and not what encloses a site or is part of one
    known = [site.name for site, _ in found]
    for name, module in unknown.items():
        related = any(f"{other}.".startswith(f"{name}.") or f"{name}.".startswith(f"{other}.") for other in known)
        projects = sum(layout.is_projection(child) for child in module.children()) >= 2
        if not related and projects:
            skipped.append(f"{name} ({type(module).__name__})")
    if skipped:
        warnings.warn(f"headtools does not understand {len(skipped)} attention modules: {skipped[0]}", stacklevel=3)
    # stacks are named by the modules' own kinds, layers are counted by the resolved ones (CLIP's text model)
    count, numbered = Counter(), []
    for site, path in found:
        stack = _stack_name(path, paths[site.kind]) if len(paths[site.kind]) > 1 else ""
        kind, guessed = resolve_kind(model, site.name, site.module)
        numbered.append(replace(site, stack=stack, kind=kind, layer=count[kind, stack], guessed=guessed))
        count[kind, stack] += 1
    return Sites(tuple(numbered), tuple(skipped))


def _find_site(model: nn.Module, name: str, module: nn.Module, interface: bool) -> Site | None:
    """Return the site of one attention module (layer and stack are set later), or None if its heads are unclear."""
    out = layout.find_output(model, name, module)
    value_dim = None if out is None else layout.head_width(module, out)
    if value_dim is None:
        return None
    heads = layout.shape_of(out)[1] // value_dim  # out reads (B, T, heads * value_dim), also after pruning
    found = layout.find_projections(module, heads, value_dim)
    if found.latent:
        kv_heads, head_dim = heads, getattr(module, "qk_head_dim", getattr(module, "head_dim", value_dim))
    elif found.q is not None:
        kv_heads, head_dim = len(found.k.rows), found.q.rows.shape[1]
    else:
        return None
    state = module.__dict__.get(layout.PRUNED, {"empty": False, "physical": tuple(range(heads))})  # by prune()
    return Site(
        kind=find_kind(name, module),
        layer=-1,
        stack="",
        name=name,
        module=module,
        out=out,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        q=found.q,
        k=found.k,
        v=found.v,
        interface=interface,
        latent=found.latent,
        original=() if state["empty"] else state["physical"],
        empty=state["empty"],
        # (T, B, ...) is what their output projection reads, as in fairseq; verify finds others
        tokens_first=type(module).__module__.endswith((".modeling_fsmt", ".modeling_mlcd")),
    )


def _stack_name(path: str, paths: set[str]) -> str:
    """Return the first part of ``path`` that distinguishes it from the other ``paths``: 'text_model'."""
    parts = path.split(".")
    for depth in range(len(parts)):
        start = parts[: depth + 1]
        if all(other == path or other.split(".")[: depth + 1] != start for other in paths):
            common = {tuple(other.split(".")[:depth]) for other in paths}
            return parts[depth] if len(common) == 1 else ".".join(start)
    return path


def _no_sites_message(model: nn.Module, skipped: list[str], unknown_classes: list[str]) -> str:
    if skipped:
        why = f"found attention but not its heads, in {', '.join(skipped[:3])}"
    elif "MultiheadAttention" in unknown_classes:
        why = (
            "torch.nn.MultiheadAttention never calls its output projection as a module, so no hook can reach its heads"
        )
    elif unknown_classes:
        names = ", ".join(sorted(set(unknown_classes)))
        why = f"{names} keeps its projections as bare tensors or under unknown names, so its heads cannot be reached"
    else:
        why = "it has no attention that headtools knows, so pass a transformer, e.g. load()[0]"
    return (
        f"{type(model).__name__}: {why}; needs query, key, value and output projections that are nn.Linear modules, in "
        "a class of your own (with Attention in its name) called q_proj, k_proj, v_proj and out_proj, and num_heads"
    )
