"""Heads of random factors, which scores from weights are compared with."""

from __future__ import annotations

from typing import overload

import torch

from headtools.geometry.circuits import Circuits
from headtools.geometry.low_rank import Factored


@overload
def random_like(of: Circuits, seed: int = 0) -> Circuits: ...
@overload
def random_like(of: Factored, seed: int = 0) -> Factored: ...
def random_like(of: Circuits | Factored, seed: int = 0) -> Circuits | Factored:
    """Return heads of the same shapes with independent Gaussian factors: the chance level of every score here.

    >>> random_like(Factored(torch.ones(5, 8, 2), torch.ones(5, 2, 8)), seed=1)
    <Factored 5 of 8 x 8 of rank 2>
    """
    draw = torch.Generator().manual_seed(seed)

    def drawn(one: Factored) -> Factored:
        parts = (torch.randn(f.shape, generator=draw, dtype=f.dtype).to(f.device) for f in (one.left, one.right))
        return Factored(*parts)

    return Circuits({k: drawn(v) for k, v in of.values.items()}, of.name) if isinstance(of, Circuits) else drawn(of)
