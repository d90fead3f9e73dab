"""Numbers for pairs of heads: what they come as, and the two small calculations that all of them share."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from headtools.heads._precision import without_autocast


class Levels(NamedTuple):
    """Numbers for pairs of heads, ``values`` (n_a, n_b), and ``chance``, what random heads of these widths give."""

    values: Tensor
    chance: float


@without_autocast
def products(a: Tensor, b: Tensor) -> Tensor:
    """Return a_i @ b_j for all pairs, (n_a, n_b, r_a, r_b), of a (n_a, r_a, d) and b (n_b, d, r_b), by one product."""
    whole = a.flatten(0, 1) @ b.movedim(0, 1).flatten(1)
    return whole.unflatten(1, (b.shape[0], b.shape[2])).unflatten(0, a.shape[:2]).transpose(1, 2)


def ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return above / below, and 0 where both are 0."""
    return above / below.where(below > 0, torch.full_like(below, math.inf))
