"""headtools' side of every comparison."""

from __future__ import annotations

import copy
from collections.abc import Callable

import common
import subjects
from torch import Tensor

import headtools as ht


def works(kind: str, size: str) -> dict[str, Callable]:
    """What headtools does with a model: the plain pass, importance three ways, maps, a pruned pass."""
    subject = common.subject(kind, size)
    model, few = subject.model, subject.part(common.EXACT_ROWS)
    smaller = copy.deepcopy(model)
    ht.prune(smaller, {site.key: common.half(site.heads) for site in ht.sites(model)})

    def score(labels) -> Callable:
        return lambda out, _batch: subjects.loss(out.logits, labels)

    def gradient() -> dict:
        values = ht.gradient(model, subject.batch, loss=score(subject.labels)).values
        return common.by_head((*key, row) for key, row in values.items())

    def ablation() -> dict:
        found = ht.ablation(model, few.batch, loss=score(few.labels), progress=False).rows
        return common.by_head((*key, rows.mean(0)) for key, rows in found.items())

    def relevance() -> dict:
        found = ht.relevance(model, subject.batch, lambda out, _batch: out.logits[:, -1].amax(-1), signed=True)
        return common.by_head((*key, rows.sum(0)) for key, rows in found.rows.items())

    def maps() -> dict:
        with ht.record(model, want=("maps",)) as seen:
            common.logits(model, subject)
        return common.last_weights((*key, seen[key].maps) for key in seen)

    def previous() -> dict:
        def fold(_site: ht.Site, seen: object, _before: None) -> Tensor:
            return seen.maps.diagonal(-1, 2, 3).sum(-1).mean(0) / seen.maps.shape[2]

        with ht.record(model, want=("maps",), accumulate=fold) as seen:
            common.logits(model, subject)
        return common.by_head((*key, seen[key]) for key in seen)

    return {
        "plain": lambda: common.logits(model, subject),
        "plain, 2 rows": lambda: common.logits(model, few),
        "gradient": gradient,
        "leave-one-out": ablation,
        "relevance": relevance,
        "maps": maps,
        "previous token": previous,
        "pruned": lambda: common.logits(smaller, subject),
    }
