"""Matrices of low rank, kept as products of two thin ones: what can be computed without multiplying them out.

With d the width of a matrix and r its rank, the product is never formed where r will do: left = Q₁R₁ and rightᵀ = Q₂R₂
have orthonormal columns in Q₁ and Q₂, so the small matrix R₁R₂ᵀ has the singular values of left @ right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headtools.heads._devices import without_autocast


@dataclass(frozen=True, eq=False, repr=False)
class FactoredMatrix:
    """One matrix ``left @ right`` of low rank, or several along leading axes; multiplied out by :meth:`matrix` only.

    ``left``: (..., d_in, r), ``right``: (..., r, d_out); rows are multiplied from the left, ``x @ left @ right``, so
    ``left`` determines what is read and ``right`` what is written. With d the larger width, norms and singular values
    cost O(d r²) and O(d r) memory a matrix, where the full matrix would cost O(d³) and O(d²).

    Raises ``ValueError`` for factors that do not fit, ``TypeError`` for factors that are not floating-point tensors.

    >>> one = FactoredMatrix(torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0, 2.0]]))
    >>> one
    <FactoredMatrix 2 x 2 of rank 1>
    >>> one.matrix().tolist(), one.norm().item()
    ([[0.0, 6.0], [0.0, 8.0]], 10.0)
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        for name, factor in (("left", self.left), ("right", self.right)):
            if not isinstance(factor, Tensor) or not factor.is_floating_point():
                got = f"a {factor.dtype} tensor" if isinstance(factor, Tensor) else type(factor).__name__
                raise TypeError(f"{name} must be a floating-point tensor, got {got}")
        a, b = tuple(self.left.shape), tuple(self.right.shape)
        if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2] or 0 in a + b:
            raise ValueError(f"got left {a} and right {b}; expected (..., d_in, r) and (..., r, d_out)")

    @property
    def shape(self) -> torch.Size:
        """Return the shape that the multiplied-out matrices would have: (..., d_in, d_out)."""
        return self.left.shape[:-1] + self.right.shape[-1:]

    @property
    def rank(self) -> int:
        """Return r, the greatest rank that the product can have."""
        return min(self.left.shape[-1], *self.shape[-2:])

    @property
    def T(self) -> FactoredMatrix:
        """Return the transposed matrix."""
        return FactoredMatrix(self.right.mT, self.left.mT)

    def __getitem__(self, index: object) -> FactoredMatrix:
        """Return one or more of the matrices, by an index of the leading axes."""
        if self.left.dim() == 2:
            raise IndexError("this is one matrix, not several: there is no leading axis to index; use .matrix()")
        return FactoredMatrix(self.left[index], self.right[index])

    def __len__(self) -> int:
        """Return how many matrices there are along the first axis."""
        if self.left.dim() == 2:
            raise TypeError("this is one matrix, not several")
        return len(self.left)

    def __repr__(self) -> str:
        counts = "".join(f"{n} of " for n in self.shape[:-2])
        return f"<FactoredMatrix {counts}{self.shape[-2]} x {self.shape[-1]} of rank {self.rank}>"

    @without_autocast
    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the bilinear form x @ matrix @ yᵀ, (..., n, m), for rows x (n, d_in) and y (m, d_out)."""
        return (x.to(self.left.dtype) @ self.left) @ (y.to(self.right.dtype) @ self.right.mT).mT

    @without_autocast
    def matrix(self) -> Tensor:
        """Return the matrices multiplied out, (..., d_in, d_out): O(d² r) time and O(d²) memory each."""
        return self.left @ self.right

    @without_autocast
    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return U (..., d_in, k), the singular values (..., k) and V (..., d_out, k): matrix = U diag(s) Vᵀ.

        Rows are multiplied from the left, so **the columns of U are what is read and those of V what is written**:
        ``x @ matrix`` takes the component of x along a column of U, times s, and writes it along V's. k is ``rank``;
        singular values descend.

        >>> u, s, v = FactoredMatrix(torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0, 2.0]])).svd()
        >>> s.item(), (u[:, 0].abs() * 10).round().tolist(), v[:, 0].abs().tolist()
        (10.0, [6.0, 8.0], [0.0, 1.0])
        """
        q1, r1 = torch.linalg.qr(self.left)
        q2, r2 = torch.linalg.qr(self.right.mT)
        u, s, vt = torch.linalg.svd(r1 @ r2.mT, full_matrices=False)  # r x r; the QR before cost O(d r²)
        return q1 @ u, s, q2 @ vt.mT

    def singular_values(self) -> Tensor:
        """Return the singular values (..., k) in descending order, in O(d r²)."""
        return torch.linalg.svdvals(self._core())

    def norm(self) -> Tensor:
        """Return the Frobenius norms (...), in O(d r²)."""
        return self._core().flatten(-2).norm(dim=-1)

    @without_autocast
    def _core(self) -> Tensor:
        """Return R₁R₂ᵀ: a small matrix with the singular values of the large one."""
        r1, r2 = (torch.linalg.qr(factor, mode="r")[1] for factor in (self.left, self.right.mT))
        return r1 @ r2.mT


class Levels(NamedTuple):
    """Scores of pairs of heads, ``values`` (n_a, n_b), and ``chance``, what random heads of these widths give."""

    values: Tensor
    chance: float


@without_autocast
def pairwise_products(a: Tensor, b: Tensor) -> Tensor:
    """Return a_i @ b_j for all pairs, (n_a, n_b, r_a, r_b), of a (n_a, r_a, d) and b (n_b, d, r_b)."""
    # One product of (n_a r_a, d) and (d, n_b r_b) in place of n_a n_b small ones.
    stacked = a.flatten(0, 1) @ b.movedim(0, 1).flatten(1)
    return stacked.unflatten(1, (b.shape[0], b.shape[2])).unflatten(0, a.shape[:2]).transpose(1, 2)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return numerator / denominator, and 0 where both are 0."""
    return numerator / denominator.where(denominator > 0, torch.full_like(denominator, math.inf))
