"""What a cut costs, on more than one corpus.

Heads that a ranking's texts do not need come out as free: of SmolLM2, 54 heads that cost nothing on English include
most induction heads. So a cut is checked on a second corpus, such as random tokens that repeat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads.ablate import ablate
from headtools.heads.intervals import bounds
from headtools.heads.sites import Heads
from headtools.heads.verify import verify_once
from headtools.importance._inputs import each_batch, evaluating
from headtools.importance.loss import Loss, check_losses, each_loss, labels_only_loss
from headtools.roles._segments import ordinary_tokens, segments

COLUMNS = ("corpus", "loss", "without", "rise", "low", "high", "n")


def cut_cost(
    model: nn.Module,
    heads: Heads,
    corpora: Mapping[str, Mapping | Iterable[Mapping]],
    loss: Mapping[str, Loss | None] | None = None,
) -> pd.DataFrame:
    """Return what it costs to switch ``heads`` off, on each of several corpora: a row for each.

    ``corpora``: {name: batches}, of dicts with labels as ``gradient`` takes them (``text_batches``, ``label``,
    ``repeated_tokens``). ``loss``: {name: loss} where it is not the labels' cross-entropy. ``loss`` and ``without`` are
    means over ``n`` examples with all heads on and with ``heads`` off, ``low`` and ``high`` the 95 % interval of their
    paired difference, ``rise`` (missing below five examples). Raises ``ValueError`` for no corpora, and as ``gradient``
    and ``ablate`` do.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4)
    >>> model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    >>> cut_cost(model, {("decoder", 0): [0, 2]}, {"repeated": repeated_tokens(model, n=5, length=6)}).n.tolist()
    [5]
    """
    if not corpora:
        raise ValueError('got no corpora; expected {name: batches}: {"repeated": repeated_tokens(model)}')
    verify_once(model, next(iter(corpora.values())))
    rows = []
    for name, batches in corpora.items():
        batches, its_loss = list(each_batch(model, batches)), (loss or {}).get(name)
        uncut = _losses(model, batches, its_loss)
        with ablate(model, heads):
            without = _losses(model, batches, its_loss)
        means = (uncut.mean(), without.mean(), (without - uncut).mean(), *bounds(without - uncut))
        rows.append((name, *map(float, means), len(uncut)))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def repeated_tokens(model: nn.Module, *, n: int = 16, length: int = 25, seed: int = 0) -> dict[str, Tensor]:
    """Return one batch of random tokens, each segment twice, with labels in the second copy: a corpus for looking back.

    ``n`` segments of ``length`` different tokens, drawn from all ordinary ones. The second copy can be predicted by
    looking back (induction, Olsson et al. 2022, arXiv:2209.11895), but for its first token.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> batch = repeated_tokens(ToyDecoder(), n=1, length=3)
    >>> batch["labels"][0, :4].tolist(), bool((batch["labels"][0, 4:] == batch["input_ids"][0, 1:3]).all())
    ([-100, -100, -100, -100], True)
    """
    ids = segments(n, length, 2, ordinary_tokens(model), seed=seed)
    labels = ids.clone()
    labels[:, : length + 1] = -100  # the first copy, and the token that opens the second
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def _losses(model: nn.Module, batches: Iterable[Mapping], loss: Loss | None) -> Tensor:
    measure = partial(labels_only_loss, model) if loss is None else partial(each_loss, model, loss=loss)
    with torch.no_grad(), evaluating(model):
        losses = torch.cat([measure(batch) for batch in batches]).double().cpu()
    check_losses(model, losses)
    return losses
