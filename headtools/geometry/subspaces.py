"""Subspaces that heads read and write: effective rank, overlap, cosine.

Only bases of subspaces are compared: the factors of a head are not unique (``circuits.py``), its subspaces are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headtools.geometry.circuits import Circuits
from headtools.geometry.factored_matrix import FactoredMatrix, Levels, divide_or_zero, pairwise_products
from headtools.heads._devices import without_autocast
from headtools.heads.scores import HeadScores

SIDES = ("read", "write")
_BLOCK_NUMBERS = 2**24  # held at once while overlaps are computed: some 64 MB


def effective_rank(of: Circuits | FactoredMatrix | Tensor) -> HeadScores | Tensor:
    """Return exp of the entropy of the singular values scaled to sum 1: how many directions a matrix uses.

    ``of``: circuits (one score a head), or matrices (..., n, m), factored or not, the result then (...). Between 1 and
    the rank, the same for any multiple of the matrix and any gauge of its factors; a zero matrix gets 0. Roy and
    Vetterli 2007. Chance is not the rank: two random factors of width 16 in 128 dimensions reach 14.9 of 16, so compare
    with ``random_like`` and ``untrained``.

    Raises ``ValueError`` for a matrix with NaN or infinity.

    >>> effective_rank(torch.diag(torch.tensor([2.0, 2.0, 0.0])))
    tensor(2.)
    """
    if isinstance(of, Circuits):
        return of.score(effective_rank, f"effective rank of {of.name}")
    if not torch.isfinite(of if isinstance(of, Tensor) else torch.cat([of.left.flatten(), of.right.flatten()])).all():
        raise ValueError("the matrix holds NaN or infinity, so it has no rank: look at how it was loaded")
    values = torch.linalg.svdvals(of) if isinstance(of, Tensor) else of.singular_values()
    total = values.sum(-1, keepdim=True)
    p = values / total.where(total > 0, torch.ones_like(total))
    entropy = torch.special.entr(p).sum(-1)  # −Σ p log p; entr(0) = 0, so zero singular values do not count
    return entropy.exp().where(total.squeeze(-1) > 0, torch.zeros_like(entropy))


@without_autocast
def overlap(a: Circuits | FactoredMatrix, b: Circuits | FactoredMatrix | None = None, side: str = "write") -> Levels:
    """Return how much the subspaces that heads write to (or read from) overlap, in [0, 1], and the chance level.

    ``a`` (n_a, d, d) and ``b`` (n_b, d, d); left out, a with itself. ``side``: "write" takes the subspace of the
    output, "read" that of the input; of W_QK, "read" is what queries and "write" what keys are read from. The value for
    two heads is the mean of cos² over their principal angles (Björck and Golub 1973), ‖V_aᵀV_b‖² / r with r the smaller
    rank, however strongly each direction is used. Chance is the larger width over d: 1/H in most models.

    Raises ``ValueError`` for heads of different width d or another ``side``.

    >>> axes = FactoredMatrix(torch.eye(4)[:, :2], torch.eye(4)[:2])  # reads and writes directions 0 and 1
    >>> overlap(axes, FactoredMatrix(torch.eye(4)[:, 1:3], torch.eye(4)[1:3]))
    Levels(values=tensor([[0.5000]]), chance=0.5)
    """
    bases_a = _bases(a, side)
    bases_b = bases_a if b is None else _bases(b, side)
    d, d_b = bases_a.shape[-2], bases_b.shape[-2]
    if d != d_b:
        raise ValueError(f"got heads in spaces of widths {d} and {d_b}; expected one space")
    # The singular values of V_aᵀ V_b are the cosines of the principal angles; the sum of their squares is its norm².
    cos_squared = _squared_products(bases_a, bases_b)
    ranks = [basis.square().sum((-1, -2)).round() for basis in (bases_a, bases_b)]  # columns have length 1, or 0
    n_angles = torch.minimum(ranks[0][:, None], ranks[1][None]).clamp(min=1)
    chance = min(1.0, max(bases_a.shape[-1], bases_b.shape[-1]) / d)
    return Levels((cos_squared / n_angles).clamp(0, 1), chance)


def cosine(a: Circuits | FactoredMatrix, b: Circuits | FactoredMatrix | None = None) -> Levels:
    """Return the cosine of heads' matrices taken as vectors, (n_a, n_b) in [-1, 1]: whether they are the same map.

    ⟨W_a, W_b⟩ / (‖W_a‖ ‖W_b‖), with W never multiplied out: all pairs cost O(n_a n_b d r²). Chance has mean 0;
    ``chance`` is the standard deviation for random heads, 1/√(d_in d_out). A head that is 0 has cosine 0 with all.

    >>> one = FactoredMatrix(torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]]))
    >>> cosine(one, FactoredMatrix(-2 * one.left, one.right)).values
    tensor([[-1.]])
    """
    first, second = _stacked(a), _stacked(a if b is None else b)
    if first.shape[1:] != second.shape[1:]:
        raise ValueError(
            f"got matrices of {tuple(first.shape[1:])} and {tuple(second.shape[1:])}; expected equal shapes"
        )
    # ⟨L₁R₁, L₂R₂⟩ = tr(R₁ᵀ L₁ᵀ L₂ R₂) = ⟨L₁ᵀ L₂, R₁ R₂ᵀ⟩, an inner product of two r x r matrices.
    inner = pairwise_products(first.left.mT, second.left) * pairwise_products(first.right, second.right.mT)
    norms = first.norm()[:, None] * second.norm()[None]
    values = divide_or_zero(inner.sum((-1, -2)), norms).clamp(-1, 1)
    return Levels(values, (first.shape[-2] * first.shape[-1]) ** -0.5)


def _stacked(of: Circuits | FactoredMatrix) -> FactoredMatrix:
    """Return (n, d_in, d_out) from circuits, or from one matrix or several."""
    of = of.stack() if isinstance(of, Circuits) else of
    if of.left.dim() == 2:
        return FactoredMatrix(of.left[None], of.right[None])
    if of.left.dim() != 3:
        raise ValueError(f"got {tuple(of.shape)}; expected (n, d_in, d_out)")
    return of


def _bases(of: Circuits | FactoredMatrix, side: str) -> Tensor:
    """Return orthonormal bases of what heads read or write, (n, d, r); columns beyond a head's rank are 0."""
    if side not in SIDES:
        raise ValueError(f'side must be "read" or "write", got {side!r}')
    u, s, v = _stacked(of).svd()
    # What counts as rank in floating point, as in numpy.linalg.matrix_rank.
    tolerance = s[:, :1] * max(u.shape[-2], v.shape[-2]) * torch.finfo(s.dtype).eps
    return (u if side == "read" else v) * (s > tolerance)[:, None]


def _squared_products(a: Tensor, b: Tensor) -> Tensor:
    """Return ‖a_iᵀ b_j‖² for all pairs, (n_a, n_b), of a (n_a, d, r_a) and b (n_b, d, r_b)."""
    d, per_pair = a.shape[1], a.shape[2] * b.shape[2]
    if per_pair > d:
        # It is also the inner product of the projections a_i a_iᵀ and b_j b_jᵀ: for heads wider than √d, less work.
        # Some of their columns at a time, since n d² numbers may be too many.
        total, step = 0, max(1, _BLOCK_NUMBERS // (max(len(a), len(b)) * d))
        for start in range(0, d, step):
            of_a = (a @ a[:, start : start + step].mT).flatten(1)
            of_b = of_a if a is b else (b @ b[:, start : start + step].mT).flatten(1)
            total = total + of_a @ of_b.mT
        return total
    blocks = a.split(max(1, _BLOCK_NUMBERS // (len(b) * per_pair)))
    return torch.cat([pairwise_products(block.mT, b).square().sum((-1, -2)) for block in blocks])
