"""Remove from a head's output what a linear probe could find, and nothing more: ``erasure``.

Compare the model then with that after removing as many random directions (amnesic probing, Elazar et al. 2021,
arXiv:2006.00995). The map is LEACE, the smallest change after which no linear probe beats the majority on the words it
was made from (Belrose et al. 2023, arXiv:2306.03819).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headtools.heads._devices import without_autocast


@dataclass(frozen=True, eq=False)
class Erasure:
    """An affine map z − (z − mean) @ matrix: ``mean`` (d,), ``matrix`` (d, d) of rank ``rank``, float64."""

    mean: Tensor
    matrix: Tensor
    rank: int

    @without_autocast
    def __call__(self, z: Tensor) -> Tensor:
        """Apply it to vectors (..., d), in their own data type."""
        return z - (z - self.mean.to(z)) @ self.matrix.to(z)


def erasure(x: Tensor, labels: Sequence[str], *, random: bool = False, seed: int = 0) -> Erasure:
    """Return the map that erases a label from vectors: x (n, d) and n labels.

    With W = Σ^(−½) the whitening of x and P the projection on the directions in which the whitened means of the labels
    differ, it is z − (z − mean) W P W⁻¹. With ``random`` as many directions are drawn uniformly in the whitened space:
    the control. Raises ValueError for fewer than two labels, or not one a vector, and vectors that are all equal.

    >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0], [2.0, 1.0]])
    >>> take = erasure(x, ["a", "a", "b", "b"])
    >>> take(x).tolist(), take.rank
    ([[1.0, 0.0], [1.0, 1.0], [1.0, 0.0], [1.0, 1.0]], 1)
    """
    names = sorted(set(labels))
    if x.dim() != 2 or len(x) != len(labels) or len(names) < 2:
        got = f"x of shape {tuple(x.shape)} with {len(labels)} labels, {len(names)} of them different"
        raise ValueError(f"got {got}; expected x (n, features) and n labels, two or more different ones")
    x = x.detach().cpu().double()
    mean = x.mean(0)
    # Σ = V diag(λ) Vᵀ, without the directions in which x does not vary (as in a head that is narrower than d).
    eigenvalues, eigenvectors = torch.linalg.eigh((x - mean).T @ (x - mean) / len(x))
    varies = eigenvalues > 1e-10 * eigenvalues[-1]
    if not eigenvalues[-1] > 0:
        raise ValueError("all vectors are equal, so there is nothing to erase")
    # Whitened, the orthogonal projection is the map that erases with the least change (LEACE).
    eigenvectors, deviation = eigenvectors[:, varies], eigenvalues[varies].sqrt()
    whiten, unwhiten = eigenvectors / deviation, (eigenvectors * deviation).T  # W (d, r) and W⁻¹ (r, d)
    index = torch.tensor([names.index(label) for label in labels])
    one_hot = torch.nn.functional.one_hot(index, len(names)).double()
    # The whitened cross-covariance of vectors and labels, (r, label); its columns span what P projects on.
    covariance = whiten.T @ (x - mean).T @ (one_hot - one_hot.mean(0)) / len(x)
    left_vectors, singular_values, _ = torch.linalg.svd(covariance, full_matrices=False)
    directions = left_vectors[:, singular_values > 1e-9]
    rank = directions.shape[1]
    if random:
        generator = torch.Generator().manual_seed(seed)
        directions = torch.linalg.qr(torch.randn(len(deviation), rank, generator=generator, dtype=torch.double)).Q
    return Erasure(mean, whiten @ directions @ directions.T @ unwhiten, rank)
