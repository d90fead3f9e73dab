"""What takes the place of a head's output when the head is switched off: nothing, its mean, or that of other tokens."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtools.heads._finite import refuse_unfit
from headtools.heads._select import check_batch, wide
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site

BY = ("zero", "mean", "resample", "uniform")


def check_replacement(replacement: str, sites: Iterable[Site]) -> None:
    """Raise ``ValueError`` for an unknown way to switch heads off, or one that these sites do not allow."""
    if replacement not in BY:
        raise ValueError(f'replacement must be "zero", "mean", "resample" or "uniform", got {replacement!r}')
    for site in sites if replacement == "uniform" else ():
        name = f"{type(site.module).__name__} ({site.label})"
        if not site.interface:
            raise ValueError(
                f"{name} does not use transformers' AttentionInterface, so it cannot be made to look evenly: "
                'use replacement="mean", replacement="resample" or replacement="zero"'
            )
        if getattr(site.module, "sinks", None) is not None:
            raise ValueError(
                f"{name} has attention sinks: part of every row goes to no token, so no row is even: "
                'use replacement="mean", replacement="resample" or replacement="zero"'
            )


def pools_of(
    model: nn.Module, sites: Iterable[Site], replacement: str, reference: Mapping | Iterable[Mapping] | None
) -> dict[tuple, Tensor]:
    """Return what stand-ins are taken from, {key: (rows, heads, value_dim)}, float32; none for even attention.

    One row of zeros, one row of means, or z of every real token of the reference batches, from which rows are drawn.
    Raises ``ValueError`` where a reference is needed and missing or empty.
    """
    sites = list(sites)
    if replacement == "uniform":
        return {}
    if replacement == "zero":
        return {site.key: torch.zeros(1, site.heads, site.value_dim, device=_place(site)) for site in sites}
    if reference is None:
        raise ValueError(
            f'replacement="{replacement}" needs data: write ablate(..., replacement="{replacement}", reference=batch)'
        )
    batches = [reference] if isinstance(reference, Mapping) else list(reference)
    if not batches:
        raise ValueError("the reference is empty: pass at least one batch, e.g. reference=tokenizer(sentences, ...)")
    refuse_unfit(model)
    parts: dict[tuple, list[Tensor]] = {site.key: [] for site in sites}
    tokens = dict.fromkeys(parts, 0)
    for batch in batches:
        check_batch(batch)

        def collect(site: Site, seen: Captured, _before: object, batch: Mapping = batch) -> None:
            real = real_tokens(model, site, batch, seen.z.shape[:2])  # every call, also of a layer that is shared
            z = seen.z.float()[real].reshape(-1, site.heads, site.value_dim)
            tokens[site.key] += len(z)
            parts[site.key].append(z if replacement == "resample" else wide(z).sum(0, keepdim=True))

        with torch.no_grad(), without_dropout(model), record(model, want=("z",), only=list(parts), accumulate=collect):
            model(**model_inputs(model, batch))
    idle = [site.label for site in sites if not tokens[site.key]]
    if idle:
        raise ValueError(f"{', '.join(idle)} did not run on the reference: pass batches that reach all chosen heads")
    if replacement == "resample":
        return {key: torch.cat(part) for key, part in parts.items()}
    return {key: (torch.cat(part).sum(0, keepdim=True) / tokens[key]).float() for key, part in parts.items()}


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Run a model as ``eval()`` has it while the context lasts; what was training goes on training.

    >>> layer = nn.Dropout()
    >>> with without_dropout(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def generator_of(site: Site, seed: int) -> torch.Generator:
    """Return where a site's draws come from: the same for a seed, whatever other heads are off, other for each site."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {site.label}".encode()))


def stand_in(replacement: str, pool: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return what all heads of a site get instead of z (*shape, heads, value_dim): that shape, or one row for all."""
    if replacement != "resample":
        return pool[0]
    return pool[torch.randint(len(pool), shape, generator=generator).to(pool.device)]


def put(z: Tensor, some: list[int], replacement: Tensor) -> Tensor:
    """Return z (..., heads, value_dim) in which some heads have the replacement's values (all heads, fewer rows)."""
    chosen = replacement[..., some, :].to(z)
    return z.index_copy(-2, torch.tensor(some, device=z.device), chosen.expand(*z.shape[:-2], *chosen.shape[-2:]))


def _place(site: Site) -> torch.device:
    """Return where a site's output projection is; a weight that is offloaded until it is needed is nowhere."""
    weight = next(site.out.parameters(), None)  # a quantised layer may have none
    return torch.device("cpu") if weight is None or weight.is_meta else weight.device
