"""Two heads at once: how much more, or less, is lost without both than without the one and without the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from headtools._renamed import old_arguments
from headtools.heads._finite import check_weights
from headtools.heads._select import select
from headtools.heads.bootstrap import bounds
from headtools.heads.scores import Head
from headtools.heads.sites import Site
from headtools.heads.sites import sites as find_sites
from headtools.importance._curvature import curvature
from headtools.importance._inputs import select_sites
from headtools.importance._loss_increase import Batches, How, rises_without
from headtools.importance.loss import Loss

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["a", "b", "delta_a", "delta_b", "delta_ab", "interaction", "low", "high", "n"]


@old_arguments(by="replacement", over="per", run="checkpoint", quiet="progress")
def interaction(
    model: nn.Module,
    batches: Batches,
    pairs: Iterable[tuple[Head, Head]] | None = None,
    loss: Loss | None = None,
    replacement: str = "zero",
    sites: Iterable[str | tuple] | str | None = None,
    predict: bool = False,
    max_rows: int = 64,
    reference: Batches | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    per: str = "example",
) -> pd.DataFrame:
    """Return a frame with a row for each pair of heads: what they cost alone, together, and how far that is from a sum.

    delta_a, delta_b and delta_ab are the mean rises of the loss without a, without b and without both; ``interaction``
    is delta_ab - delta_a - delta_b. Above 0 the two stand in for each other, so that losing both is worse than the sum;
    below 0 they do one thing together, of which losing either costs most. ``low`` and ``high`` bound it by 95 %
    bootstrap over examples (NaN for fewer than five); all four losses are of the same ``n`` examples. ``a`` and ``b``
    are heads, (kind, layer, head).

    - ``pairs``: [(("encoder", 0, 1), ("encoder", 2, 3)), ...]; left out, all pairs of the heads in ``sites``.
    - ``predict``: add ``predicted``, the second derivative of the loss by the two heads' gates at 1, and its bounds:
      what the interaction would be if the loss were a polynomial of degree two in the gates. For
      ``replacement="zero"``.

    The other arguments, and how it is done, are those of ``ablation``: what comes before the first head of a pair is
    computed once a batch. ``replacement="uniform"`` takes full runs for pairs of two layers.

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
            f'a gate at 0 is replacement="zero": predict=True has nothing to say of replacement="{replacement}"'
        )
    check_weights(model)
    chosen = {site.key: site for site in (select_sites(model, sites) if pairs is None else find_sites(model))}
    named = _all_pairs(chosen.values()) if pairs is None else _checked(model, pairs)
    batches = [batches] if isinstance(batches, Mapping) else list(batches)  # gone through twice
    heads = list(dict.fromkeys(head for pair in named for head in pair))
    variants = [_variant(chosen, [head]) for head in heads] + [_variant(chosen, pair) for pair in named]
    how = How(loss, replacement, max_rows, reference, seed, checkpoint, progress, per)
    rises = rises_without(model, batches, variants, how)
    place = {head: number for number, head in enumerate(heads)}
    alone_a, alone_b = (rises[:, [place[pair[side]] for pair in named]] for side in (0, 1))
    both = rises[:, len(heads) :]
    each = both - alone_a - alone_b
    low, high = (end.tolist() for end in bounds(each))
    means = [part.mean(0).tolist() for part in (alone_a, alone_b, both, each)]
    a, b = ([pair[side] for pair in named] for side in (0, 1))
    columns = [a, b, *means, low, high, [len(each)] * len(named)]
    frame = pd.DataFrame(dict(zip(COLUMNS, columns, strict=True)))
    if predict:
        second = curvature(model, batches, named, loss, progress, per)
        frame["predicted"] = second.mean(0).tolist()
        frame["predicted_low"], frame["predicted_high"] = (end.tolist() for end in bounds(second))
    return frame


def _all_pairs(chosen: Iterable[Site]) -> list[tuple[Head, Head]]:
    pairs = list(combinations([(*site.key, head) for site in chosen for head in range(site.heads)], 2))
    if not pairs:
        raise ValueError("one head makes no pair: pass sites=None, or sites with two heads or more")
    return pairs


def _checked(model: nn.Module, pairs: Iterable[tuple[Head, Head]]) -> list[tuple[Head, Head]]:
    """Return pairs with every head as (kind, layer, head), each of which is there."""
    found, named = find_sites(model), []
    for pair in pairs:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise TypeError(f'a pair is two heads, e.g. (("encoder", 0, 1), ("encoder", 2, 3)), got {pair!r}')
        both = []
        for head in pair:
            ((site, (number,)),) = select(found, [head]).items()
            both.append((*site.key, number))
        if both[0] == both[1]:
            raise ValueError(f"a pair is two heads, got {both[0]} twice: name another one")
        named.append(tuple(both))
    if not named:
        raise ValueError('no pairs came: pass pairs=[(("encoder", 0, 1), ("encoder", 2, 3))], or None for all')
    if len({frozenset(pair) for pair in named}) < len(named):
        raise ValueError("a pair is given twice (the order of its heads does not matter): name each pair once")
    return named


def _variant(chosen: dict[tuple, Site], heads: Iterable[Head]) -> dict[Site, list[int]]:
    """Return heads as {site: [head, ...]}, the sites in the model's order."""
    off: dict[Site, list[int]] = {}
    for head in sorted(heads, key=lambda head: (list(chosen).index(head[:-1]), head[-1])):
        off.setdefault(chosen[head[:-1]], []).append(head[-1])
    return off
