"""Interaction of two heads: how much more, or less, is lost without both than without the one and without the other.

``interaction`` measures it by ablation; ``curvature``, a second derivative, is what it would be for small changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headtools._engine.progress import progress as show_progress
from headtools.heads._checks import check_has_backward, check_weights
from headtools.heads.gates import gates
from headtools.heads.intervals import bounds
from headtools.heads.scores import Head
from headtools.heads.sites import Site, select
from headtools.heads.sites import sites as find_sites
from headtools.importance._inputs import each_batch, frozen, select_sites
from headtools.importance._replay import HeadSet
from headtools.importance.ablation import AblationOptions, Batches, loss_increase
from headtools.importance.loss import Loss, each_loss

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["a", "b", "delta_a", "delta_b", "delta_ab", "interaction", "low", "high", "n"]


def interaction(
    model: nn.Module,
    batches: Batches,
    pairs: Iterable[tuple[Head, Head]] | None = None,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    predict: bool = False,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> pd.DataFrame:
    """Return a frame with a row for each pair of heads: what each costs, what both cost, and the difference from a sum.

    delta_a, delta_b and delta_ab are the mean increases of the loss without a, without b and without both;
    ``interaction`` is delta_ab - delta_a - delta_b. Above 0 each head replaces the other, so that losing both is worse
    than the sum; below 0 they do one thing together, which is lost with either. ``low`` and ``high`` are the ends of a
    95 % bootstrap interval over examples (NaN for fewer than five); all four losses are of the same ``n`` examples.
    ``a`` and ``b`` are heads, (kind, layer, head).

    - ``pairs``: [(("encoder", 0, 1), ("encoder", 2, 3)), ...]; by default all pairs of the heads in ``sites``.
    - ``predict``: add ``predicted``, the second derivative of the loss by the two heads' gates at 1, and its bounds:
      what the interaction would be if the loss were a polynomial of degree two in the gates. For
      ``replacement="zero"``.

    The other arguments and the method are those of ``ablation``: what comes before the first head of a pair is computed
    once per batch. ``replacement="uniform"`` takes full runs for pairs of two layers.

    Raises ``ValueError`` for no pairs, a head paired with itself, a pair given twice, or ``predict`` with another
    ``replacement``; ``KeyError`` and ``IndexError`` for heads that are not there; and as ``ablation`` does.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids, model = torch.tensor([[1, 2, 3], [4, 5, 6]]), BertForMaskedLM(tiny)
    >>> pairs = [(("encoder", 0, 1), ("encoder", 1, 3))]
    >>> frame = interaction(model, {"input_ids": ids, "labels": ids}, pairs, progress=False)
    >>> frame[["a", "b", "n"]].values.tolist()
    [[('encoder', 0, 1), ('encoder', 1, 3), 2]]
    """
    import pandas as pd

    if predict and replacement != "zero":
        raise ValueError(
            f'predict=True differentiates by gates, whose 0 is replacement="zero"; got replacement="{replacement}"'
        )
    check_weights(model)
    by_key = {site.key: site for site in (select_sites(model, sites) if pairs is None else find_sites(model))}
    pairs = _all_pairs(by_key.values()) if pairs is None else _checked_pairs(model, pairs)
    batches = [batches] if isinstance(batches, Mapping) else list(batches)  # ``predict`` goes through them again
    heads = list(dict.fromkeys(head for pair in pairs for head in pair))
    head_sets = [_head_set(by_key, [head]) for head in heads] + [_head_set(by_key, pair) for pair in pairs]
    options = AblationOptions(loss, replacement, reference, seed, checkpoint, progress, per)
    increase = loss_increase(model, batches, head_sets, options)  # (n, heads and then pairs)
    column = {head: index for index, head in enumerate(heads)}
    delta_a, delta_b = (increase[:, [column[pair[i]] for pair in pairs]] for i in (0, 1))
    delta_ab = increase[:, len(heads) :]
    beyond_sum = delta_ab - delta_a - delta_b
    low, high = (end.tolist() for end in bounds(beyond_sum))
    means = [rows.mean(0).tolist() for rows in (delta_a, delta_b, delta_ab, beyond_sum)]
    a, b = ([pair[i] for pair in pairs] for i in (0, 1))
    columns = [a, b, *means, low, high, [len(beyond_sum)] * len(pairs)]
    frame = pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
    if predict:
        second = curvature(model, batches, pairs, loss, progress, per)
        frame["predicted"] = second.mean(0).tolist()
        frame["predicted_low"], frame["predicted_high"] = (end.tolist() for end in bounds(second))
    return frame


def curvature(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    pairs: Sequence[tuple[Head, Head]],
    loss: Loss | None = None,
    progress: bool = False,
    per: str = "example",
) -> Tensor:
    """Return d2L / dgate_a dgate_b at gates of 1 for every example and pair: (n, len(pairs)) float64, on the CPU.

    Exact, by differentiating twice: one backward pass for all heads together and one for each different first head of a
    pair. To second order, the interaction of two heads is this number: L at gates (0, 0) - (1, 0) - (0, 1) + (1, 1) is
    the mixed derivative where L is a polynomial of degree two. Kinks are not part of it, though a model with ReLUs also
    bends there. With ``per="batch"`` rows are batches, and a gate is that of all examples.

    Raises ``ValueError`` where the loss depends on no head of the pairs, and for a loss of another shape or NaN.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> pairs = [(("encoder", 0, 1), ("encoder", 1, 3))]
    >>> curvature(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, pairs).shape
    torch.Size([2, 1])
    """
    batches = list(each_batch(model, batches))
    steps = show_progress(batches, "differentiating twice") if progress else batches
    return torch.cat([_curvature_of_batch(model, batch, pairs, loss, per) for batch in steps])


def _curvature_of_batch(
    model: nn.Module, batch: Mapping, pairs: Sequence[tuple[Head, Head]], loss: Loss | None, per: str
) -> Tensor:
    check_has_backward(model, "a second derivative")
    all_sites = find_sites(model)
    with torch.no_grad(), frozen(model):
        n_rows = len(each_loss(model, batch, loss, per=per))
    leading = (n_rows,) if per == "example" else ()  # a gate for each example, or one for all
    # Fused attention has no second derivative, so torch's plain implementation is used; the numbers are the same.
    plain_attention = sdpa_kernel(SDPBackend.MATH)
    with ExitStack() as stack:
        for context in (frozen(model), torch.inference_mode(False), torch.enable_grad(), plain_attention):
            stack.enter_context(context)
        keys = list(dict.fromkeys(head[:-1] for pair in pairs for head in pair))
        weight = next(model.parameters())
        dtype = torch.promote_types(weight.dtype, torch.float32)
        values = {
            key: torch.ones(*leading, all_sites[key].heads, device=weight.device, dtype=dtype, requires_grad=True)
            for key in keys
        }
        stack.enter_context(gates(model, values))
        total = each_loss(model, batch, loss, per=per).sum()
        if not total.requires_grad:
            raise ValueError("the loss depends on no head of the pairs: compute it from the outputs, with gradients on")
        slopes = dict(zip(keys, _gradients(total, list(values.values()), create_graph=True), strict=True))
        second = torch.zeros(n_rows, len(pairs), dtype=torch.float64)
        for first in dict.fromkeys(pair[0] for pair in pairs):
            slope = slopes[first[:-1]][..., first[-1]]
            if not slope.requires_grad:  # the loss is linear in this gate
                continue
            # Examples share no gate, so the gradient of the sum holds each example's own second derivative.
            by_key = dict(zip(keys, _gradients(slope.sum(), list(values.values())), strict=True))
            for column, (a, b) in enumerate(pairs):
                if a == first:
                    second[:, column] = by_key[b[:-1]][..., b[-1]].detach().cpu()
    return second


def _gradients(total: Tensor, values: list[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Return the gradient by each of the values, zeros where there is none; the graph stays for the next one."""
    gradients = torch.autograd.grad(total, values, create_graph=create_graph, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(gradients, values, strict=True)]


