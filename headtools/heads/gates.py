"""Switch heads: ``gates`` multiplies each head's output by a number, ``ablate`` replaces it.

A head's output z is what the output projection reads, so a pre-hook there reaches the heads whatever kernel
computed the attention. Gate 1 leaves the model bit for bit as it was; gate 0 equals zeroing the head's columns
of the output projection, and so equals pruning it (the projection's bias stays).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import EllipsisType

import torch
from torch import Tensor, nn

from headtools.heads.record import Captured, record
from headtools.heads.selection import Heads, refuse_compiled, select, watch_inputs
from headtools.heads.sites import Site, Sites, sites

Edit = Callable[[Tensor], Tensor]  # z (..., head, value_dim) -> the same shape


@contextmanager
def gates(model: nn.Module, values: Mapping[tuple, Tensor]) -> Iterator[None]:
    """Multiply the output of each head by its gate while the context lasts.

    ``values``: {("encoder", 2): tensor} with gates of shape (H,), per example (B, H), or per example and token
    (B, T, H). They are differentiable: the absolute gradient at gate 1, averaged over examples, is the
    head's importance by Michel et al. 2019, eq. 2.
    Sites not named are left alone. Nested contexts multiply. Keep ``backward`` inside the context when the model
    checkpoints its gradients.

    Raises ``KeyError`` for an unknown site, ``TypeError`` or ``ValueError`` for gates of another form, NaN included,
    and ``RuntimeError`` for a model compiled before. The check of B and T comes when the model runs: in ``generate``
    with beams, rows are multiplied and only gates of shape (H,) make sense.

    >>> import torch, headtools as ht
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=2, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> gate = torch.ones(4, requires_grad=True)
    >>> with ht.gates(model, {("encoder", 1): gate}):
    ...     model(torch.tensor([[1, 2, 3]])).pooler_output.sum().backward()
    >>> gate.grad.shape
    torch.Size([4])
    """
    refuse_compiled(model)
    found = sites(model)
    if not isinstance(values, Mapping):
        raise TypeError(f'gates must look like {{("encoder", 2): torch.ones(8)}}, got {type(values).__name__}')
    edits = {}
    for key, gate in values.items():
        site = found[key]
        if isinstance(site, Sites):
            raise KeyError(f"{key!r} names a kind, not a site: write one entry a layer, e.g. {site.all[0].key}")
        _check_gate(site, gate)
        edits[site] = _multiply(site, gate)
    with _edited(model, edits):
        yield


@contextmanager
def ablate(
    model: nn.Module,
    heads: Heads,
    by: str = "zero",
    reference: Mapping | Iterable[Mapping] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Switch ``heads`` off while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. ``by="zero"`` sets their output to 0;
    ``by="mean"`` to its mean over the real tokens of ``reference`` (one batch, a dict of the model's arguments, or
    several); ``by="resample"`` gives every token the output that the head had at a token drawn at random from
    ``reference``, the same draw for all heads of a layer. Draws start from ``seed`` each time the context is entered.
    Real tokens are those that the batch's attention mask keeps.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there or named twice, ``ValueError``
    for another ``by`` or a missing reference, ``RuntimeError`` for a model compiled before.

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
    refuse_compiled(model)
    chosen = select(sites(model), heads)
    if by not in ("zero", "mean", "resample"):
        raise ValueError(f'by must be "zero", "mean" or "resample", got {by!r}')
    if by == "zero":
        edits = {site: _zero(some) for site, some in chosen.items()}
    else:
        if reference is None:
            raise ValueError(f'by="{by}" needs data: ablate(model, heads, by="{by}", reference=batch)')
        pools = _outputs(model, chosen, reference)
        generator = torch.Generator().manual_seed(seed)
        make = _to_mean if by == "mean" else _to_draw
        edits = {site: make(some, pools[site.key], generator) for site, some in chosen.items()}
    with _edited(model, edits):
        yield


@contextmanager
def _edited(model: nn.Module, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Hook every site's output projection so that it reads the edited z; unhook whatever happens."""
    with ExitStack() as stack:
        stack.callback(watch_inputs(model).remove)
        for site, edit in edits.items():
            stack.callback(site.out.register_forward_pre_hook(_hook(site, edit)).remove)
        yield


