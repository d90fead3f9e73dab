"""Attention sinks: heads of language models that rest on the first token (arXiv:2309.17453, arXiv:2410.10781).

Softmax must spread a weight of 1 even where a head has nothing to attend to, and the first token is the one that every
query sees. So a score of .4 may be a weak head, or a strong one that rests most of the time; :func:`without_sink`
leaves the first key out, so that scores can be given both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._checks import check_batch
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.intervals import bounds
from headtools.heads.record import Captured, backbone
from headtools.heads.verify import check_padding_verified, verify_once

SINK = "attention sink"


def without_sink(maps: Tensor) -> Tensor:
    """Return rows of maps (B, head, query, key) without the first key, the rest of each row scaled to sum to 1.

    Rows that had nothing but the first key become 0, as the first query's does; a previous-token score then counts the
    second query as a miss. The first key is the one at index 0; give maps of rows without padding on the left.

    >>> without_sink(torch.tensor([[[[1.0, 0.0, 0.0], [0.6, 0.1, 0.3]]]]))[0, 0, 1]
    tensor([0.0000, 0.2500, 0.7500])
    """
    others = torch.cat([torch.zeros_like(maps[..., :1]), maps[..., 1:]], -1)
    return others / others.sum(-1, keepdim=True).clamp_min(torch.finfo(maps.dtype).tiny)


@torch.no_grad()
def attention_sinks(
    model: nn.Module, batches: Mapping | Iterable[Mapping], *, start: int | None = None
) -> pd.DataFrame:
    """Return every decoder head's mean weight on the first token of texts: a row for each head.

    ``batches``: dicts of what the model takes, one or several; labels are left alone. ``start`` puts this token before
    every row, so that it is the first one. The first query, which sees nothing else, and padding are left out. The mean
    is over texts, each weighing the same. Columns: ``kind``, ``layer``, ``head``, ``role``; ``score`` with ``low`` and
    ``high``, a 95 % bootstrap interval over texts (missing below five); ``chance``, of attention spread evenly over the
    tokens so far; ``n``.

    Raises ``ValueError`` for a model without decoder attention, a text of a single token, and as ``record`` does.
    """
    scores: dict[tuple, list[Tensor]] = {}
    chance: list[Tensor] = []
    sites = [site for site in ht.sites(model) if site.kind == "decoder"]
    if not sites:
        raise ValueError(
            f"{type(model).__name__} has {' and '.join(ht.sites(model).kinds)} attention; an attention sink is the "
            "first token that a causal model reads: pass one of AutoModelForCausalLM"
        )
    verify_once(model, batches, sites)
    for batch in [batches] if isinstance(batches, Mapping) else batches:
        check_batch(batch)
        check_padding_verified(model, batch)
        given = {name: value for name, value in batch.items() if name != "labels"}
        given = _started(given, start) if start is not None else given

        def accumulate(site: ht.Site, captured: Captured, _before: object, given: Mapping = given) -> None:
            queries = real_tokens(model, site, given, (len(captured.rows), captured.n_queries)).to(captured.rows.device)
            counted, first = _after_the_first(queries)
            block = slice(captured.first, captured.first + captured.rows.shape[2])
            on_first = captured.rows.gather(-1, first[:, None, None, None].expand(*captured.rows.shape[:3], 1))[..., 0]
            added = ((on_first * counted[:, None, block]).sum(-1) / counted.sum(-1)[:, None]).cpu()
            parts = scores.setdefault((site.key, SINK), [])
            parts.append(parts.pop() + added if captured.first else added)
            # Chance depends on the texts alone: the first layer is enough.
            if site.key == sites[0].key and not captured.first:
                uniform = queries.cumsum(-1).clamp_min(1).reciprocal() * counted  # one of the tokens so far
                chance.append((uniform.sum(-1) / counted.sum(-1)).cpu())

        with ht.record(model, want="rows", accumulate=accumulate, only=["decoder"]):
            inputs = model_inputs(model, given)
            backbone(model, inputs)(**inputs)
    if not scores:
        raise ValueError("no batches came: pass at least one dict with input_ids")
    weights = {key: torch.cat(parts) for key, parts in scores.items()}
    return score_rows(weights, {SINK: torch.cat(chance).mean().item()})


def score_rows(values: Mapping[tuple, Tensor], chance: Mapping[str, float]) -> pd.DataFrame:
    """Return a row for each head and role, from {(site key, role): (n, head)}, and the chance of each role."""
    rows = []
    for (key, role), by_text in values.items():
        low, high = bounds(by_text)
        stack = {"stack": key[0]} if len(key) == 3 else {}
        rows += [
            {
                **stack,
                "kind": key[-2],
                "layer": key[-1],
                "head": head,
                "role": role,
                "score": score,
                "low": low[head].item(),
                "high": high[head].item(),
                "chance": chance[role],
                "n": len(by_text),
            }
            for head, score in enumerate(by_text.mean(0).tolist())
        ]
    return pd.DataFrame(rows)


def _after_the_first(queries: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real queries (B, T) after the first one, and where that is (B,)."""
    if bool((queries.sum(-1) < 2).any()):
        short = (queries.sum(-1) < 2).nonzero().flatten().tolist()
        raise ValueError(
            f"rows {short} have fewer than two tokens: a first token needs one that looks at it; drop them"
        )
    first = queries.long().argmax(-1)
    return queries & (torch.arange(queries.shape[1], device=queries.device) > first[:, None]), first


def _started(batch: Mapping[str, Tensor], start: int) -> dict[str, Tensor]:
    """Return a batch with one more token before the first real one of every row, padding on either side."""
    ids = batch["input_ids"]
    mask = batch.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    # A column more on the left: masked where a row has padding there, else overwritten below.
    ids, mask = torch.cat([ids[:, :1], ids], 1), torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)
    previous = mask.argmax(-1) - 1  # where the first real token had its neighbour
    rows = torch.arange(len(ids), device=ids.device)
    ids, mask = ids.clone(), mask.clone()
    ids[rows, previous], mask[rows, previous] = start, 1
    return {"input_ids": ids, "attention_mask": mask}
