"""Limit the keys that some heads may see to the first tokens and the most recent ones, as in a streaming cache.

Xiao et al. 2024 (arXiv:2309.17453) keep the first tokens, to which many heads give most of their weight, and a window;
DuoAttention (Xiao et al. 2025, arXiv:2410.10819) does so for streaming heads only, the others are retrieval heads.
No cache is shortened here, so no memory is saved: the keys exist and are masked for the selected heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from torch import nn

from headtools.heads._attention import WINDOW, attention_function
from headtools.heads._checks import check_interface, check_not_compiled
from headtools.heads._hooks import append_entry, context, intervention
from headtools.heads.sites import Heads, select, sites
from headtools.heads.verify import check_verified


@context
def window(model: nn.Module, heads: Heads, first: int = 4, recent: int = 64) -> Iterator[None]:
    """Let ``heads`` see only the ``first`` tokens and the ``recent`` ones while the context lasts.

    ``recent`` counts the query's own token; padding counts for neither number; ``first=0`` also hides attention sinks.
    The softmax is over the visible keys. Nested windows hide every key that any of them hides. Only for causal
    (decoder) attention, with or without a cache; in a layer with its own sliding window ``first`` counts from its
    start.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that do not exist or are named twice, ``ValueError``
    for sizes too small, other kinds and models without AttentionInterface, ``RuntimeError`` for a model compiled
    before.

    >>> import torch, headtools as ht
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
    ...                                      num_attention_heads=4, num_key_value_heads=2)).eval()
    >>> with ht.window(model, {("decoder", 0): [1]}, first=1, recent=2), ht.record(model, want="maps") as seen:
    ...     out = model(torch.tensor([[1, 2, 3, 4, 5]]))
    >>> (seen["decoder", 0].maps[0, 1] > 0).int()  # head 1: the first token, the one before and the query's own
    tensor([[1, 0, 0, 0, 0],
            [1, 1, 0, 0, 0],
            [1, 1, 1, 0, 0],
            [1, 0, 1, 1, 0],
            [1, 0, 0, 1, 1]], dtype=torch.int32)
    """
    if first < 0 or recent < 1:
        raise ValueError(
            f"got first={first}, recent={recent}; expected first >= 0 and recent >= 1 (the query's own token)"
        )
    check_not_compiled(model)
    selected = select(sites(model), heads)
    for site in selected:
        if site.kind != "decoder":
            raise ValueError(
                f"{site.label} does not read from left to right, so no token is more recent than another: pass heads "
                'of ("decoder", layer), or ablate(model, heads, replacement="uniform")'
            )
        check_verified(model, [site], "kind")
        check_interface(site, "what its heads see cannot be limited: use ablate(model, heads)")
    with intervention(model, "window()", selected), attention_function(model, None), ExitStack() as stack:
        for site, indices in selected.items():
            stack.enter_context(append_entry(site.module, WINDOW, (tuple(indices), first, recent)))
        yield
