"""Activation patching of heads: ``patch`` copies heads' outputs from one run of the model into another.

If a head's output on sentence A, copied into the run on sentence B, makes the model answer as it does on A, the head
carries the difference between A and B. ``ablate`` asks how much a head matters, ``patch`` asks what information it
carries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count

import torch
from torch import Tensor, nn

from headtools.heads._checks import check_not_compiled
from headtools.heads._hooks import Edit, edit_outputs
from headtools.heads.record import Captured, Record
from headtools.heads.sites import Heads, Site, select, sites

Source = Record | Mapping[tuple, "Tensor | Captured | Sequence[Tensor]"]


@contextmanager
def patch(
    model: nn.Module, heads: Heads, source: Source, positions: Iterable[int] | Tensor | None = None
) -> Iterator[None]:
    """Give ``heads`` the outputs z that they had in another run, while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. ``source``: what ``record(model, want="z")``
    recorded of that run, or {("encoder", 2): z} with z of shape (B, T, H, value_dim); with B = 1 it serves every row.
    ``positions`` says at which tokens: token indices from 0, the same in every row, or a bool mask (B, T); left out, at
    all tokens. A token gets the output of the same position in the source; everything else is computed from there on.

    A site that runs several times in one pass (ALBERT's shared layer), or once per generated token (the decoder in
    ``generate``), gets the same z each time, unless ``source`` has a list of them, one per call, which is repeated.
    Combined with ``record``, ``gates`` or ``ablate``, hooks run in the order of entry.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads or positions that are not there, heads named twice
    and a source without them, ``TypeError`` for a source of another kind, ``RuntimeError`` for a model compiled before;
    when the model runs, ``ValueError`` for a run with another number of rows or tokens than the source's.

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
        positions = torch.tensor([_token_index(position) for position in positions], dtype=torch.long)
    if positions is not None and not positions.numel():
        raise ValueError("got no positions, so nothing would be patched: leave them out to patch every token")
    values = {site: _source_values(site, source) for site in selected}
    edits = {site: _patch_edit(site, indices, values[site], positions) for site, indices in selected.items()}
    with edit_outputs(model, "patch()", edits):
        yield


def _token_index(position: object) -> int:
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ValueError(f"a position is the index of a token, from 0, got {position!r}; or pass a mask (B, T)")
    return position


def _source_values(site: Site, source: Source) -> list[Tensor]:
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


def _patch_edit(site: Site, heads: list[int], values: list[Tensor], positions: Tensor | None) -> Edit:
    calls = count()
    # computed here, since reading a tensor's value would break the graph of torch.compile
    last = None if positions is None or positions.dtype == torch.bool else int(positions.max())

    def edit(z: Tensor) -> Tensor:
        new = values[next(calls) % len(values)].to(z)
        if new.shape[1:] != z.shape[1:] or len(new) not in (1, len(z)):
            raise ValueError(
                f"{site.label} runs on {_shape_label(z)} here and ran on {_shape_label(new)} in the source: patching "
                "replaces each token's output by that of the same position, so both runs need equal numbers of rows "
                "and of tokens, padding included"
            )
        index = torch.tensor(heads, device=z.device)
        patched = new.expand_as(z).index_select(-2, index)  # (B, T, selected heads, value_dim)
        if positions is not None:
            at_position = _mask(site, z, positions, last)[..., None, None]
            patched = torch.where(at_position, patched, z.index_select(-2, index))
        return z.index_copy(-2, index, patched)

    return edit


def _mask(site: Site, z: Tensor, positions: Tensor, last: int | None) -> Tensor:
    """Return the positions to patch in z (B, T, H, value_dim) as a mask (B, T); ``last`` is the largest index."""
    if positions.dtype != torch.bool:
        if last >= z.shape[-3]:
            raise ValueError(f"position {last} of {site.label} is not there: the run has tokens 0..{z.shape[-3] - 1}")
        mask = torch.zeros(z.shape[:-2], dtype=torch.bool, device=z.device)
        mask[..., positions.to(z.device)] = True
        return mask
    if positions.shape != z.shape[:-2]:
        shape = tuple(positions.shape)
        raise ValueError(f"got a mask of positions of shape {shape}, and {site.label} runs on {_shape_label(z)}")
    return positions.to(z.device)


def _shape_label(z: Tensor) -> str:
    return f"{z.shape[0]} rows of {z.shape[1]} tokens"
