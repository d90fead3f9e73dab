"""What a report shows of each head: its maps on examples in which it is worth much, something and little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headtools._report.measures import Results, tokens_of
from headtools._report.subject import Subject, size_of
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.record import Captured, backbone, record
from headtools.heads.scores import Head, HeadScores
from headtools.heads.sites import Site, sites
from headtools.importance._inputs import each_batch, evaluating

SHOWN = 5  # examples of a head, from the one in which it is worth most to that in which it is worth least
LONGEST = 48  # tokens of an example whose map is shown, from its beginning
N_NEAR = 3  # heads with the most similar maps


@torch.no_grad()
def examples(subject: Subject, results: Results) -> dict[str, Any]:
    """For each head its maps on some examples, the tokens of these, and the heads of the same kind nearest to it.

    The examples of a head are sorted by its importance in each of them, and taken at equal steps. Nearest are heads
    whose maps overlap most: the mean over queries of the sum over keys of sqrt(a b), with a and b the weights of two
    heads (Bhattacharyya 1943), is 1 for equal maps and 0 for heads that never look at the same key.
    """
    if not subject.test:
        raise ValueError(subject.unlabelled)
    model, shown, wanted = subject.model, _choose(subject, results), {}
    for head, of_head in shown.items():
        for each in of_head:
            wanted.setdefault((head[:-1], each["example"]), []).append(head)
    maps: dict[tuple[Head, int], Tensor] = {}
    texts: dict[int, dict[str, list[str]]] = {i: {} for i in range(sum(map(size_of, subject.test)))}
    overlaps: dict[tuple, list[Tensor]] = {}  # by kind, (head, head) of each batch
    start = 0
    for batch in each_batch(model, subject.test):
        roots: dict[tuple, list[Tensor]] = {}
        for site, rows, queries, keys in _rows_of(model, batch):
            for b in range(len(rows)):
                for head in wanted.get((site.key, start + b), ()):
                    maps[head, start + b] = rows[b, head[-1]][queries[b]][:, keys[b]]
            if site.empty:
                continue
            roots.setdefault(site.key[:-1], []).append(
                (rows.sqrt() * queries[:, None, :, None]).transpose(0, 1).flatten(1)
            )
            part = "input_ids" if site.kind == "encoder" or "decoder_input_ids" not in batch else "decoder_input_ids"
            texts |= _tokens(subject, batch, part, queries, start, texts)
        for kind, of_kind in roots.items():
            if len({each.shape[1] for each in of_kind}) == 1:  # else layers see different tokens
                every = torch.cat(of_kind)
                overlaps.setdefault(kind, []).append(every @ every.T)
        start += size_of(batch)
    return {"shown": shown, "maps": maps, "texts": texts, "near": _nearest(subject, overlaps)}


def _choose(subject: Subject, results: Results) -> dict[Head, list[dict[str, Any]]]:
    """Return which examples of each head are shown, with its importance there and the rank of the example."""
    scores: HeadScores | None = results["importance"]["scores"] if "importance" in results else None
    n, shown = sum(map(size_of, subject.test)), {}
    places = sorted({round(k * (n - 1) / (SHOWN - 1)) for k in range(SHOWN)})
    for site in sites(subject.model):
        if site.empty:  # what is left of a layer without heads
            continue
        rows = scores.rows[site.key] if scores is not None and scores.rows else None
        for head in range(site.heads):
            order = range(n) if rows is None else rows[:, head].sort(descending=True, stable=True).indices.tolist()
            shown[(*site.key, head)] = [
                {"example": i, "rank": rank + 1, "worth": None if rows is None else float(rows[i, head])}
                for rank in places
                for i in [order[rank]]
            ]
    return shown


def _rows_of(model: nn.Module, batch: Mapping) -> list[tuple[Site, Tensor, Tensor, Tensor]]:
    """Return the beginning of every map (B, head, query, key), and which queries and which keys are no padding."""
    found: dict[tuple, tuple[Site, Tensor, Tensor, Tensor]] = {}

    def see(site: Site, captured: Captured, previous: object) -> object:
        if captured.first or site.key in found:  # the end of a long text, or a layer that runs again
            return previous
        n_keys = captured.rows.shape[3]
        queries = real_tokens(model, site, batch, (len(captured.rows), captured.n_queries)).cpu()
        keys = batch.get("attention_mask") if site.kind == "cross" else queries
        if keys is None or keys.shape != (len(queries), n_keys):
            keys = torch.ones(len(queries), n_keys)
        rows = captured.rows[:, :, :LONGEST, :LONGEST].float().cpu()
        found[site.key] = site, rows, queries[:, :LONGEST], keys[:, :LONGEST].bool().cpu()
        return True

    inputs = model_inputs(model, batch)
    with evaluating(model), record(model, "rows", see):
        backbone(model, inputs)(**inputs)
    return [*found.values()]


def _tokens(
    subject: Subject, batch: Mapping, part: str, real: Tensor, start: int, known: Mapping[int, Mapping]
) -> dict[int, dict[str, list[str]]]:
    """Return the tokens of one part of a batch for each example, added to what is known of them."""
    ids = batch.get(part)
    if subject.tokenizer is None or not isinstance(ids, Tensor) or part in known.get(start, {}):
        return {}
    ids = ids[:, :LONGEST].cpu()
    if ids.shape != real.shape:
        return {}
    return {
        start + b: {**known.get(start + b, {}), part: tokens_of(subject.tokenizer, ids[b][real[b]].tolist())}
        for b in range(len(ids))
    }


def _nearest(subject: Subject, overlaps: Mapping[tuple, list[Tensor]]) -> dict[Head, list[tuple[Head, float]]]:
    """Return for each head those with the most similar maps, and how similar they are."""
    near = {}
    for kind, parts in overlaps.items():
        of_kind = [site for site in sites(subject.model) if site.key[:-1] == kind and not site.empty]
        heads = [(*site.key, head) for site in of_kind for head in range(site.heads)]
        total = torch.stack(parts).sum(0)
        if len(total) != len(heads):  # some layers did not run
            continue
        size = total.diagonal().sqrt()  # a row of weights has the sum 1, so this is the root of the number of queries
        similar = (total / (size[:, None] * size)).fill_diagonal_(-1)
        best = similar.topk(min(N_NEAR, len(heads) - 1))
        for head, values, others in zip(heads, best.values.tolist(), best.indices.tolist(), strict=True):
            near[head] = [(heads[i], value) for i, value in zip(others, values, strict=True)]
    return near
