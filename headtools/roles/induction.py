"""Scores of previous-token, duplicate-token and induction heads, on random tokens that repeat.

Two scores are called *induction* in the literature: TransformerLens' (one segment twice; attention to the key
length - 1 positions back) and *prefix matching* of Olsson et al. 2022 (the segment four times; attention to what
followed any earlier copy, summed). Who also *copies*, raising the logit of the token attended to, is an induction head
in the sense of arXiv:2209.11895.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import torch
from torch import Tensor, nn

import headtools as ht
from headtools.heads._checks import check_weights, nonfinite_weights
from headtools.heads._devices import device_of, without_autocast
from headtools.heads.intervals import MIN_EXAMPLES
from headtools.heads.record import Captured, backbone
from headtools.heads.scores import head_columns
from headtools.heads.verify import verify_once
from headtools.roles._segments import ordinary_tokens, segments
from headtools.roles.attention_sinks import score_rows, without_sink

INDUCTION, PREFIX, COPYING = "induction (TransformerLens)", "prefix matching (Olsson)", "copying (Olsson)"


def induction(maps: Tensor, length: int) -> Tensor:
    """Return TransformerLens' induction score: the mean of the diagonal ``length - 1`` below the middle, (B, head).

    ``maps`` (B, head, T, T) of a segment of ``length`` tokens that repeats. The mean is over queries from the second
    copy on: for query t the weight on key t - length + 1, the token after the earlier copy of t.

    Raises ``ValueError`` for maps that do not reach the second copy.
    """
    if not 2 <= length < maps.shape[-2]:
        raise ValueError(
            f"got length={length} and maps of {maps.shape[-2]} queries; expected a length of 2 or more, and maps that "
            "are longer. Write the length of one segment, not of the whole sequence"
        )
    # Query length + i, key i + 1: without the rows of the first copy, the diagonal above the main one.
    return maps[..., length:, :].diagonal(1, -2, -1).mean(-1)


def induction_scores(
    model: nn.Module, *, n: int = 50, length: int = 25, repeats: int = 4, seed: int = 0, batch_size: int = 25
) -> pd.DataFrame:
    """Score every head of a causal language model on random tokens that repeat: a row for each head and role.

    Roles: ``previous-token``, ``duplicate-token`` and ``induction (TransformerLens)`` on ``n`` segments of ``length``
    tokens, each twice; ``prefix matching (Olsson)`` on segments that stand ``repeats`` times; ``copying (Olsson)``.
    Tokens are drawn from all that the model embeds, without its special ones.

    Columns: ``kind``, ``layer``, ``head``, ``role``; ``score`` with ``low`` and ``high``, a 95 % bootstrap interval
    over sequences; ``without_sink``, the score with the first token left out of the maps (missing for copying, which
    reads no map); ``chance``, what attention spread evenly over the tokens so far would score; ``n``, sequences.

    Raises ``ValueError`` for a model that is not decoder-only or has no unembedding, for segments longer than its
    positions, and for fewer than five sequences.

    >>> from headtools.organism.toy_decoder import ToyDecoder
    >>> frame = induction_scores(ToyDecoder(), n=5, length=12)
    >>> frame.role.nunique(), len(frame)
    (5, 40)
    """
    _check_decoder(model, max(2, repeats) * length, n)
    # Where a segment of different tokens repeats, all targets are at known distances: lines (key - query, the first
    # query, the end). One pass is for both: under a causal mask two copies do not see the later ones.
    end = 2 * length
    lines = {
        "previous-token": [(-1, 1, end)],
        "duplicate-token": [(-length, length, end)],
        INDUCTION: [(1 - length, length, end)],
        PREFIX: [(1 - copy * length, copy * length, repeats * length) for copy in range(1, repeats)],
    }
    n_queries = {role: of_role[0][2] - of_role[0][1] for role, of_role in lines.items()}
    chance = {
        role: sum(1 / (t + 1) for _, start, end in of_role for t in range(start, end)) / n_queries[role]
        for role, of_role in lines.items()
    }

    def measure_all(_site: ht.Site, captured: Captured, _ids: Tensor) -> dict[str, Tensor]:
        """By role (B, 2, head): what these rows add as they are, and without their sink."""
        both = captured.rows, without_sink(captured.rows)
        return {
            role: torch.stack([_on_lines(rows, captured.first, of_role) for rows in both], 1) / n_queries[role]
            for role, of_role in lines.items()
        }

    sequences = segments(n, length, repeats, ordinary_tokens(model), seed=seed)
    values = _record_scores(model, sequences, batch_size, "rows", measure_all)
    others = torch.cat([by_sequence[:, 1].mean(0) for by_sequence in values.values()])  # in the order of the rows
    frame = score_rows({key: by_sequence[:, 0] for key, by_sequence in values.items()}, chance)
    copied = copying(model, n=n, length=length, seed=seed, batch_size=batch_size)
    frame = pd.concat([frame.assign(without_sink=others.tolist()), copied], ignore_index=True)
    columns = head_columns(frame)
    frame = frame.sort_values(columns, kind="stable", ignore_index=True)
    return frame[[*columns, "role", "score", "low", "high", "without_sink", "chance", "n"]]


def _on_lines(rows: Tensor, first: int, lines: Sequence[tuple[int, int, int]]) -> Tensor:
    """Sum of the weights on lines of keys at one distance: rows (B, head, query, key) to (B, head)."""
    total = rows.new_zeros(rows.shape[:2])
    for offset, start, end in lines:
        part = rows[:, :, max(start - first, 0) : max(end - first, 0)]
        total += part.diagonal(max(start, first) + offset, -2, -1).sum(-1)
    return total


@torch.no_grad()
def copying(model: nn.Module, *, n: int = 50, length: int = 25, seed: int = 0, batch_size: int = 25) -> pd.DataFrame:
    """Score every head of a decoder for copying: does it raise the token that it attends to (Olsson et al. 2022)?

    Each of ``n`` sequences has ``length`` different random tokens. What a head writes when all its weight is on one of
    them goes through the unembedding, without the final norm. Of the logits of the sequence's own tokens the mean is
    subtracted, and negative ones become 0; the fraction that the attended token has of their sum is scaled to [-1, 1].
    Columns as in :func:`induction_scores`. Raises ``ValueError`` as it does.
    """
    _check_decoder(model, length, n)
    unembedding = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if unembedding is None:
        raise ValueError(
            f"{type(model).__name__} has no unembedding (get_output_embeddings() gives None); load the model with its "
            "language-model head, e.g. by AutoModelForCausalLM"
        )
    if not unembedding.weight.isfinite().all():
        raise ValueError(f"the unembedding holds NaN or infinity; {nonfinite_weights(model)}")
    sequences = segments(n, length, 2, ordinary_tokens(model), seed=seed)[:, :length]  # the first copy alone

    @without_autocast
    def measure(site: ht.Site, captured: Captured, ids: Tensor) -> dict[str, Tensor]:
        own_tokens = unembedding.weight[ids].float()  # (B, token, d_model)
        # Grouped-query attention: consecutive query heads share values.
        n_shared = site.heads // captured.v.shape[1]
        v = captured.v.float().repeat_interleave(n_shared, 1)  # (B, head, key, value_dim)
        outputs = torch.einsum("bhkv,hvd->bhkd", v, site.w_o.float())
        logits = torch.einsum("bhkd,btd->bhkt", outputs, own_tokens)
        raised = (logits - logits.mean(-1, keepdim=True)).relu()
        # Where all logits are equal none is raised: the fraction is 0.
        fraction = raised.diagonal(0, -2, -1) / raised.sum(-1).clamp_min(1e-12)  # (B, head, key)
        return {COPYING: 2 * fraction.mean(-1) - 1}

    return score_rows(_record_scores(model, sequences, batch_size, "v", measure), {COPYING: 2 / length - 1})


@torch.no_grad()
def _record_scores(
    model: nn.Module,
    sequences: Tensor,
    batch_size: int,
    want: str,
    measure: Callable[[ht.Site, Captured, Tensor], dict[str, Tensor]],
) -> dict[tuple, Tensor]:
    """Return {(site key, role): (n, ...)} of what ``measure(site, captured, ids)`` gives by role, (B, ...).

    What it gives of several blocks of rows adds up.
    """
    by_batch: dict[tuple, list[Tensor]] = {}
    for ids in sequences.to(device_of(model)).split(batch_size):

        def add_scores(site: ht.Site, captured: Captured, _previous: object, ids: Tensor = ids) -> None:
            for role, scores in measure(site, captured, ids).items():
                parts = by_batch.setdefault((site.key, role), [])
                if getattr(captured, "first", 0):  # not the first block of these sequences
                    scores = parts.pop().to(scores.device) + scores
                parts.append(scores.cpu())

        with ht.record(model, want=want, accumulate=add_scores, only=["decoder"]):
            backbone(model, ["input_ids"])(ids)
    return {key: torch.cat(scores) for key, scores in by_batch.items()}


def _check_decoder(model: nn.Module, max_length: int, n: int) -> None:
    kinds = ht.sites(model).kinds
    if "decoder" not in kinds or "cross" in kinds:
        raise ValueError(
            f"these scores need a model that reads one sequence from left to right; {type(model).__name__} has "
            f"{' and '.join(kinds)} attention. Pass a decoder-only model, e.g. one of AutoModelForCausalLM"
        )
    if n < MIN_EXAMPLES:
        raise ValueError(f"got n={n}; an interval needs {MIN_EXAMPLES} sequences or more: write n=50")
    check_weights(model)
    verify_once(model, chosen=ht.sites(model))
    n_positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if n_positions is not None and max_length > n_positions:
        raise ValueError(
            f"got sequences of {max_length} tokens; {type(model).__name__} has {n_positions} positions: write a "
            "smaller length= or repeats="
        )
