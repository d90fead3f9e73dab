"""``record`` heads' attention maps, queries, keys, values and outputs while the model runs.

Outputs z come from a pre-hook on the output projection, whatever kernel computed them. Maps, queries, keys and values
come through transformers' AttentionInterface: inside the context the model's configuration names an attention function
of ours (``_attention.py``), which calls the model file's own eager attention, so that softcaps, sinks and position
biases are the model's.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads._attention import BLOCKS, EAGER, ROWS, TAPS, attention_function
from headtools.heads._checks import check_interface, check_not_compiled, check_recorded
from headtools.heads._hooks import append_entry, context, hook_input, intervention, recomputing
from headtools.heads.sites import Site, Sites, SiteSelection, sites

_QUANTITIES = ("maps", "z", "q", "k", "v", "visible", "rows")


class Captured:
    """What one call of one site produced; a quantity that was not recorded raises an error that says how to get it.

    ``maps`` (B, head, query, key) float32 rows of attention; ``z`` (B, token, head, value_dim) what the output
    projection reads; ``q`` (B, head, query, head_dim), ``k`` and ``v`` (B, kv_head, key, ...) as they enter the
    dot product: after rotary embedding and the model's own normalisation; ``visible`` (B, 1 or head, query, key) bool,
    which keys each query can see. ``rows`` (B, head, query, key) are those of some of
    ``n_queries`` queries, from index ``first`` on.
    """

    def __init__(self, label: str, **tensors: Tensor) -> None:
        self._label = label
        self.__dict__.update(tensors)

    def __getattr__(self, name: str) -> Tensor:
        if name in _QUANTITIES:
            raise AttributeError(f"{name} of {self._label} was not recorded: use record(model, want=({name!r},))")
        raise AttributeError(name)

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(t.shape)}" for name, t in self.__dict__.items() if isinstance(t, Tensor))
        return f"<{self._label}: {', '.join(shapes)}>"


@dataclass(repr=False)
class Record:
    """What :func:`record` recorded: ``r["encoder", 2]`` is a site's last call, or what ``accumulate`` made of all."""

    sites: Sites
    captured: dict[tuple, Any]

    def __getitem__(self, key: tuple | Site) -> Any:
        site = self.sites.one(key)
        if site.key not in self.captured:
            raise KeyError(f"{site.label} has not run inside this record: call model(**batch) inside the with block")
        return self.captured[site.key]

    def __iter__(self) -> Iterator[tuple]:
        return iter(self.captured)

    def __len__(self) -> int:
        return len(self.captured)

    def __repr__(self) -> str:
        return f"<Record of {len(self.captured)} sites>"


@context
def record(
    model: nn.Module,
    want: Iterable[str] = ("maps", "z"),
    accumulate: Callable[[Site, Captured, Any], Any] | None = None,
    only: SiteSelection = None,
    grad: bool = False,
    training: bool = False,
) -> Iterator[Record]:
    """Record what every head does while the context lasts.

    ``want``: "maps" (B, head, query, key), "z" (B, token, head, value_dim), "q", "k", "v", and "visible" (B, 1 or head,
    query, key), the keys that a query can see. Only "maps" make the model run eager attention. "rows", alone, are the
    maps some hundred queries at a time, for texts whose maps are too large: ``accumulate`` gets each block of them,
    ``captured.rows`` (B, head, query, key), of the queries from ``captured.first`` on. ``only`` selects
    sites: "encoder", ("encoder", 2) or a list. A site that runs several times (ALBERT, ``generate``) keeps its last,
    unless ``accumulate(site, captured, previous)`` combines calls; ``previous`` is what it returned last, at first
    None. Tensors are detached unless ``grad``. A record entered inside ``gates`` or ``ablate`` records z after their
    change, one entered before them records it before.

    Raises ``ValueError`` for an unknown ``want``, NaN or infinity before ``accumulate``, maps without
    AttentionInterface, empty batches, rows of padding, maps that ``verify`` found to be
    those of another model, and training mode, where maps are after dropout (``training=True`` allows it);
    ``RuntimeError`` for a compiled model.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> with ht.record(model) as r:
    ...     out = model(torch.tensor([[1, 2, 3]]))
    >>> r["encoder", 1].maps.shape, r["encoder", 1].z.shape
    (torch.Size([1, 4, 3, 3]), torch.Size([1, 3, 4, 4]))
    """
    want = (want,) if isinstance(want, str) else tuple(want)
    if not want or not set(want) <= set(_QUANTITIES):
        raise ValueError(f"want must name some of {', '.join(_QUANTITIES)}; got {want!r}")
    if "rows" in want and (len(want) > 1 or accumulate is None):
        raise ValueError(f"rows come block by block: pass want='rows' alone and accumulate=; got want={want!r}")
    check_not_compiled(model)
    for module in model.modules():
        if module.training and not training:
            raise ValueError("the model is in training mode, so dropout would change the maps: call model.eval() first")
    all_sites = sites(model)
    selected = all_sites.pick(only)
    from_attention = sorted(set(want) - {"z"})
    for site in selected if from_attention else ():
        check_interface(
            site,
            f"its {', '.join(from_attention)} cannot be recorded; record(model, want=('z',)) works, and for maps load "
            "the model with attn_implementation='eager' and call it with output_attentions=True",
        )
    if {"maps", "rows"} & set(want) and (verified := all_sites.verified) is not None:
        for site in selected:
            if reason := verified.found.get((site.label, "maps")):
                raise ValueError(f"{site.label}: verify(model) found: {reason}; record(model, want=('z',)) works")
    result = Record(all_sites, {})
    with ExitStack() as stack:
        stack.enter_context(intervention(model, "record()", selected))
        if from_attention:
            kernel = EAGER if "maps" in want else BLOCKS if "rows" in want else None
            stack.enter_context(attention_function(model, kernel))
        for site in selected:
            stack.enter_context(_record_site(model, site, want, accumulate, grad, result.captured))
        yield result


