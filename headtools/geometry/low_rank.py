"""A matrix that is known as a product of two thin ones, and what can be had from it without multiplying them out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast


@dataclass(frozen=True, eq=False, repr=False)
class Factored:
    """One matrix ``left @ right`` of low rank, or several side by side, never multiplied out unless you ask.

    ``left``: (..., d_in, r), ``right``: (..., r, d_out); rows are multiplied from the left, ``x @ left @ right``, so
    what is read is a matter of ``left`` and what is written a matter of ``right``. With d the larger width, products,
    norms and singular values cost O(d r²) and O(d r) memory a matrix, where the full matrix would cost O(d³) and
    O(d²).

    Raises ``ValueError`` for factors that do not fit, ``TypeError`` for what is no floating-point tensor.

    >>> one = Factored(torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0, 2.0]]))
    >>> one
    <Factored 2 x 2 of rank 1>
    >>> one.matrix().tolist(), one.norm().item()
    ([[0.0, 6.0], [0.0, 8.0]], 10.0)
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        for name, factor in (("left", self.left), ("right", self.right)):
            if not isinstance(factor, Tensor) or not factor.is_floating_point():
                raise TypeError(f"{name} must be a floating-point tensor, got {_say(factor)}")
        a, b = tuple(self.left.shape), tuple(self.right.shape)
        if len(a) < 2 or len(a) != len(b) or a[:-2] != b[:-2] or a[-1] != b[-2] or 0 in a + b:
            raise ValueError(f"needed are left (..., d_in, r) and right (..., r, d_out), got {a} and {b}")

    @property
    def shape(self) -> torch.Size:
        """Return the shape that the multiplied-out matrices would have: (..., d_in, d_out)."""
        return self.left.shape[:-1] + self.right.shape[-1:]

    @property
    def width(self) -> int:
        """Return r, the greatest rank that the product can have."""
        return min(self.left.shape[-1], *self.shape[-2:])

    @property
    def T(self) -> Factored:
        """Return the transposed matrix."""
        return Factored(self.right.mT, self.left.mT)

    def __getitem__(self, index: object) -> Factored:
        """Return some of the matrices, by an index of the leading axes."""
        if self.left.dim() == 2:
            raise IndexError("this is one matrix, not several: there is no leading axis to index; use .matrix()")
        return Factored(self.left[index], self.right[index])

    def __len__(self) -> int:
        """Return how many matrices there are along the first axis."""
        if self.left.dim() == 2:
            raise TypeError("this is one matrix, not several")
        return len(self.left)

    @without_autocast
    def __matmul__(self, other: Factored) -> Factored:
        """Return the product of two, factored again: first this one, then ``other``."""
        if not isinstance(other, Factored):
            return NotImplemented
        if self.shape[-1] != other.shape[-2]:
            raise ValueError(f"{tuple(self.shape)} @ {tuple(other.shape)}: the inner widths differ")
        middle = self.right @ other.left  # (r, r'), the one product over the full width
        if self.left.shape[-1] <= other.left.shape[-1]:
            return Factored(*_aligned(self.left, middle @ other.right))
        return Factored(*_aligned(self.left @ middle, other.right))

    def __repr__(self) -> str:
        several = "".join(f"{n} of " for n in self.shape[:-2])
        return f"<Factored {several}{self.shape[-2]} x {self.shape[-1]} of rank {self.width}>"

    @without_autocast
    def apply(self, x: Tensor) -> Tensor:
        """Return x @ matrix for rows x (..., n, d_in), in O(n d r)."""
        return (x.to(self.left.dtype) @ self.left) @ self.right

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
        """Return U (..., d_in, k), the singular values (..., k) falling, and V (..., d_out, k): matrix = U diag(s) Vᵀ.

        Rows are multiplied from the left, so **the columns of U are what is read and those of V what is written**:
        ``x @ matrix`` has s times the part of x along U's column, put along V's. k is ``width``.

        left = Q₁R₁ and rightᵀ = Q₂R₂ cost O(d r²); then only the r x r matrix R₁R₂ᵀ is decomposed.

        >>> u, s, v = Factored(torch.tensor([[3.0], [4.0]]), torch.tensor([[0.0, 2.0]])).svd()
        >>> s.item(), (u[:, 0].abs() * 10).round().tolist(), v[:, 0].abs().tolist()
        (10.0, [6.0, 8.0], [0.0, 1.0])
        """
        q1, r1 = torch.linalg.qr(self.left)
        q2, r2 = torch.linalg.qr(self.right.mT)
        u, s, vt = torch.linalg.svd(r1 @ r2.mT, full_matrices=False)
        return q1 @ u, s, q2 @ vt.mT

    def singular_values(self) -> Tensor:
        """Return the singular values (..., k), falling, in O(d r²)."""
        return torch.linalg.svdvals(self._core())

    def norm(self) -> Tensor:
        """Return the Frobenius norms (...), in O(d r²)."""
        return self._core().flatten(-2).norm(dim=-1)

    @without_autocast
    def _core(self) -> Tensor:
        """Return R₁R₂ᵀ: a small matrix with the singular values of the large one."""
        r1, r2 = (torch.linalg.qr(factor, mode="r")[1] for factor in (self.left, self.right.mT))
        return r1 @ r2.mT


def _aligned(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Give both factors the same leading axes, as broadcasting would."""
    lead = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    return left.expand(*lead, *left.shape[-2:]), right.expand(*lead, *right.shape[-2:])


def _say(value: object) -> str:
    return f"a {value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
