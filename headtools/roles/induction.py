"""Scores of previous-token, duplicate-token and induction heads, on random symbols that repeat.

Random symbols have no grammar and no frequent pairs, so whatever a head does with their repetition it does by looking
back. Two scores are called *induction* in the literature, and they differ:

    TransformerLens     one random segment twice; attention to the key that stands length - 1 places back
    Olsson et al. 2022  *prefix matching*: the segment four times, attention to what followed any earlier copy, summed;
                        and *copying*: how much a head raises the very symbol it looks at

A head is called an induction head where it does both, matches prefixes and copies (arXiv:2209.11895).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._devices import device_of
from headtools.heads._finite import check_weights, nonfinite_weights
from headtools.heads._precision import without_autocast
from headtools.heads.bootstrap import MIN_EXAMPLES
from headtools.roles._segments import ordinary, segments

INDUCTION, PREFIX, COPYING = "induction (TransformerLens)", "prefix matching (Olsson)", "copying (Olsson)"


def previous_token(maps: Tensor) -> Tensor:
    """Return the mean attention to the token before: maps (B, head, query, key) -> (B, head).

    The first query has no such token and is left out. Raises ``ValueError`` for maps of a single token.

    >>> previous_token(torch.eye(3).roll(-1, 1)[None, None])
    tensor([[1.]])
    """
    if maps.shape[-2] < 2:
        raise ValueError("maps of one token have no token before: pass sequences of two tokens or more")
    return maps.diagonal(-1, -2, -1).mean(-1)


def duplicate_token(maps: Tensor, ids: Tensor) -> Tensor:
    """Return the mean attention to all earlier copies of the query's own token, summed over copies: (B, head).

    ``maps`` (B, head, T, T), ``ids`` (B, T). Queries without an earlier copy are left out.

    Raises ``ValueError`` where a sequence repeats nothing.
    """
    return _on_targets(maps, (ids[:, :, None] == ids[:, None, :]).tril(-1))


def induction(maps: Tensor, length: int) -> Tensor:
    """Return TransformerLens' induction score: the mean of the diagonal ``length - 1`` below the middle, (B, head).

    ``maps`` (B, head, T, T) over a segment of ``length`` tokens that repeats. The diagonal is read from the second copy
    on: query t looks at key t - length + 1, the token after the earlier copy of t.

    Raises ``ValueError`` for maps that do not reach the second copy.
    """
    if not 2 <= length < maps.shape[-2]:
        raise ValueError(
            f"a segment of {length} tokens needs at least 2, and maps of more than {length} queries to repeat in; got "
            f"{maps.shape[-2]} queries. Pass the length of one segment, not of the whole sequence"
        )
    return maps[..., length:, :].diagonal(1, -2, -1).mean(-1)


def prefix_matching(maps: Tensor, ids: Tensor) -> Tensor:
    """Return Olsson's prefix matching: mean attention to all tokens that followed earlier copies, summed: (B, head).

    ``maps`` (B, head, T, T), ``ids`` (B, T). With k earlier copies there are k tokens to look at; a sum over them stays
    between 0 and 1, where a mean would cap a perfect head at 1 / k. Queries without an earlier copy are left out.

    Raises ``ValueError`` where a sequence repeats nothing.
    """
    copies = (ids[:, :, None] == ids[:, None, :]).tril(-1)
    return _on_targets(maps, copies.roll(1, -1))  # what follows a copy; none stands last, so nothing wraps around


def _on_targets(maps: Tensor, targets: Tensor) -> Tensor:
    """Return the attention on targets (B, T, T), summed over keys, mean over the queries that have one: (B, head)."""
    having = targets.any(-1)
    if not bool(having.any(-1).all()):
        raise ValueError("a sequence holds no token twice, so there is no copy to look for: repeat a segment")
    on = (maps * targets[:, None].to(maps.dtype)).sum(-1)
    return on.sum(-1) / having.sum(-1)[:, None]


def scores(
    model: nn.Module,
    *,
    n: int = 50,
    length: int = 25,
    repeats: int = 4,
    tokens: Sequence[int] | None = None,
    start: int | None = None,
    seed: int = 0,
    batch_size: int = 25,
) -> pd.DataFrame:
    """Score every head of a decoder for looking back: one row for each head and role.

    Roles: ``previous-token``, ``duplicate-token`` and ``induction (TransformerLens)`` on ``n`` segments of ``length``
    tokens, each twice; ``prefix matching (Olsson)`` on ``n`` segments, each ``repeats`` times, after the token
    ``start`` if one is given (Olsson et al. begin with one; of TransformerLens' sequences it is left out). ``tokens``
    are the ids to draw from: by default all that the model embeds, without its special ones. Olsson et al. also leave
    out the most and the least frequent.

    Columns: ``kind``, ``layer``, ``head``, ``role``; ``score``, the mean attention in [0, 1]; ``chance``, what
    attention spread evenly over the tokens so far would score; ``low`` and ``high``, a 95 % bootstrap interval over
    sequences; ``n``, sequences.

    Raises ``ValueError`` for a model that is no decoder by itself (the two sides of a translator read two sequences),
    for a ``length`` that its positions do not hold, and for fewer than five sequences.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> frame = scores(ToyDecoder(), n=5, length=12)
    >>> list(frame.columns)
    ['kind', 'layer', 'head', 'role', 'score', 'chance', 'low', 'high', 'n']
    """
    _needs_decoder(model, max(2 * length, repeats * length + (start is not None)), n)
    tokens = ordinary(model) if tokens is None else tokens
    twice = segments(n, length, 2, tokens, seed=seed)
    many = segments(n, length, repeats, tokens, start=start, seed=seed)
    looked = {
        "previous-token": lambda maps, ids: previous_token(maps),
        "duplicate-token": duplicate_token,
        INDUCTION: lambda maps, ids: induction(maps, length),
    }
    found = _measure(model, twice, looked, batch_size) | _measure(model, many, {PREFIX: prefix_matching}, batch_size)
    even = {role: _evenly(measure, twice[:1]) for role, measure in looked.items()}
    even[PREFIX] = _evenly(prefix_matching, many[:1])
    return _frame(found, even)


@torch.no_grad()
def copying(
    model: nn.Module,
    *,
    n: int = 50,
    length: int = 25,
    tokens: Sequence[int] | None = None,
    seed: int = 0,
    batch_size: int = 25,
) -> pd.DataFrame:
    """Score every head of a decoder for copying: does it raise the symbol that it looks at (Olsson et al. 2022)?

    Each of ``n`` sequences has ``length`` different random tokens. What a head would write if it looked at one of them
    alone goes through the unembedding (the final norm is left out, as in their direct path); of the logits of the
    sequence's own tokens the mean is taken off and what is below 0 is cut. The share of the token looked at, from
    0 to 1, is then stretched to [-1, 1].

    Columns as in :func:`scores`. ``chance`` is an equal share, 2 / length - 1.

    Raises ``ValueError`` for a model that is no decoder by itself or has no unembedding.
    """
    _needs_decoder(model, length, n)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise ValueError(
            f"{type(model).__name__} has no unembedding to read logits from (get_output_embeddings() gives none): load "
            "the model with its language-model head, e.g. AutoModelForCausalLM"
        )
    if not head.weight.isfinite().all():
        raise ValueError(f"the unembedding holds NaN or infinity; {nonfinite_weights(model)}")
    tokens = ordinary(model) if tokens is None else tokens
    found: dict[tuple, list[Tensor]] = {}
    chosen = segments(n, length, 2, tokens, seed=seed)[:, :length].to(_device(model))
    for ids in chosen.split(batch_size):
        columns = head.weight[ids].float()  # (B, symbol, d_model)

        @without_autocast
        def fold(site: ht.Site, seen: object, before: object, columns: Tensor = columns) -> None:
            values = seen.v.float().repeat_interleave(site.heads // seen.v.shape[1], 1)  # (B, head, key, value_dim)
            written = torch.einsum("bhkv,hvd->bhkd", values, site.w_o.float())
            logits = torch.einsum("bhkd,bsd->bhks", written, columns)
            raised = (logits - logits.mean(-1, keepdim=True)).relu()
            share = raised.diagonal(0, -2, -1) / raised.sum(-1).clamp_min(1e-12)
            found.setdefault((site.key, COPYING), []).append(2 * share.mean(-1).cpu() - 1)

        with ht.record(model, want="v", accumulate=fold, only=["decoder"]):
            model(ids)
    return _frame({key: torch.cat(parts) for key, parts in found.items()}, {COPYING: 2 / length - 1})


@torch.no_grad()
def _measure(
    model: nn.Module, sequences: Tensor, roles: dict[str, Callable[[Tensor, Tensor], Tensor]], batch_size: int
) -> dict[tuple, Tensor]:
    """Return {(site key, role): (n, head)}; maps of one batch are in memory at a time."""
    found: dict[tuple, list[Tensor]] = {}
    for ids in sequences.to(_device(model)).split(batch_size):

        def fold(site: ht.Site, seen: object, before: object, ids: Tensor = ids) -> None:
            for role, measure in roles.items():
                found.setdefault((site.key, role), []).append(measure(seen.maps, ids).cpu())

        with ht.record(model, want="maps", accumulate=fold, only=["decoder"]):
            model(ids)
    return {key: torch.cat(parts) for key, parts in found.items()}


def _evenly(measure: Callable[[Tensor, Tensor], Tensor], ids: Tensor) -> float:
    """Return the score of a head that spreads its attention evenly over the tokens so far."""
    even = torch.ones(ids.shape[1], ids.shape[1]).tril()
    return measure((even / even.sum(-1, keepdim=True))[None, None], ids).item()


def _frame(found: dict[tuple, Tensor], chance: dict[str, float]) -> pd.DataFrame:
    rows = []
    for (key, role), values in found.items():
        low, high = ht.bootstrap(values)
        for number, score in enumerate(values.mean(0).tolist()):
            name = {"stack": key[0]} if len(key) == 3 else {}
            rows.append({**name, "kind": key[-2], "layer": key[-1], "head": number, "role": role, "score": score,
                         "chance": chance[role], "low": low[number].item(), "high": high[number].item(),
                         "n": len(values)})  # fmt: skip
    frame = pd.DataFrame(rows)
    where = [name for name in ("stack", "kind", "layer", "head") if name in frame]
    return frame.sort_values(where, kind="stable", ignore_index=True)


def _needs_decoder(model: nn.Module, longest: int, n: int) -> None:
    kinds = ht.sites(model).kinds
    if "decoder" not in kinds or "cross" in kinds:
        raise ValueError(
            f"these scores need a model that reads one sequence from left to right; {type(model).__name__} has "
            f"{' and '.join(kinds)} attention. Pass a decoder-only model, e.g. one of AutoModelForCausalLM"
        )
    if n < MIN_EXAMPLES:
        raise ValueError(f"an interval needs {MIN_EXAMPLES} sequences or more, got n={n}: write n=50")
    check_weights(model)
    room = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if room is not None and longest > room:
        raise ValueError(
            f"{longest} tokens are needed but {type(model).__name__} has {room} positions: pass a smaller length=, "
            "or fewer repeats="
        )


def _device(model: nn.Module) -> torch.device:
    return device_of(model)
