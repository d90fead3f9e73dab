"""Direct logit attribution: how much of a logit each head writes itself, past all later layers.

The residual stream is a sum: the embedding, what every head writes and what every feed-forward layer writes. Its last
state goes through the final norm and the unembedding, and a norm whose scale is kept at the value that the run gave it
is linear. So a logit splits exactly into one term for each head and a rest (Elhage et al. 2021, *A mathematical
framework for transformer circuits*; used for single heads by Wang et al. 2023, arXiv:2211.00593).

It is the direct path alone. What a head changes in later layers counts for those, and a head that writes to a logit may
be made up for by others when it is gone (self-repair, McGrath et al. 2023, arXiv:2307.15771): only switching it off
tells what it is worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._checks import check_batch
from headtools.heads._layout import plain_weight
from headtools.heads._tokens import model_inputs
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.heads.verify import check_verified
from headtools.importance._inputs import evaluating, select_sites
from headtools.importance._lrp.operations import rules


@dataclass(frozen=True)
class LogitAttribution:
    """A logit of each text, split.

    heads   {(kind, layer): (B, H)}: what each head writes to it directly
    rest    (B,): the embedding, the feed-forward layers and the biases
    logit   (B,): the model's own logit, which heads and rest add up to
    """

    heads: dict[tuple, Tensor]
    rest: Tensor
    logit: Tensor

    @property
    def scores(self) -> HeadScores:
        """The mean over texts of what each head writes, with 95 % intervals from five texts on."""
        return HeadScores.from_rows(self.heads, "direct logit attribution")


@torch.no_grad()
def direct_logit_attribution(
    model: nn.Module, batch: Mapping[str, Any], tokens: Tensor | list[int]
) -> LogitAttribution:
    """Return how much of the logit of some tokens each head writes directly, at the last real token of each text.

    ``tokens``: one id for each text, (B,); the difference of two calls splits that of two logits. The final norm's
    scale is kept at what it is in this run, so that the parts add up to the logit: the model's own, multiplied where it
    multiplies logits (Cohere, Granite), and before a cap (Gemma 2).

    Raises ``ValueError`` for models whose residual stream is no such sum (norms after adding, as in BERT, or before it,
    as in Gemma 2; multiplied residuals) or that have no unembedding, and for another number of tokens.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
    ...                                      num_attention_heads=4)).eval()
    >>> found = direct_logit_attribution(model, {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]])}, [7, 8])
    >>> total = sum(part.sum(1) for part in found.heads.values()) + found.rest
    >>> bool(torch.allclose(total, found.logit)), found.heads["decoder", 1].shape
    (True, torch.Size([2, 4]))
    """
    check_batch(batch)
    unembedding = getattr(model, "get_output_embeddings", lambda: None)()
    if unembedding is None:
        raise ValueError(f"{type(model).__name__} has no unembedding, so no logits: load it with AutoModelForCausalLM")
    sites = select_sites(model, None, batch)
    check_verified(model, sites, "sum")
    if any(site.kind != "decoder" for site in sites):
        raise ValueError(
            f"{type(model).__name__} has {' and '.join(ht.sites(model).kinds)} attention; expected a model that reads "
            "one text from left to right"
        )
    inputs = model_inputs(model, batch)
    ids = next(value for value in inputs.values() if isinstance(value, Tensor))
    if not isinstance(tokens, Tensor) and any(isinstance(token, str) for token in tokens):
        raise TypeError(f"tokens are ids, got {list(tokens)}: write tokenizer.convert_tokens_to_ids({list(tokens)})")
    tokens = torch.as_tensor(tokens)
    if tokens.shape != (len(ids),) or tokens.is_floating_point():
        raise ValueError(f"got tokens of shape {tuple(tokens.shape)}; expected one id for each of the {len(ids)} texts")

    with evaluating(model):
        seen = _Seen(parts={part for layer, own in _layers(model, sites).items() for part in _parts(layer, own)})
        with seen.hooks(model, unembedding), ht.record(model, want=("z",)) as captured:
            outputs = model(**inputs)
        norm, stream, normed = _final_norm(model, seen)
        _check_adds_up(model, sites, inputs, seen, norm, stream)
        rows, mask = torch.arange(len(ids), device=stream.device), batch.get("attention_mask")
        last = torch.tensor(stream.shape[1] - 1) if mask is None else mask.shape[1] - 1 - mask.flip(1).long().argmax(1)
        at = (rows, last.to(stream.device))
        scale = _logit_scale(seen.unembedded, outputs, at)
        direction = plain_weight(unembedding)[tokens.to(stream.device)] * scale  # (B, d_model), of what the norm gives
        # The same direction of what the norm takes: its product with any part of the stream is the part's share. Under
        # "cp" a norm divides by a constant, so its gradient is the linear map that it is at the scale of this run.
        with torch.enable_grad(), rules("cp"):
            x = stream[at].detach().requires_grad_()
            (towards,) = torch.autograd.grad((norm(x) * direction).sum(), x)

    bias = getattr(unembedding, "bias", None)
    logit = (normed[at].double() * direction.double()).sum(-1)
    logit = (logit if bias is None else logit + bias[tokens.to(bias.device)].double() * scale).float().cpu()
    heads = {}
    for site in sites:
        written = ht.contributions(site, captured[site].z[at][:, None].double())[:, 0]  # (B, H, d_model)
        heads[site.key] = torch.einsum("bhd,bd->bh", written, towards.double()).float().cpu()
    return LogitAttribution(heads, logit - sum(of_site.sum(1) for of_site in heads.values()), logit)


@dataclass
class _Seen:
    """What ``parts`` gave in one run, what each norm took and gave, and what the unembedding read and gave."""

    parts: set[nn.Module]
    copies: dict[nn.Module, Tensor] = field(default_factory=dict)  # of ``parts``, before anything changes them in place
    norms: list[tuple[nn.Module, Tensor, Tensor]] = field(default_factory=list)
    read: Tensor | None = None
    unembedded: Tensor | None = None

    def hooks(self, model: nn.Module, unembedding: nn.Module) -> ExitStack:
        """Fill this while the model runs, until the result is closed."""

        def after(module: nn.Module, given: tuple, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) and output else output
            if isinstance(first, Tensor):
                if module is unembedding:
                    self.read, self.unembedded = given[0], first
                if module in self.parts:
                    self.copies[module] = first.clone()
                if "norm" in type(module).__name__.lower() and given and isinstance(given[0], Tensor):
                    self.norms.append((module, given[0], first))

        stack = ExitStack()
        for module in model.modules():
            stack.callback(module.register_forward_hook(after).remove)
        return stack


def _final_norm(model: nn.Module, seen: _Seen) -> tuple[nn.Module, Tensor, Tensor]:
    """Return the final norm, what it took and what it gave; raise where the unembedding does not read one."""
    name = type(model).__name__
    final = [entry for entry in seen.norms if _same(entry[2], seen.read)]
    if not final:
        raise ValueError(f"{name}: its unembedding does not read a final norm directly, so logits do not split")
    norm = final[-1][0]
    if not re.search("layer_?norm|rms_?norm", type(norm).__name__, re.I):
        raise ValueError(f"{type(norm).__name__} is neither a LayerNorm nor an RMSNorm: logits do not split")
    return final[-1]


def _logit_scale(unembedded: Tensor, outputs: Any, at: tuple[Tensor, Tensor]) -> float:
    """Return by which factor the model multiplies what its unembedding gives (Cohere, Granite); 1 under a cap."""
    logits = outputs[0] if isinstance(outputs, tuple) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or logits.shape != unembedded.shape:
        return 1.0
    before, after = unembedded[at].double(), logits[at].double()
    factor = ((before * after).sum() / before.square().sum()).item()
    error = ((after - factor * before).norm() / after.norm()).item()
    # A cap bends large logits and shrinks all by a little: it is no factor, and the logit is the one before it.
    rounding = max(1e-4, 4 * torch.finfo(unembedded.dtype).eps)
    return factor if error < rounding and abs(factor - 1) > 0.1 else 1.0


def _layers(model: nn.Module, sites: list[Site]) -> dict[nn.Module, list[Site]]:
    """Return the layers that hold the sites, each the entry of a list of layers."""
    layers: dict[nn.Module, list[Site]] = {}
    for site in sites:
        path = re.match(r"(.*?\.\d+)(\.|$)", site.name)
        layers.setdefault(model.get_submodule(path[1]) if path else model, []).append(site)
    return layers


def _parts(layer: nn.Module, own: list[Site]) -> list[nn.Module]:
    """Return what a layer adds to the stream: its children, or itself where it is nothing but attention."""
    return [layer] if any(layer is site.module for site in own) else list(layer.children())


def _check_adds_up(
    model: nn.Module, sites: list[Site], inputs: Mapping[str, Any], seen: _Seen, norm: nn.Module, stream: Tensor
) -> None:
    """Raise ``ValueError`` where what attention writes does not reach the final norm as it is.

    That is tried: something random is added to what each layer's attention gives, all else that layers add is held at
    what it was, and the sum of what was added must arrive. Multipliers and streams that are normed on their way show.
    """
    draw, added, arrived = torch.Generator().manual_seed(0), torch.zeros_like(stream), []

    def hold(value: Tensor) -> Any:
        return lambda _module, _given, output: (value, *output[1:]) if isinstance(output, tuple) else value

    with ExitStack() as stack:
        for layer, own in _layers(model, sites).items():
            for part in _parts(layer, own):
                # dropout and activations have no weights: what attention gave goes through them
                if (
                    part not in seen.copies
                    or "norm" in type(part).__name__.lower()
                    or next(part.parameters(), None) is None
                ):
                    continue
                value = seen.copies[part]
                if any(site.module in set(part.modules()) for site in own):
                    extra = torch.randn(value.shape, generator=draw).to(value) * value.std()
                    value, added = value + extra, added + extra
                stack.callback(part.register_forward_hook(hold(value)).remove)
        keep = norm.register_forward_pre_hook(lambda _module, given: arrived.append(given[0].clone()))
        stack.callback(keep.remove)
        model(**inputs)
    off = (arrived[-1] - stream - added).float().norm() / added.float().norm()
    if not off < 0.1:  # rounding is a percent in half precision; a factor or a norm changes far more
        raise ValueError(
            f"{type(model).__name__} does not add what its attention writes to the stream as it is (a multiplier, a "
            "norm on the way, or the stream added inside attention), so no head writes directly; gradient(model, "
            "batches) and ablation(model, batches) hold"
        )


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same numbers in the same place; both are kept, so that places stay theirs."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
