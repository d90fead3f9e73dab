"""What replaces the output of an ablated head: zeros, its mean, or its outputs at other tokens."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_batch, check_interface
from headtools.heads._finite import check_weights
from headtools.heads._hooks import Edit
from headtools.heads._masks import ALTERNATIVES, check_no_sinks
from headtools.heads._precision import to_float64
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Site

REPLACEMENTS = ("zero", "mean", "resample", "uniform")


def check_replacement(replacement: str, sites: Iterable[Site]) -> None:
    """Raise ``ValueError`` for an unknown replacement, or one that these sites do not allow."""
    if replacement not in REPLACEMENTS:
        raise ValueError(f'replacement must be "zero", "mean", "resample" or "uniform", got {replacement!r}')
    for site in sites if replacement == "uniform" else ():
        check_interface(site, f"its attention cannot be made uniform: {ALTERNATIVES}")
        check_no_sinks(f"{type(site.module).__name__} ({site.label})", getattr(site.module, "sinks", None))


def replacement_values(
    model: nn.Module, sites: Iterable[Site], replacement: str, reference: Mapping | Iterable[Mapping] | None
) -> dict[tuple, Tensor]:
    """Return the values that replace heads' outputs, {key: (rows, heads, value_dim)}, float32.

    One row of zeros; one row of means; or z of every real token of the reference batches, from which rows are drawn;
    nothing for uniform attention. Raises ``ValueError`` where a reference is needed and missing or empty.
    """
    sites = list(sites)
    if replacement == "uniform":
        return {}
    if replacement == "zero":
        return {site.key: torch.zeros(1, site.heads, site.value_dim, device=_device(site)) for site in sites}
    if reference is None:
        raise ValueError(
            f'replacement="{replacement}" needs data: write ablate(..., replacement="{replacement}", reference=batch)'
        )
    batches = [reference] if isinstance(reference, Mapping) else list(reference)
    if not batches:
        raise ValueError("the reference is empty: pass at least one batch, e.g. reference=tokenizer(sentences, ...)")
    check_weights(model)
    parts: dict[tuple, list[Tensor]] = {site.key: [] for site in sites}
    n_tokens = dict.fromkeys(parts, 0)

    def collect(site: Site, captured: Captured, _previous: None) -> None:
        # (B, T, heads, value_dim) -> (real tokens, heads, value_dim); every call counts, also of a shared layer
        real = real_tokens(model, site, batch, captured.z.shape[:2])
        z = captured.z.float()[real].reshape(-1, site.heads, site.value_dim)
        n_tokens[site.key] += len(z)
        parts[site.key].append(z if replacement == "resample" else to_float64(z).sum(0, keepdim=True))

    with torch.no_grad(), _without_dropout(model), record(model, "z", only=list(parts), accumulate=collect):
        for batch in batches:
            check_batch(batch)
            model(**model_inputs(model, batch))
    not_run = [site.label for site in sites if not n_tokens[site.key]]
    if not_run:
        raise ValueError(f"{', '.join(not_run)} did not run on the reference: pass batches that reach all its heads")
    if replacement == "resample":
        return {key: torch.cat(part) for key, part in parts.items()}
    # sums are float64; only the mean is rounded to float32
    return {key: (torch.cat(part).sum(0, keepdim=True) / n_tokens[key]).float() for key, part in parts.items()}


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Run a model in evaluation mode while the context lasts; then each module returns to the mode it had."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def replacement_edit(site: Site, heads: list[int], replacement: str, values: Tensor, seed: int) -> Edit:
    """Return the edit of z (..., head, value_dim) that replaces ``heads`` by a site's ``replacement_values``.

    Draws start from ``seed`` and the site alone, so that they do not depend on other ablated heads.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {site.label}".encode()))

    def edit(z: Tensor) -> Tensor:
        row = 0
        if replacement == "resample":
            row = torch.randint(len(values), z.shape[:-2], generator=generator).to(values.device)
        new = values[row][..., heads, :].to(z)
        return z.index_copy(-2, torch.tensor(heads, device=z.device), new.expand(*z.shape[:-2], *new.shape[-2:]))

    return edit


def _device(site: Site) -> torch.device:
    """Return the device of a site's output projection; the CPU for an offloaded weight, which has none yet."""
    weight = next(site.out.parameters(), None)  # a quantised layer may have no parameters
    return torch.device("cpu") if weight is None or weight.is_meta else weight.device