def contributions(site: Site, z: Tensor) -> Tensor:
    """Return what each head adds to the residual stream: z (B, T, H, value_dim) -> (B, T, H, d_model).

    Summed over heads, plus the output projection's bias, this is the attention layer's output (Elhage et al. 2021:
    concatenating heads and projecting equals adding up their separate projections).

    Raises ``ValueError`` for a z of another shape.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> site = ht.sites(BertModel(tiny))["encoder", 0]
    >>> contributions(site, torch.ones(1, 3, 4, 4)).shape
    torch.Size([1, 3, 4, 16])
    """
    if z.shape[-2:] != (site.heads, site.value_dim):
        raise ValueError(
            f"{site.label} needs z of shape (B, T, {site.heads}, {site.value_dim}), got {tuple(z.shape)}: "
            f"use record(model)[{site.key}].z"
        )
    # z_h W_O^h for each head h; Elhage et al. 2021, "Attention heads are independent and additive"
    return torch.einsum("...hv,hvd->...hd", z, site.w_o.to(z.dtype))


def backbone(model: nn.Module, inputs: Iterable[str]) -> nn.Module:
    """Return the part of a model that holds all its attention and takes ``inputs`` by name, or the model itself.

    A vocabulary of 49,152 makes the logits of a small language model cost more than all its layers. What is recorded
    in the layers is the same, bit for bit.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9))
    >>> type(backbone(model, ["input_ids"])).__name__, type(backbone(model, ["labels"])).__name__
    ('GPT2Model', 'GPT2LMHeadModel')
    """
    if not type(model).__module__.startswith("transformers."):  # a subclass may do more in its forward
        return model
    base = model.base_model
    if base is model or model._forward_hooks or model._forward_pre_hooks:
        return model
    inside = {id(module) for module in base.modules()}
    holds_all = all(id(site.module) in inside for site in sites(model))
    return base if holds_all and set(inputs) <= inspect.signature(base.forward).parameters.keys() else model


@contextmanager
def _record_site(
    model: nn.Module, site: Site, want: tuple, accumulate: Callable | None, grad: bool, results: dict
) -> Iterator[None]:
    """Collect what one site produces: from the attention function first, then from the output projection."""
    call: dict[str, Tensor] = {}  # what the call that is running has produced
    attended = [0]  # how often the module has asked for attention in this call
    threads: set[int] = set()  # that run the call

    def collect(tensors: dict[str, Any], complete: bool) -> None:
        for name in want:
            if name in tensors:
                tensor = tensors[name]() if name == "visible" else tensors[name]
                tensor = tensor if grad else tensor.detach()
                # measures sum maps over tokens and batches; half precision is too coarse for that
                call[name] = tensor.float() if name in ("maps", "rows") else tensor
        threads.add(threading.get_ident())
        if not complete:
            return
        if len(threads) > 1:  # and so it stays: what the other thread has got is mixed as well
            raise RuntimeError(
                f"two threads ran {site.label} inside one record(), so what was recorded is of both: run the model in "
                "one thread at a time, or give each its own, copy.deepcopy(model)"
            )
        captured = Captured(site.label, **call)
        if "rows" in want:
            captured.first, captured.n_queries = tensors["first"], tensors["n_queries"]
        if accumulate is not None:  # a sum would hide NaN; recorded tensors show it themselves
            for name, tensor in call.items():
                check_recorded(model, site, name, tensor.detach())
        call.clear()
        threads.clear()
        previous = results.get(site.key)
        results[site.key] = captured if accumulate is None else accumulate(site, captured, previous)

    def anew(*_: Any) -> None:
        attended[0] = 0

    def from_attention(**tensors: Any) -> None:
        if recomputing():  # checkpointing repeats a layer that is already recorded
            return
        attended[0] += tensors.get("first", 0) == 0  # rows come in several blocks
        if attended[0] > 1:
            raise ValueError(
                f"{site.label} computes attention several times in one call, once for each image, and only z is of "
                "all: record(model, want=('z',)), or give the model one image a call"
            )
        collect(tensors, complete="z" not in want)

    def from_output(flat: Tensor) -> Tensor | None:
        if recomputing():
            return None
        z = site.split(flat)
        collect({"z": z}, complete=True)
        return site.join(z) if grad else None  # the model continues from z, so that z is part of the graph

    # within one call attention runs before its output projection, so a call with z is complete there
    with append_entry(site.module, ROWS if "rows" in want else TAPS, from_attention), ExitStack() as stack:
        if set(want) != {"z"}:  # a call ends at the output projection; one that an error ended, where the next begins
            stack.callback(site.module.register_forward_pre_hook(anew).remove)
            stack.callback(site.out.register_forward_pre_hook(anew).remove)
        if "z" in want:
            stack.callback(hook_input(site.out, from_output).remove)
        yield
