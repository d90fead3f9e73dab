"""Confidence: the largest attention weight of a head's queries. Needs no loss and no labels.

The measure of Voita et al. 2019 (arXiv:1905.09418), section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from headtools.heads._tokens import is_encoder_decoder
from headtools.heads.scores import HeadScores
from headtools.importance.statistics import Block, largest, statistics


def confidence(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    exclude: Iterable[int] | int | None = None,
    sites: Iterable[str | tuple] | str | None = None,
) -> HeadScores:
    """Return each head's largest attention weight, averaged over its queries: between 0 and 1.

    Voita et al. 2019 (arXiv:1905.09418), section 4, leave out weights on the end of the sentence. ``exclude`` gives the
    ids of tokens that count neither as keys nor as queries, like padding, for instance
    ``[tokenizer.cls_token_id, tokenizer.sep_token_id]``; None means the EOS token of the model's configuration, and
    ``[]`` no token. A configuration without one, such as BERT's, leaves out nothing: then heads that rest on [SEP] come
    out as the most confident. Uniform attention to m tokens gives 1/m, so the number falls with length.

    ``batches``: dicts of the model's arguments. ``sites`` limits the measure: ``["encoder"]``, ``[("cross", 3)]``.
    ``low`` and ``high`` are the ends of a 95 % bootstrap interval over examples, where there are five or more. The
    model is run without dropout and left unchanged.

    Raises ``ValueError`` where ids are to be excluded and the batch has none, and as ``record`` does: for models that
    return no maps, empty batches and rows of padding.

    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> scores = confidence(BertModel(tiny), {"input_ids": torch.tensor([[1, 2, 3, 4]])})
    >>> bool((scores.flat() >= 1 / 4).all() and (scores.flat() <= 1).all())
    True
    """
    if exclude is None:
        exclude = getattr(getattr(model, "config", None), "eos_token_id", None)
    excluded = [] if exclude is None else [exclude] if isinstance(exclude, int) else list(exclude)
    if not all(isinstance(id_, int) for id_ in excluded):
        raise TypeError(
            f"exclude takes token ids, got {exclude!r}: write exclude=[tokenizer.cls_token_id, tokenizer.sep_token_id] "
            "or sites= for kinds and layers"
        )

    def without_excluded(block: Block) -> tuple[Tensor, Tensor]:
        site, rows = block.site, block.rows  # (B, head, query, key)
        # In an encoder-decoder model the decoder's own tokens ask, and, except in cross-attention, are asked.
        in_decoder = is_encoder_decoder(model) and site.kind != "encoder"
        query_ids = block.batch.get("decoder_input_ids" if in_decoder else "input_ids")
        key_ids = query_ids if site.kind != "cross" else block.batch.get("input_ids")
        if not isinstance(key_ids, Tensor) or key_ids.shape != (len(rows), rows.shape[3]):
            got = f"ids of shape {tuple(key_ids.shape)}" if isinstance(key_ids, Tensor) else "no ids"
            raise ValueError(
                f"{site.label} has keys of shape {(len(rows), rows.shape[3])} and the batch has {got} for them, so "
                "none can be excluded: pass exclude=[]"
            )
        ids = torch.tensor(excluded, device=key_ids.device)
        queries = block.queries
        if isinstance(query_ids, Tensor) and query_ids.shape == block.real.shape:
            own = query_ids[:, block.first : block.first + rows.shape[2]]
            queries = queries & ~torch.isin(own, ids).to(queries.device)
        return rows.masked_fill(torch.isin(key_ids, ids).to(rows.device)[:, None, None], 0.0).amax(-1), queries

    without_excluded.limits = largest.limits
    wanted = {"confidence": without_excluded if excluded else largest}
    scores = statistics(model, batches, wanted, sites)["confidence"]
    counted = "" if excluded or exclude is not None else "every token: the model's configuration has no EOS token"
    return replace(scores, notes={"counts": counted} | dict(scores.notes)) if counted else scores
