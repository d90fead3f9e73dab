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

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._checks import check_batch
from headtools.heads._tokens import model_inputs
from headtools.heads.scores import HeadScores
from headtools.heads.sites import Site
from headtools.importance._inputs import frozen, select_sites


@dataclass(frozen=True)
class LogitAttribution:
    """A logit of each text, split.

    heads   {(kind, layer): (B, H)}: what each head writes to it directly
    rest    (B,): the embedding, the feed-forward layers and the biases
    logit   (B,): the model's own logit (or the difference of two), which heads and rest add up to
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
    model: nn.Module,
    batch: Mapping[str, Any],
    tokens: Tensor | list[int],
    instead_of: Tensor | list[int] | None = None,
    positions: Tensor | list[int] | None = None,
) -> LogitAttribution:
    """Return how much of the logit of some tokens each head writes directly, at one position of each text.

    ``tokens``: for each of the texts the token whose logit is split, (B,) ids. ``instead_of``: other tokens whose
    logits are taken off: a difference of logits is what decides between two words, and what all tokens get alike
    cancels.
    ``positions``: where in each text, (B,); left out, its last real token. The final norm's scale is kept at what it is
    in this run (the mean that LayerNorm takes off is linear and goes with each term), so that the parts add up to the
    logit. Logits are those of the unembedding, before any cap.

    Raises ``ValueError`` for models of which the residual stream is no such sum (norms after adding, as in BERT and
    GPT-1, or between a layer and the sum, as in Gemma 2; multiplied residuals), for a model without an unembedding and
    for tokens of another number.

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
    sites = select_sites(model, None)
    if any(site.kind != "decoder" for site in sites):
        raise ValueError(
            f"{type(model).__name__} has {' and '.join(ht.sites(model).kinds)} attention; expected a model that reads "
            "one text from left to right"
        )
    inputs = model_inputs(model, batch)
    trace = _Trace(model, unembedding, sites)
    with trace.hooks, frozen(model), ht.record(model, want=("z",)) as captured:
        model(**inputs)
    norm, stream, normed = trace.checked()

    ids = next(value for value in inputs.values() if isinstance(value, Tensor))
    rows = torch.arange(len(ids), device=stream.device)
    at = _positions(batch, stream.shape[:2], positions).to(stream.device)
    tokens, instead_of = (None if t is None else _checked(t, len(ids)).to(stream.device) for t in (tokens, instead_of))
    direction = unembedding.weight[tokens].double()
    bias = _bias(unembedding, tokens)
    if instead_of is not None:
        direction, bias = direction - unembedding.weight[instead_of].double(), bias - _bias(unembedding, instead_of)

    read, given = stream[rows, at].double(), normed[rows, at].double()
    # The norm, linear once its scale is fixed, taken over to the unembedding's direction.
    towards = _before_norm(direction, norm, read, given)  # its product with any part of the stream is the part's share
    logit = (given * direction).sum(-1) + bias
    heads = {}
    for site in sites:
        written_by = ht.contributions(site, captured[site].z[rows, at][:, None].double())[:, 0]  # (B, H, d_model)
        heads[site.key] = torch.einsum("bhd,bd->bh", written_by, towards).float().cpu()
    rest = logit.float().cpu() - sum(of_site.sum(1) for of_site in heads.values())
    return LogitAttribution(heads, rest, logit.float().cpu())


