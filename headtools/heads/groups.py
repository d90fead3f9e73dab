"""Grouped-query attention: the query heads that share a key-value head, and what its cache costs.

With grouped queries (Ainslie et al. 2023, arXiv:2305.13245) some query heads read the same keys and values. A query
head cut alone frees its query and output weights, and no cache: the others still read the keys. Only a whole group
takes its keys and values with it.

The key-value cache of a layer holds, for each token, a key and a value of every key-value head. Multi-head attention
has as many as query heads, multi-query attention one (Shazeer 2019, arXiv:1911.02150), grouped queries a number in
between. Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434) keeps one compressed vector for all heads and a
small key that carries the position.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import nn

from headtools.heads._select import Heads, select
from headtools.heads.scores import Head, HeadScores
from headtools.heads.sites import Site, sites

if TYPE_CHECKING:
    import pandas as pd


def query_heads(model: nn.Module, groups: Heads) -> list[Head]:
    """Return the query heads that read some key-value heads.

    ``groups`` names key-value heads as others name heads: {("decoder", 2): [0]} or [("decoder", 2, 0)].

    Raises ``IndexError`` for a key-value head that is not there, and otherwise as ``prune`` does.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
    ...                                num_attention_heads=4, num_key_value_heads=2))
    >>> query_heads(model, {("decoder", 0): [1]})
    [('decoder', 0, 2), ('decoder', 0, 3)]
    """
    heads = []
    for site, group_numbers in select(sites(model), groups).items():
        share = site.heads // site.kv_heads
        for group in group_numbers:
            if group >= site.kv_heads:
                raise IndexError(
                    f"{site.label} has key-value heads 0..{site.kv_heads - 1}, got {group}: with groups=True heads are "
                    "key-value heads; name query heads without it"
                )
            heads += [(*site.key, group * share + i) for i in range(share)]
    return heads


def group_scores(model: nn.Module, scores: HeadScores) -> HeadScores:
    """Return the scores of key-value heads: each the sum of its query heads' scores.

    Of scores that say what a head is worth, ``group_scores(model, scores).order()`` is the order in which
    ``prune(..., groups=True)`` takes groups. A sum leaves out that heads of a group may stand in for one another.

    Raises ``ValueError`` for scores of other heads than the model's.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
    ...                                num_attention_heads=4, num_key_value_heads=2))
    >>> group_scores(model, HeadScores({("decoder", 0): torch.tensor([1.0, 2.0, 3.0, 5.0])})).values["decoder", 0]
    tensor([3., 8.])
    """
    by_site, values = sites(model), {}
    for key, value in scores.values.items():
        site = by_site[key]
        if len(value) != site.heads:
            raise ValueError(f"got {len(value)} scores for {site.label}; expected {site.heads}: measure them again")
        # Consecutive query heads share a key-value head.
        values[key] = value.view(site.kv_heads, -1).sum(1)
    return HeadScores(values, f"{scores.name}, summed over groups")


def spared(selected: Mapping[Site, list[int]], spare: Mapping[Site, list[int]], groups: bool) -> dict[Site, list[int]]:
    """Return the chosen heads without the spared ones; with ``groups``, without every group that has one of these."""
    remaining = {}
    for site, heads in selected.items():
        group_size = site.heads // site.kv_heads if groups else 1
        spared_numbers = {head // group_size for head in spare.get(site, ())}
        remaining[site] = [head for head in heads if head // group_size not in spared_numbers]
    return {site: heads for site, heads in remaining.items() if heads}


def cache_size(
    model: nn.Module,
    tokens: int = 1,
    *,
    streaming: Heads | None = None,
    first: int = 4,
    recent: int = 64,
    number_bytes: int | None = None,
) -> int:
    """Return how many bytes the key-value cache of a model takes for a text of ``tokens`` tokens.

    It counts the self-attention that reads from left to right; cross-attention keeps keys of the other text, whatever
    is written. ``number_bytes`` is 2 in half precision; left out, that of the weights. Of ``streaming`` heads the cache
    holds the ``first`` and ``recent`` tokens alone, but only where all query heads of a group are named: another one
    still reads the keys. Latent attention is counted as DeepSeek-V2 has it, one compressed vector and one rotary key a
    token; transformers itself keeps full keys and values.

    Raises ``ValueError`` for a model that reads nothing from left to right.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=3,
    ...                                num_attention_heads=4, num_key_value_heads=2))
    >>> cache_size(model, tokens=100, number_bytes=2)  # 3 layers x 2 heads x (4 + 4) numbers x 100 tokens x 2 bytes
    9600
    """
    every = sites(model)
    decoder_sites = [site for site in every if site.kind == "decoder"]
    if not decoder_sites:
        raise ValueError(f"{type(model).__name__} has no attention that reads from left to right, so it keeps no cache")
    windowed = select(every, streaming or [])
    numbers = 0
    for site in decoder_sites:
        if site.empty:
            continue
        if site.latent:
            numbers += tokens * _latent_numbers(site)
            continue
        share = site.heads // site.kv_heads
        # Query heads of a group read the same keys: only if all of them are windowed can keys be dropped.
        short = sum(all(g * share + i in windowed.get(site, ()) for i in range(share)) for g in range(site.kv_heads))
        held = (site.kv_heads - short) * tokens + short * min(tokens, first + recent)
        numbers += held * (site.head_dim + site.value_dim)
    return numbers * (number_bytes or next(model.parameters()).element_size())


def _latent_numbers(site: Site) -> int:
    parts = [getattr(site.module, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim")]
    if None in parts:
        raise ValueError(
            f"{type(site.module).__name__} ({site.label}) does not say how wide its compressed keys and values are"
        )
    return sum(parts)


def cache_costs(
    layers: int,
    heads: int,
    head_dim: int,
    *,
    kv_heads: int | None = None,
    latent: int | None = None,
    rope: int = 64,
    tokens: int = 1,
    number_bytes: int = 2,
) -> pd.DataFrame:
    """Return what a key-value cache costs with each kind of attention: a row each for MHA, GQA, MQA and MLA.

    ``kv_heads`` is the number of key-value heads with grouped queries (left out: a quarter of the heads), ``latent``
    the width of the compressed vector of latent attention (left out: four times ``head_dim``, as in DeepSeek-V2) and
    ``rope`` that of its rotary key. Columns: ``attention``; ``numbers``, kept for a token in a layer; ``bytes`` for all
    layers and ``tokens``; ``share`` of multi-head attention.

    Raises ``ValueError`` for key-value heads that do not divide the heads.

    >>> frame = cache_costs(layers=32, heads=32, head_dim=128, kv_heads=8, tokens=1000)
    >>> frame.attention.tolist(), frame.share.round(3).tolist()
    (['MHA', 'GQA', 'MQA', 'MLA'], [1.0, 0.25, 0.031, 0.07])
    """
    import pandas as pd

    kv_heads = kv_heads or max(1, heads // 4)
    if heads % kv_heads:
        raise ValueError(f"got {heads} heads and {kv_heads} key-value heads; expected a divisor of {heads}")
    numbers = {
        "MHA": 2 * heads * head_dim,
        "GQA": 2 * kv_heads * head_dim,
        "MQA": 2 * head_dim,
        "MLA": (latent or 4 * head_dim) + rope,
    }
    frame = pd.DataFrame({"attention": list(numbers), "numbers": list(numbers.values())})
    frame["bytes"] = frame.numbers * layers * tokens * number_bytes
    return frame.assign(share=frame.numbers / numbers["MHA"])


def model_size(model: nn.Module, tokens: int = 1024) -> dict[str, int]:
    """Return parameters, bytes of weights, heads, key-value heads, and bytes of the cache of ``tokens`` tokens.

    Before and after a cut it says what the cut bought. Where a cut leaves groups uneven, ``prune`` copies keys and
    values, and parameters and cache may grow.

    >>> from transformers import BertConfig, BertModel
    >>> model_size(BertModel(BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8,
    ...                                 vocab_size=9)))
    {'parameters': 10104, 'weight_bytes': 40416, 'heads': 4, 'kv_heads': 4, 'cache_bytes': 0}
    """
    every_site = list(sites(model))
    weights = list(model.parameters())
    causal = any(site.kind == "decoder" for site in every_site)
    return {
        "parameters": sum(weight.numel() for weight in weights),
        "weight_bytes": sum(weight.numel() * weight.element_size() for weight in weights),
        "heads": sum(site.heads for site in every_site if not site.empty),
        "kv_heads": sum(site.kv_heads for site in every_site if not site.empty),
        "cache_bytes": cache_size(model, tokens) if causal else 0,
    }
