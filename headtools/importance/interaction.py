"""Interaction of two heads: how much more, or less, is lost without both than without the one and without the other.

``interaction`` measures it by ablation; ``curvature``, a second derivative, is what it would be for small changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from headtools._engine.loop import progress as with_bar
from headtools.heads._checks import check_has_backward, check_weights
from headtools.heads.gates import gates
from headtools.heads.intervals import bounds
from headtools.heads.scores import Head
from headtools.heads.sites import select
from headtools.heads.sites import sites as find_sites
from headtools.heads.verify import verify_once
from headtools.importance._inputs import each_batch, evaluating, select_sites
from headtools.importance.ablation import Batches, loss_rises
from headtools.importance.loss import Loss, each_loss


def interaction(
    model: nn.Module,
    batches: Batches,
    pairs: Iterable[tuple[Head, Head]] | None = None,
    loss: Loss | None = None,
    sites: Iterable[str | tuple] | str | None = None,
    predict: bool = False,
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Return a frame with a row for each pair of heads: what each costs, what both cost, and the difference from a sum.

    delta_a, delta_b and delta_ab are the mean rises of the loss without a, without b and without both;
    ``interaction`` is delta_ab - delta_a - delta_b: above 0 where each head replaces the other, below 0 where they do
    one thing together. ``low`` and ``high`` are a 95 % interval over the ``n`` examples (NaN for fewer than five).

    - ``pairs``: [(("encoder", 0, 1), ("encoder", 2, 3)), ...]; by default all pairs of the heads in ``sites``.
    - ``predict``: add ``predicted``, the second derivative by the two heads' gates at 1 (``curvature``), with bounds.

    Raises ``ValueError`` for no pairs, a head paired with itself or a pair given twice; ``TypeError``, ``KeyError`` and
    ``IndexError`` for heads that are not there; and as ``ablation`` does, whose arguments the others are.

    >>> import torch
    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids, model = torch.tensor([[1, 2, 3], [4, 5, 6]]), BertForMaskedLM(tiny)
    >>> pairs = [(("encoder", 0, 1), ("encoder", 1, 3))]
    >>> frame = interaction(model, {"input_ids": ids, "labels": ids}, pairs, progress=False)
    >>> frame[["a", "b", "n"]].values.tolist()
    [[('encoder', 0, 1), ('encoder', 1, 3), 2]]
    """
    check_weights(model)
    verify_once(model, batches)
    if pairs is None:
        heads = [(*site.key, head) for site in select_sites(model, sites) for head in range(site.heads)]
        pairs = list(combinations(heads, 2))
        if not pairs:
            raise ValueError("one head makes no pair: pass sites=None, or sites with two heads or more")
    pairs = _checked(model, pairs)
    batches = [batches] if isinstance(batches, Mapping) else list(batches)  # ``predict`` goes through them again
    heads = list(dict.fromkeys(head for pair in pairs for head in pair))
    head_sets = [select(find_sites(model), some) for some in [*([head] for head in heads), *pairs]]
    rises = loss_rises(model, batches, head_sets, loss, checkpoint=checkpoint, progress=progress)  # (n, heads + pairs)
    a, b = (rises[:, [heads.index(pair[i]) for pair in pairs]] for i in (0, 1))
    both = rises[:, len(heads) :]
    beyond_sum = both - a - b  # (n, pairs)
    columns = {"a": [pair[0] for pair in pairs], "b": [pair[1] for pair in pairs]}
    for name, rows in {"delta_a": a, "delta_b": b, "delta_ab": both, "interaction": beyond_sum}.items():
        columns[name] = rows.mean(0).tolist()
    columns["low"], columns["high"] = (end.tolist() for end in bounds(beyond_sum))
    columns["n"] = [len(beyond_sum)] * len(pairs)
    if predict:
        second = curvature(model, batches, pairs, loss, progress)
        columns["predicted"] = second.mean(0).tolist()
        columns["predicted_low"], columns["predicted_high"] = (end.tolist() for end in bounds(second))
    return pd.DataFrame(columns)