class _Trace:
    """Keeps what the unembedding read, what each norm took and gave, and what attention and the last layer gave."""

    def __init__(self, model: nn.Module, unembedding: nn.Module, sites: list[Site]) -> None:
        self.model = model
        path = sites[-1].name.split(".")
        self.around = [model.get_submodule(".".join(path[:n])) for n in range(1, len(path))]  # the last layer is one
        self.attention = {part for site in sites for part in (site.module, site.out)}
        self.last = sites[-1].module
        self.norms: list[tuple[nn.Module, Tensor, Tensor]] = []
        self.given: dict[nn.Module, Tensor] = {}
        self.read: Tensor | None = None
        self.hooks = ExitStack()  # to be closed after the run
        for module in model.modules():
            if module in self.attention or module in self.around or _is_norm(module):
                self.hooks.callback(module.register_forward_hook(self._after).remove)
        self.hooks.callback(unembedding.register_forward_pre_hook(self._before).remove)

    def _before(self, _module: nn.Module, given: tuple) -> None:
        self.read = given[0]

    def _after(self, module: nn.Module, given: tuple, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(first, Tensor):
            return
        self.given[module] = first
        if _is_norm(module) and given and isinstance(given[0], Tensor):
            self.norms.append((module, given[0], first))

    def checked(self) -> tuple[nn.Module, Tensor, Tensor]:
        """Return the final norm, what it took and what it gave; raise where the stream is no sum of what is written."""
        name = type(self.model).__name__
        final = [entry for entry in self.norms if _same(entry[2], self.read)]
        if not final:
            raise ValueError(f"{name}: its unembedding does not read a final norm directly, so logits do not split")
        norm, stream, normed = final[-1]
        written = [self.given[part] for part in self.attention if part in self.given]
        if any(_same(taken, part) for other, taken, _ in self.norms if other is not norm for part in written):
            raise ValueError(f"{name} norms what its attention writes before adding it, so no head writes directly")
        layers = [self.given[module] for module in self.around if module in self.given]
        if not any(_same(output, stream) for output in layers) and not self._added_outside(stream):
            raise ValueError(f"{name}: its final norm does not read the last layer's output, so logits do not split")
        scale = getattr(getattr(self.model, "config", None), "residual_multiplier", 1)
        if scale != 1:
            raise ValueError(f"{name} multiplies what layers write by {scale}: not supported")
        return norm, stream, normed

    def _added_outside(self, stream: Tensor) -> bool:
        """Tell whether the final norm reads the last layer's input plus what its attention gave, added by the model."""
        given = self.given.get(self.last)
        return given is not None and any(
            taken.shape == given.shape and torch.equal(taken + given, stream) for _, taken, _ in self.norms
        )


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _same(a: Tensor, b: Tensor) -> bool:
    """Tell whether two tensors are the same numbers in the same place; both are kept, so that places stay theirs."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


def _before_norm(direction: Tensor, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return, for a direction of what a norm gives, the direction of what it takes: (B, d_model).

    At the scale that it has for x, whose norm is y, it is x -> gain * (x - its mean, if the norm takes it off) / scale.
    Gain and centring are read off the norm itself, by what it does with vectors of known mean and variance, so that
    LayerNorm, RMSNorm and those that store their gain minus one are all right.
    """
    weight = next(norm.parameters())
    alternating = torch.full((1, x.shape[-1]), 100.0, dtype=weight.dtype, device=weight.device)  # far above any epsilon
    alternating[:, 1::2] *= -1
    bias = norm(torch.zeros_like(alternating)).double()
    centred = bool(torch.allclose(norm(alternating.abs()).double(), bias, atol=1e-3))
    gain = (norm(alternating).double() - bias) * alternating.sign().double()
    taken = gain * (x - x.mean(-1, keepdim=True) if centred else x)
    given = y - bias
    scale = (taken * given).sum(-1, keepdim=True) / (given * given).sum(-1, keepdim=True)
    if (taken / scale - given).norm() > 1e-3 * given.norm():
        raise ValueError(f"{type(norm).__name__} is neither a LayerNorm nor an RMSNorm: logits do not split")
    back = direction * gain / scale
    return back - back.mean(-1, keepdim=True) if centred else back


def _bias(unembedding: nn.Module, tokens: Tensor) -> Tensor | float:
    bias = getattr(unembedding, "bias", None)
    return 0.0 if bias is None else bias[tokens].double()


def _checked(tokens: Tensor | list[int], rows: int) -> Tensor:
    tokens = torch.as_tensor(tokens)
    if tokens.shape != (rows,) or tokens.is_floating_point():
        raise ValueError(f"got tokens of shape {tuple(tokens.shape)}; expected one id for each of the {rows} texts")
    return tokens


def _positions(batch: Mapping, shape: tuple[int, int], positions: Tensor | list[int] | None) -> Tensor:
    if positions is not None:
        return _checked(positions, shape[0])
    mask = batch.get("attention_mask")
    if mask is None:
        return torch.full((shape[0],), shape[1] - 1)
    return shape[1] - 1 - mask.flip(1).long().argmax(1)
