"""A measure of a corpus, batch by batch: shared among processes, kept on the way, put together in order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headtools.heads.digest import digest, digest_model
from headtools.heads.partial import Partial
from headtools.heads.shards import current, outline
from headtools.heads.sites import Site
from headtools.importance.inputs import each_batch

Measure = Callable[[dict[str, Any]], dict[str, Tensor]]


def by_batch(
    model: nn.Module,
    batches: Mapping | Iterable[Mapping],
    measure: Measure,
    run: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    same: str = "losses",
) -> list[dict[str, Tensor]]:
    """Return what ``measure(batch)`` gives for each batch, tensors by name, in the order of the batches.

    Inside ``sharded()`` each process measures a part of the batches, and all return the whole. ``run`` is a folder in
    which each batch's tensors are kept as soon as they are there; ``settings`` is what, besides the model and the
    batches, determines them. On going on, the first batch that is kept is measured again, and its tensor ``same`` must
    be what it was.

    Raises what ``each_batch`` and ``measure`` raise; ``ValueError`` for a folder that holds another run, and where
    processes have different models or batches.
    """
    shard, told = current(), {}
    if run is not None:
        batches = list(each_batch(model, batches))
        told = {"model": digest_model(model), "batches": digest(batches), **(settings or {})}
    partial = Partial(run, told)
    seen = hashlib.sha256(outline(model).encode() if shard.count > 1 else b"")

    def watched() -> Iterator[dict[str, Any]]:
        for batch in each_batch(model, batches):
            if shard.count > 1:
                seen.update(digest(batch).encode())
            yield batch

    def work() -> dict[int, dict[str, Tensor]]:
        found = {}
        for number, batch in shard.mine(watched(), partial.kept):
            if number not in partial.kept:
                found[number] = measure(batch)
                partial.save(number, found[number])
                continue
            if number == partial.first():
                partial.check(number, measure(batch), same)
            found[number] = partial.read(number)
        return found

    found = shard.merged(work)
    shard.agree(seen.hexdigest(), "models or batches")
    return found


def refuse_idle(found: Sequence[Mapping[str, Tensor]], chosen: Sequence[Site], why: str) -> None:
    """Raise ``ValueError`` for sites that no batch reached; ``why`` says so, with ``{}`` for their names.

    Each part of ``found`` has ``reached``, (len(chosen),): whether the batch came by the site.
    """
    reached = torch.stack([part["reached"] for part in found]).any(0).tolist()
    idle = [site.label for site, there in zip(chosen, reached, strict=True) if not there]
    if idle:
        raise ValueError(why.format(", ".join(idle)) + ": leave them out with sites=[...]")
