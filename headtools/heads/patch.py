"""Activation patching of heads: ``patch`` copies heads' outputs from one run of the model into another.

``ablate`` asks how much a head matters, ``patch`` what information it carries: if its output on sentence A, copied into
the run on B, makes the model answer as on A, the head carries the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_not_compiled
from headtools.heads._hooks import Edit, context, edit_outputs, once_for_each_run
from headtools.heads.record import Captured, Record
from headtools.heads.sites import Heads, Site, select, sites

Source = Record | Mapping[tuple, "Tensor | Captured | Sequence[Tensor]"]


@context
def patch(
    model: nn.Module, heads: Heads, source: Source, positions: Iterable[int] | Tensor | None = None
) -> Iterator[None]:
    """Give ``heads`` the outputs z that they had in another run, while the context lasts.

    ``source``: what ``record(model, want="z")`` recorded of that run, or {("encoder", 2): z}, z of shape (B, T, H,
    value_dim), where B = 1 serves every row; a list of z gives one per call of a site that runs several times,
    repeated. ``positions``: token indices from 0, the same in every row, or a bool mask (B, T); left out, all tokens.
    Combined with ``record``, ``gates`` or ``ablate``, hooks run in the order of entry.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads or positions that are not there, heads named twice
    and a source without them, ``TypeError`` for another source, ``RuntimeError`` for a compiled model; when the model
    runs, ``ValueError`` for other numbers of rows or tokens than the source's.

    Vig et al. 2020 (arXiv:2004.12265) for heads; Meng et al. 2022 (arXiv:2202.05262) call their variant causal tracing.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> with ht.record(model, want="z") as there:
    ...     _ = model(torch.tensor([[1, 2, 3]]))
    >>> with ht.patch(model, {("encoder", 0): [2]}, there, positions=[1]), ht.record(model, want="z") as here:
    ...     _ = model(torch.tensor([[4, 5, 6]]))
    >>> same = (here["encoder", 0].z == there["encoder", 0].z).all(-1)[0]  # (token, head)
    >>> same.nonzero().tolist()
    [[1, 2]]
    """
    check_not_compiled(model)
    selected = select(sites(model), heads)
    if not selected:
        raise ValueError('got no heads; expected one or more: patch(model, {("encoder", 2): [0]}, source)')
    if not isinstance(source, (Record, Mapping)):
        raise TypeError(
            f'a source is a record or {{("encoder", 2): z}}, got {type(source).__name__}: '
            'with record(model, want="z") as source: model(**batch)'
        )
    if positions is not None and not isinstance(positions, Tensor):
        for position in positions:
            if isinstance(position, bool) or not isinstance(position, int) or position < 0:
                raise ValueError(f"a position is the index of a token, from 0, got {position!r}; or pass a mask (B, T)")
        positions = torch.tensor(list(positions), dtype=torch.long)
    if positions is not None and not positions.numel():
        raise ValueError("got no positions, so nothing would be patched: leave them out to patch every token")
    edits = {site: _patch_edit(site, off, _calls(site, source), positions) for site, off in selected.items()}
    with edit_outputs(model, "patch()", edits):
        yield


def _calls(site: Site, source: Source) -> list[Tensor]:
    """Return the outputs z that a source has for a site, one per call."""
    if isinstance(source, Mapping) and site.key not in source:
        raise KeyError(f"the source has nothing for {site.label}; it has {list(source)}")
    calls = source[site.key]
    calls = [calls] if isinstance(calls, (Tensor, Captured)) else calls
    if not isinstance(calls, Sequence) or not calls:
        raise TypeError(f"got a {type(calls).__name__} as source of {site.label}; expected z, or a list of them")
    calls = [call.z if isinstance(call, Captured) else call for call in calls]
    for z in calls:
        if not isinstance(z, Tensor) or z.dim() != 4 or z.shape[2:] != (site.heads, site.value_dim):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"{site.label} needs z of shape (B, T, {site.heads}, {site.value_dim}), got {got}")
    return calls


def _patch_edit(site: Site, heads: list[int], calls: list[Tensor], positions: Tensor | None) -> Edit:
    """Return the edit of z (B, T, head, value_dim) that takes ``heads`` from the source's calls in turn."""
    numbers = count()
    number_of_run = once_for_each_run(lambda: next(numbers))

    def edit(z: Tensor) -> Tensor:
        new, index = calls[number_of_run() % len(calls)].to(z), torch.tensor(heads, device=z.device)
        rows, tokens = z.shape[:2]
        if new.shape[1] != tokens or len(new) not in (1, rows):
            raise ValueError(
                f"{site.label} runs on {rows} rows of {tokens} tokens here and ran on {new.shape[0]} rows of "
                f"{new.shape[1]} tokens in the source: patching replaces each token's output by that of the same "
                "position, so both runs need equal numbers of rows and of tokens, padding included"
            )
        patched = new.expand_as(z).index_select(-2, index)  # (B, T, selected heads, value_dim)
        if positions is not None:
            patched = torch.where(at_positions(z)[..., None, None], patched, z.index_select(-2, index))
        return z.index_copy(-2, index, patched)

    def at_positions(z: Tensor) -> Tensor:  # (B, T) bool
        rows, tokens = z.shape[:2]
        if positions.dtype == torch.bool:
            if positions.shape != (rows, tokens):
                shape = tuple(positions.shape)
                raise ValueError(
                    f"got a mask of positions of shape {shape}, and {site.label} runs on {rows} rows of {tokens} tokens"
                )
            return positions.to(z.device)
        if positions.max() >= tokens:
            last = int(positions.max())
            raise ValueError(f"position {last} of {site.label} is not there: the run has tokens 0..{tokens - 1}")
        chosen = torch.zeros(rows, tokens, dtype=torch.bool, device=z.device)
        return chosen.index_fill(1, positions.to(z.device), True)

    return edit
