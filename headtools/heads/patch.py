"""Put what heads wrote in one run into another: ``patch``, activation patching.

A head whose output from sentence A, put into the run of sentence B, makes the model say what it says of A, carries the
difference between A and B. Where ``ablate`` asks what a head is worth, ``patch`` asks what it tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count

import torch
from torch import Tensor, nn

from headtools.heads._interventions import on_input
from headtools.heads._select import Heads, holding, refuse_compiled, select
from headtools.heads.record import Captured, Record
from headtools.heads.sites import Site, sites

Source = Record | Mapping[tuple, "Tensor | Captured | Sequence[Tensor]"]


@contextmanager
def patch(
    model: nn.Module, heads: Heads, source: Source, positions: Iterable[int] | Tensor | None = None
) -> Iterator[None]:
    """Give ``heads`` the outputs z that they had in another run, while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. ``source``: what ``record(model, want="z")`` saw of
    that run, or {("encoder", 2): z} with z of shape (B, T, H, value_dim); a B of 1 serves every row. ``positions`` says
    which tokens get them: numbers from 0, the same in every row, or a mask (B, T) of bools; left out, all. A head named
    here writes at those tokens what it wrote at the same places there; all else runs on from what it finds.

    A site that runs several times in one pass (ALBERT's shared layer), or once for every token written (the decoder in
    ``generate``), takes the same z each time, unless ``source`` has a list of them, one a call, gone through again and
    again. The model is left as it was. With ``record``, ``gates`` and ``ablate`` hooks run in the order of entry.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads or positions that are not there, heads named twice
    and a source without them, ``TypeError`` for a source of another kind, ``RuntimeError`` for a model compiled before;
    when the model runs, ``ValueError`` for a run whose rows or tokens are not as many as the source's.

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
    refuse_compiled(model)
    chosen = select(sites(model), heads)
    if not chosen:
        raise ValueError('no heads came: patch(model, {("encoder", 2): [0]}, source)')
    if not isinstance(source, (Record, Mapping)):
        raise TypeError(
            f'a source is a record or {{("encoder", 2): z}}, got {type(source).__name__}: '
            'with record(model, want="z") as source: model(**batch)'
        )
    if positions is not None and not isinstance(positions, Tensor):
        positions = torch.tensor([_number(p) for p in positions], dtype=torch.long)
    if positions is not None and not positions.numel():
        raise ValueError("no positions came, so nothing would be patched: leave them out to patch every token")
    values = {site: _values(site, source) for site in chosen}
    with ExitStack() as stack:
        stack.enter_context(holding(model, "patch()", chosen))
        for site, some in chosen.items():
            stack.callback(on_input(site.out, _change(site, some, values[site], positions)).remove)
        yield


def _number(position: object) -> int:
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ValueError(f"a position is the number of a token, from 0, got {position!r}; or pass a mask (B, T)")
    return position


def _values(site: Site, source: Source) -> list[Tensor]:
    """Return the outputs a source has for a site, one a call."""
    if isinstance(source, Mapping) and site.key not in source:
        raise KeyError(f"the source has nothing for {site.label}; it has {list(source)}")
    found = source[site.key]
    found = [found] if isinstance(found, (Tensor, Captured)) else found
    if not isinstance(found, Sequence) or not found:
        raise TypeError(f"the source of {site.label} is {type(found).__name__}; needed: z, or a list of them")
    found = [z.z if isinstance(z, Captured) else z for z in found]
    for z in found:
        if not isinstance(z, Tensor) or z.dim() != 4 or z.shape[2:] != (site.heads, site.value_dim):
            came = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"{site.label} needs z of shape (B, T, {site.heads}, {site.value_dim}), got {came}")
    return found


def _change(site: Site, some: list[int], values: list[Tensor], positions: Tensor | None) -> Callable:
    calls = count()
    # looked up here, since torch.compile cannot compile a question to a tensor
    most = None if positions is None or positions.dtype == torch.bool else int(positions.max())

    def change(read: Tensor) -> Tensor:
        z = site.split(read)
        new = values[next(calls) % len(values)].to(z)
        if new.shape[1:] != z.shape[1:] or len(new) not in (1, len(z)):
            raise ValueError(
                f"{site.label} runs on {_size(z)} here and ran on {_size(new)} in the source: patching puts a token in "
                "the place of the same token, so both runs need as many rows and as many tokens, padding included"
            )
        index = torch.tensor(some, device=z.device)
        mixed = new.expand_as(z).index_select(-2, index)
        if positions is not None:
            chosen = _mask(site, z, positions, most)[..., None, None]
            mixed = torch.where(chosen, mixed, z.index_select(-2, index))
        return site.join(z.index_copy(-2, index, mixed))

    return change


def _mask(site: Site, z: Tensor, positions: Tensor, most: int | None) -> Tensor:
    """Return which tokens of z (B, T, H, value_dim) are meant, (B, T); ``most`` is the last of their numbers."""
    if positions.dtype != torch.bool:
        if most >= z.shape[-3]:
            raise ValueError(f"position {most} of {site.label} is not there: the run has tokens 0..{z.shape[-3] - 1}")
        mask = torch.zeros(z.shape[:-2], dtype=torch.bool, device=z.device)
        mask[..., positions.to(z.device)] = True
        return mask
    if positions.shape != z.shape[:-2]:
        raise ValueError(f"the mask of positions is {tuple(positions.shape)}, and {site.label} runs on {_size(z)}")
    return positions.to(z.device)


def _size(z: Tensor) -> str:
    return f"{z.shape[0]} rows of {z.shape[1]} tokens"