def _hook(site: Site, edit: Edit) -> Callable:
    def hook(_module: nn.Module, args: tuple) -> tuple:
        return (site.join(edit(site.split(args[0]))), *args[1:])

    return hook


def _check_gate(site: Site, gate: object) -> None:
    if not isinstance(gate, Tensor):
        raise TypeError(f"the gates of {site.label} must be a tensor, got {type(gate).__name__}: torch.tensor(...)")
    if gate.dim() not in (1, 2, 3) or gate.shape[-1] != site.heads:
        raise ValueError(
            f"{site.label} has {site.heads} heads, so its gates have shape ({site.heads},), (B, {site.heads}) or "
            f"(B, T, {site.heads}); got {tuple(gate.shape)}"
        )
    if not gate.is_floating_point():
        raise TypeError(f"the gates of {site.label} must be floating point, got {gate.dtype}: use gate.float()")
    if not gate.detach().isfinite().all():
        raise ValueError(f"the gates of {site.label} hold NaN or infinity")


def _multiply(site: Site, gate: Tensor) -> Edit:
    def edit(z: Tensor) -> Tensor:
        rows, tokens = z.shape[0], z.shape[1] if z.dim() == 4 else None
        if gate.dim() > 1 and (gate.shape[0] != rows or (gate.dim() == 3 and gate.shape[1] != tokens)):
            raise ValueError(
                f"gates of shape {tuple(gate.shape)} for {site.label} do not fit a run of {rows} rows and {tokens} "
                f"tokens. Beam search and several return sequences multiply rows, and a cache feeds one token at a "
                f"time: there use gates of shape ({site.heads},)"
            )
        spread = gate if gate.dim() != 2 else gate.view(rows, *[1] * (z.dim() - 3), site.heads)
        return z * spread.to(z.device, z.dtype).unsqueeze(-1)

    return edit


def _zero(some: list[int]) -> Edit:
    return lambda z: z.index_fill(-2, torch.tensor(some, device=z.device), 0.0)


def _to_mean(some: list[int], pool: Tensor, _generator: torch.Generator) -> Edit:
    mean = pool.mean(0)[some]  # (chosen heads, value_dim)
    return lambda z: _put(z, some, mean.to(z).expand(*z.shape[:-2], *mean.shape))


def _to_draw(some: list[int], pool: Tensor, generator: torch.Generator) -> Edit:
    def edit(z: Tensor) -> Tensor:
        index = torch.randint(len(pool), z.shape[:-2], generator=generator)
        return _put(z, some, pool[index][..., some, :].to(z))

    return edit


def _put(z: Tensor, some: list[int], replacement: Tensor) -> Tensor:
    return z.index_copy(-2, torch.tensor(some, device=z.device), replacement)


def _outputs(model: nn.Module, chosen: Mapping[Site, list[int]], reference: object) -> dict[tuple, Tensor]:
    """Return z of every real token of the reference batches: {key: (tokens, heads, value_dim)}, float32."""
    batches = [reference] if isinstance(reference, Mapping) else list(reference)
    if not batches:
        raise ValueError("the reference is empty: pass at least one batch, e.g. reference=tokenizer(sentences, ...)")
    pools: dict[tuple, list[Tensor]] = {site.key: [] for site in chosen}
    for batch in batches:

        def collect(site: Site, seen: Captured, _before: object, batch: Mapping = batch) -> None:
            real = _real_tokens(model, site, batch, seen.z.shape[:2])  # every call, also of a layer that is shared
            pools[site.key].append(seen.z.float()[real].reshape(-1, site.heads, site.value_dim))

        with torch.no_grad(), record(model, want=("z",), only=pools, reduce=collect, training=True):
            model(**batch)
    return {key: torch.cat(pool) for key, pool in pools.items()}


def _real_tokens(model: nn.Module, site: Site, batch: Mapping, shape: tuple) -> Tensor | EllipsisType:
    """Return which tokens of a site are no padding: a mask (B, T), or all where the batch has no mask that fits."""
    two_sided = site.kind != "encoder" and getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    mask = batch.get("decoder_attention_mask" if two_sided else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.shape == shape else ...