def curvature(
    model: nn.Module,
    batches: Batches,
    pairs: Sequence[tuple[Head, Head]],
    loss: Loss | None = None,
    progress: bool = False,
) -> Tensor:
    """Return d2L / dgate_a dgate_b at gates of 1 for every example and pair: (n, len(pairs)) float64, on the CPU.

    Exact, by differentiating twice: one backward pass for all heads and one for each different first head of a pair. It
    is the interaction where L is a polynomial of degree two. Kinks, as of ReLUs, are not part of it.

    Raises ``ValueError`` where the loss depends on no head of the pairs, and for a loss of another shape or NaN.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    >>> pairs = [(("encoder", 0, 1), ("encoder", 1, 3))]
    >>> curvature(BertForMaskedLM(tiny), {"input_ids": ids, "labels": ids}, pairs).shape
    torch.Size([2, 1])
    """
    check_has_backward(model, "a second derivative")
    label = "differentiating twice" if progress else ""
    with evaluating(model):
        return torch.cat(
            [_curvature(model, batch, pairs, loss) for batch in with_bar(list(each_batch(model, batches)), label)]
        )


def _curvature(model: nn.Module, batch: Mapping, pairs: Sequence[tuple[Head, Head]], loss: Loss | None) -> Tensor:
    with torch.no_grad():
        n_examples = len(each_loss(model, batch, loss))
    weight = next(model.parameters())
    how = {"device": weight.device, "dtype": torch.promote_types(weight.dtype, torch.float32), "requires_grad": True}
    keys = dict.fromkeys(head[:-1] for pair in pairs for head in pair)
    values = {key: torch.ones(n_examples, find_sites(model)[key].heads, **how) for key in keys}
    second = torch.zeros(n_examples, len(pairs), dtype=torch.float64)
    # Fused attention has no second derivative, so torch's plain implementation is used; the numbers are the same.
    with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), gates(model, values):
        total = each_loss(model, batch, loss).sum()
        if not total.requires_grad:
            raise ValueError("the loss depends on no head of the pairs: compute it from the outputs, with gradients on")
        slopes = _gradients(total, values, create_graph=True)
        for first in dict.fromkeys(pair[0] for pair in pairs):
            slope = slopes[first[:-1]][:, first[-1]]
            if slope.requires_grad:  # else the loss is linear in this gate
                # Examples share no gate, so the gradient of the sum holds each example's own second derivative.
                by_key = _gradients(slope.sum(), values)
                for column, (a, b) in enumerate(pairs):
                    if a == first:
                        second[:, column] = by_key[b[:-1]][:, b[-1]].detach().cpu()
    return second


def _gradients(total: Tensor, values: dict[tuple, Tensor], create_graph: bool = False) -> dict[tuple, Tensor]:
    """Return the gradient by each of the values, zeros where there is none; the graph stays for the next one."""
    gradients = torch.autograd.grad(
        total, list(values.values()), create_graph=create_graph, retain_graph=True, materialize_grads=True
    )
    return dict(zip(values, gradients, strict=True))


def _checked(model: nn.Module, pairs: Iterable[tuple[Head, Head]]) -> list[tuple[Head, Head]]:
    """Return pairs with every head as (kind, layer, head), after checking that each exists and is named once."""
    every_site, checked = find_sites(model), []
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f'a pair is two heads, e.g. (("encoder", 0, 1), ("encoder", 2, 3)), got {pair!r}')
        found = [next(iter(select(every_site, [head]).items())) for head in pair]
        one, other = ((*site.key, heads[0]) for site, heads in found)
        if one == other:
            raise ValueError(f"a pair is two heads, got {one} twice: name another one")
        if any({one, other} == set(earlier) for earlier in checked):
            raise ValueError("a pair is given twice (the order of its heads does not matter): name each pair once")
        checked.append((one, other))
    if not checked:
        raise ValueError('got no pairs: pass pairs=[(("encoder", 0, 1), ("encoder", 2, 3))], or None for all')
    return checked
