"""Grouped-query attention: the query heads that share a key-value head, and what its cache costs.

With grouped queries (Ainslie et al. 2023, arXiv:2305.13245; one group: Shazeer 2019, arXiv:1911.02150) a query head cut
alone frees no cache: the others still read its keys. Only a whole group takes keys and values with it. Latent attention
(DeepSeek-V2, arXiv:2405.04434) keeps one compressed vector for all heads and a small key that carries the position.
"""

from __future__ import annotations

from torch import nn

from headtools.heads.scores import HeadScores
from headtools.heads.sites import Heads, select, sites


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


def cache_size(model: nn.Module, tokens: int = 1, *, streaming: Heads = (), number_bytes: int | None = None) -> int:
    """Return how many bytes the key-value cache of a model takes for a text of ``tokens`` tokens.

    It counts the self-attention that reads from left to right, the silent head that ``prune`` leaves in a layer without
    heads included: its keys are kept, too. ``number_bytes`` is 2 in half precision; left out, that
    of the weights. Of ``streaming`` heads the cache holds the 4 first and 64 recent tokens (see ``window``), but only
    where all query heads of a group are named. Latent attention is counted as DeepSeek-V2 has it; transformers keeps
    full keys.

    Raises ``ValueError`` for a model that reads nothing from left to right.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> model = LlamaModel(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=3,
    ...                                num_attention_heads=4, num_key_value_heads=2))
    >>> cache_size(model, tokens=100, number_bytes=2)  # 3 layers x 2 heads x (4 + 4) numbers x 100 tokens x 2 bytes
    9600
    """
    decoder_sites = [site for site in sites(model) if site.kind == "decoder"]
    if not decoder_sites:
        raise ValueError(f"{type(model).__name__} has no attention that reads from left to right, so it keeps no cache")
    windowed, limits = select(sites(model), streaming), _sliding_windows(model)
    numbers = 0
    for site in decoder_sites:
        kept = min(tokens, limits.get(getattr(site.module, "layer_idx", site.layer), tokens))
        if site.latent:
            widths = [getattr(site.module, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim")]
            if None in widths:
                name = type(site.module).__name__
                raise ValueError(f"{name} ({site.label}) does not say how wide its compressed keys and values are")
            numbers += tokens * sum(widths)
            continue
        size = site.heads // site.kv_heads
        # query heads of a group read the same keys: only if all of them are windowed can keys be dropped
        short = sum(all(g * size + i in windowed.get(site, ()) for i in range(size)) for g in range(site.kv_heads))
        held = (site.kv_heads - short) * kept + short * min(kept, 4 + 64)
        numbers += held * (site.head_dim + site.value_dim)
    return numbers * (number_bytes or next(model.parameters()).element_size())


def _sliding_windows(model: nn.Module) -> dict[int, int]:
    """Return how many tokens transformers keeps in the cache of each layer with a sliding window, {layer: tokens}."""
    from transformers import DynamicCache, PreTrainedConfig

    config = getattr(model, "config", None)
    layers = DynamicCache(config=config).layers if isinstance(config, PreTrainedConfig) else ()
    # the window includes the token that is read, whose key is not yet in the cache
    return {i: layer.sliding_window - 1 for i, layer in enumerate(layers) if hasattr(layer, "sliding_window")}


def model_size(model: nn.Module, tokens: int = 1024) -> dict[str, int]:
    """Return parameters, bytes of weights, heads, key-value heads, and bytes of the cache of ``tokens`` tokens.

    Before and after a cut it says what the cut bought. ``kv_heads`` counts the silent head of a layer without heads,
    which is still cached; ``heads`` does not.

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
        "kv_heads": sum(site.kv_heads for site in every_site),
        "cache_bytes": cache_size(model, tokens) if causal else 0,
    }
