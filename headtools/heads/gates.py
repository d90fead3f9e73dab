"""Switch heads: ``gates`` multiplies each head's output by a number, ``ablate`` replaces it.

A head's output z is what the output projection reads, so a pre-hook there reaches the heads whatever kernel
computed the attention. Gate 1 leaves the model bit for bit as it was; gate 0 equals zeroing the head's columns
of the output projection, and so equals pruning it (the projection's bias stays).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from headtools._renamed import old_arguments
from headtools.heads._attention import even_heads
from headtools.heads._interventions import on_input
from headtools.heads._replacement import check_replacement, generator_of, pools_of, put, stand_in
from headtools.heads._select import Heads, holding, refuse_compiled, select, watch_inputs
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
        if site in edits:
            raise ValueError(f"the gates of {site.label} came twice, once as {key!r}: name each site once")
        edits[site] = gate
    with multiplied(model, edits):
        yield


@contextmanager
def multiplied(model: nn.Module, values: Mapping[Site, Tensor]) -> Iterator[None]:
    """Do what ``gates`` does, with gates {site: tensor} known to be right: no search for sites and no look at values.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> site, batch = sites(model)["encoder", 0], {"input_ids": torch.tensor([[1, 2, 3]])}
    >>> with multiplied(model, {site: torch.zeros(4)}):  # in a loop of steps the sites stay what they are
    ...     inside = model(**batch)
    """
    with _edited(model, "gates()", {site: _multiply(site, gate) for site, gate in values.items()}):
        yield


@old_arguments(by="replacement")
@contextmanager
def ablate(
    model: nn.Module,
    heads: Heads,
    replacement: str = "zero",
    reference: Mapping | Iterable[Mapping] | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Switch ``heads`` off while the context lasts.

    ``heads``: {("encoder", 2): [0, 5]} or [("encoder", 2, 0), ...]. What takes the place of their output z:

    - ``replacement="zero"``: nothing, 0; the projection's bias stays, as when the head is cut;
    - ``replacement="mean"``: its mean over the real tokens of ``reference``, one batch (a dict of the model's
      arguments) or several; real tokens are those that the batch's attention mask keeps;
    - ``replacement="resample"``: for every token, the output that the head had at a token drawn at random from
      ``reference``, the same draw for all heads of a layer. Draws start from ``seed`` each time the context is entered
      and do not depend on what else is off;
    - ``replacement="uniform"``: what the head would give if it looked at all it may see alike, 1/m at each of m tokens
      (Kovaleva et al. 2019, arXiv:1908.08593, section 4.6). Its values stay its own.

    Raises ``KeyError``, ``IndexError`` or ``ValueError`` for heads that are not there or named twice, ``ValueError``
    for another ``replacement``, a missing reference, or uniform attention in a model that does not use
    AttentionInterface or has attention sinks, ``RuntimeError`` for a model compiled before.

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
    check_replacement(replacement, chosen)
    pools = pools_of(model, chosen, replacement, reference)
    with replaced(model, chosen, replacement, pools, seed):
        yield


@contextmanager
def replaced(
    model: nn.Module, chosen: Mapping[Site, list[int]], replacement: str, pools: Mapping[tuple, Tensor], seed: int = 0
) -> Iterator[None]:
    """Do what ``ablate`` does, with heads {site: [head, ...]} and pools (``pools_of``) that are ready made.

    >>> import torch
    >>> from transformers import BertConfig, BertModel
    >>> tiny = BertConfig(hidden_size=16, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8, vocab_size=9)
    >>> model = BertModel(tiny).eval()
    >>> site, batch = sites(model)["encoder", 0], {"input_ids": torch.tensor([[1, 2, 3]])}
    >>> pools = pools_of(model, [site], "mean", batch)  # of one run, for any number of ablations
    >>> with replaced(model, {site: [0]}, "mean", pools):
    ...     inside = model(**batch)
    """
    if replacement == "uniform":
        with holding(model, "ablate()", chosen), even_heads(model, chosen):
            yield
        return

    def edit_of(site: Site, some: list[int]) -> Edit:
        generator = generator_of(site, seed)
        return lambda z: put(z, some, stand_in(replacement, pools[site.key], z.shape[:-2], generator))

    with _edited(model, "ablate()", {site: edit_of(site, some) for site, some in chosen.items()}):
        yield


@contextmanager
def watched(model: nn.Module) -> Iterator[None]:
    """Refuse empty batches and rows of padding while the context lasts."""
    handle = watch_inputs(model)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _edited(model: nn.Module, context: str, edits: Mapping[Site, Edit]) -> Iterator[None]:
    """Hook every site's output projection so that it reads the edited z; unhook whatever happens."""
    with holding(model, context, edits), ExitStack() as stack:
        for site, edit in edits.items():
            stack.callback(on_input(site.out, _on_z(site, edit)).remove)
        yield


def _on_z(site: Site, edit: Edit) -> Edit:
    return lambda read: site.join(edit(site.split(read)))


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
        spread = spread.to(z.device, z.dtype).unsqueeze(-1)
        # 0 times infinity is NaN: a head whose gate is 0 writes nothing, whatever it computed, as when it is ablated
        return torch.where(spread == 0, z.nan_to_num(0.0, 0.0, 0.0), z) * spread

    return edit