def _all_pairs(sites: Iterable[Site]) -> list[tuple[Head, Head]]:
    pairs = list(combinations([(*site.key, head) for site in sites for head in range(site.heads)], 2))
    if not pairs:
        raise ValueError("one head makes no pair: pass sites=None, or sites with two heads or more")
    return pairs


def _checked_pairs(model: nn.Module, pairs: Iterable[tuple[Head, Head]]) -> list[tuple[Head, Head]]:
    """Return pairs with every head as (kind, layer, head), after checking that each exists and is named once."""
    all_sites, checked = find_sites(model), []
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f'a pair is two heads, e.g. (("encoder", 0, 1), ("encoder", 2, 3)), got {pair!r}')
        heads = []
        for head in pair:
            ((site, (index,)),) = select(all_sites, [head]).items()
            heads.append((*site.key, index))
        if heads[0] == heads[1]:
            raise ValueError(f"a pair is two heads, got {heads[0]} twice: name another one")
        checked.append(tuple(heads))
    if not checked:
        raise ValueError('got no pairs: pass pairs=[(("encoder", 0, 1), ("encoder", 2, 3))], or None for all')
    if len({frozenset(pair) for pair in checked}) < len(checked):
        raise ValueError("a pair is given twice (the order of its heads does not matter): name each pair once")
    return checked


def _head_set(by_key: dict[tuple, Site], heads: Iterable[Head]) -> HeadSet:
    """Return heads as {site: [head, ...]}, the sites in the model's order."""
    order = list(by_key)
    head_set: dict[Site, list[int]] = {}
    for head in sorted(heads, key=lambda head: (order.index(head[:-1]), head[-1])):
        head_set.setdefault(by_key[head[:-1]], []).append(head[-1])
    return head_set
