"""Switch heads off: ``ablate`` replaces their outputs by zeros, means, other tokens' outputs, uniform attention."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from headtools.heads._attention import ALTERNATIVES, UNIFORM, attention_function, check_no_sinks
from headtools.heads._checks import check_batch, check_interface, check_not_compiled, check_weights
from headtools.heads._devices import to_float64
from headtools.heads._hooks import (
    Edit,
    append_entry,
    context,
    edit_outputs,
    intervention,
    once_for_each_run,
    without_dropout,
)
from headtools.heads._tokens import model_inputs, real_tokens
from headtools.heads.record import Captured, record
from headtools.heads.sites import Heads, Site, select, sites
from headtools.heads.verify import check_padding_verified

REPLACEMENTS = ("zero", "mean", "resample", "uniform")


@context
def ablate(
    model: nn.Module,
    heads: Heads,
    replacement: str = "zero",
    reference: Mapping | Iterable[Mapping] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Switch ``heads`` off while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. Their outputs z are replaced:

    - ``replacement="zero"``: by 0; the projection's bias stays, as when the head is pruned;
    - ``"mean"``: by the mean over the real tokens of ``reference``, one batch (a dict of the model's arguments) or
      several;
    - ``"resample"``: for every token, by the head's output at a random real token of ``reference``, the same draw for
      all heads of a layer; draws start from ``seed`` at each entry and do not depend on other ablated heads;
    - ``"uniform"``: by what attention of 1/m on each of the m visible tokens gives, with the head's own values
      (Kovaleva et al. 2019, arXiv:1908.08593, section 4.6).

    For many ablations with one reference, run it once: ``reference`` may be what ``replacement_values`` returned.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there or named twice, ``ValueError``
    for another ``replacement``, a missing reference, or uniform attention without AttentionInterface or with attention
    sinks, ``RuntimeError`` for a compiled model.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model, batch = BertModel(tiny).eval(), {"input_ids": torch.tensor([[1, 2, 3]])}
    >>> before = model(**batch).last_hidden_state
    >>> with ht.ablate(model, {("encoder", 0): [1, 2]}):
    ...     inside = model(**batch).last_hidden_state
    >>> bool((inside == before).all()), bool((model(**batch).last_hidden_state == before).all())
    (False, True)
    """
    check_not_compiled(model)
    selected = select(sites(model), heads)
    check_replacement(replacement, selected)
    if replacement == "uniform":
        with intervention(model, "ablate()", selected), attention_function(model, None), ExitStack() as stack:
            for site, off in selected.items():
                stack.enter_context(append_entry(site.module, UNIFORM, off))
            yield
        return
    # {("encoder", 2): values} is known by its keys; those of a batch are strings
    known = isinstance(reference, Mapping) and all(isinstance(key, tuple) for key in reference) and len(reference) > 0
    values = reference if known else replacement_values(model, selected, replacement, reference)
    edits = {site: replacement_edit(site, off, replacement, values[site.key], seed) for site, off in selected.items()}
    with edit_outputs(model, "ablate()", edits):
        yield


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
        return {site.key: torch.zeros(1, site.heads, site.value_dim) for site in sites}
    if reference is None:
        raise ValueError(
            f'replacement="{replacement}" needs data: write ablate(..., replacement="{replacement}", reference=batch)'
        )
    batches = [reference] if isinstance(reference, Mapping) or not isinstance(reference, Iterable) else list(reference)
    if isinstance(reference, str) or not all(isinstance(batch, Mapping) for batch in batches):
        raise TypeError(
            f"a reference is a batch, {{'input_ids': ...}}, or a list of them, got {type(reference).__name__}: write "
            "reference=tokenizer(sentences, return_tensors='pt', padding=True)"
        )
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

    with torch.no_grad(), without_dropout(model), record(model, "z", only=list(parts), accumulate=collect):
        for batch in batches:
            check_batch(batch)
            check_padding_verified(model, batch)
            model(**model_inputs(model, batch))
    not_run = [site.label for site in sites if not n_tokens[site.key]]
    if not_run:
        raise ValueError(f"{', '.join(not_run)} did not run on the reference: pass batches that reach all its heads")
    if replacement == "resample":
        return {key: torch.cat(part) for key, part in parts.items()}
    # sums are float64; only the mean is rounded to float32
    return {key: (torch.cat(part).sum(0, keepdim=True) / n_tokens[key]).float() for key, part in parts.items()}


def replacement_edit(site: Site, heads: list[int], replacement: str, values: Tensor, seed: int) -> Edit:
    """Return the edit of z (..., head, value_dim) that replaces ``heads`` by a site's ``replacement_values``.

    Draws start from ``seed`` and the site alone, so that they do not depend on other ablated heads.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {site.label}".encode()))

    @once_for_each_run
    def draw(shape: torch.Size) -> Tensor:
        return torch.randint(len(values), shape, generator=generator).to(values.device)

    def edit(z: Tensor) -> Tensor:
        row = draw(z.shape[:-2]) if replacement == "resample" else 0
        new = values[row][..., heads, :].to(z)
        return z.index_copy(-2, torch.tensor(heads, device=z.device), new.expand(*z.shape[:-2], *new.shape[-2:]))

    return edit
