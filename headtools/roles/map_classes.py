"""Kovaleva's five classes of attention maps (2019, arXiv:1908.08593, section 4.1), by a rule instead of a network.

The rule was written, with its thresholds, before it was compared with the maps that were labelled by eye
(``assets/map_classes.json``), and changed twice after that: a map that is vertical and also diagonal became
vertical+diagonal instead of the stronger of the two, and a nearly uniform map of a short sentence heterogeneous.
"""

import base64
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headtools._engine.store import read_json
from headtools.heads.intervals import bounds

CLASSES = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
LABELLED = Path(__file__).parent / "assets" / "map_classes.json"
MAX_OFFSET = 3  # offsets from -3 to 3 are tried for the band of three

# Thresholds of the rule, fractions of the map's weight but for the last two; ``classify`` explains them.
_VERTICAL_ONE, _VERTICAL_TWO, _DIAGONAL = 0.4, 0.7, 0.5
_MIXED_EACH, _MIXED_TOGETHER = 0.25, 0.6
_BLOCK = 0.25
_PEAKED = 0.5  # mean largest weight of a row
_UNIFORM = 1.5  # the same, relative to a uniform row


class Features(NamedTuple):
    """What the rule depends on, each (B, head), fractions of the map's total weight.

    one_column       in the strongest column
    two_columns      in the two strongest columns
    band             in the strongest three neighbouring offsets
    band_remainder   the same, without the two strongest columns
    blocks           within two parts of the sentence, above that of uniform attention, at the best cut
    peak             mean of the largest weight of a row
    """

    one_column: Tensor
    two_columns: Tensor
    band: Tensor
    band_remainder: Tensor
    blocks: Tensor
    peak: Tensor


def features(maps: Tensor, real: Tensor) -> Features:
    """Return the features of maps (B, head, U, U), ``real`` (B, U) being true for the words or tokens there are.

    These must come first, padding last.
    """
    n = real.sum(-1).to(maps)[:, None]  # (B, 1); rows sum to 1, so n is also the weight of a map
    maps = maps * (real[:, :, None] & real[:, None])[:, None]
    top = (maps.sum(-2) / n[..., None]).topk(2, dim=-1)  # the two strongest columns, (B, head, 2)
    in_top = torch.zeros_like(maps[..., 0, :]).scatter_(-1, top.indices, 1.0)  # (B, head, key)
    return Features(
        one_column=top.values[..., 0],
        two_columns=top.values.sum(-1),
        band=_strongest_band(maps) / n,
        band_remainder=_strongest_band(maps * (1 - in_top)[..., None, :]) / n,
        blocks=_best_blocks(maps, n),
        peak=maps.amax(-1).sum(-1) / n,
    )


def classify(maps: Tensor, real: Tensor) -> Tensor:
    """Class of each map, as an index into ``CLASSES``: maps (B, head, U, U) and real (B, U) to (B, head).

    vertical            the strongest column has 0.4 of the weight, or the two strongest 0.7
    diagonal            three neighbouring offsets between -3 and 3 have half of it; of both, the larger
    vertical+diagonal   vertical, and the offsets have 0.25 without the two columns; or neither, and both have
                        0.25 each and 0.6 together
    block               a cut of the sentence in two leaves 0.25 more weight within the parts than uniform attention
                        would, and the mean largest weight of a row is below 0.5
    heterogeneous       all else, and rows that are nearly uniform (mean largest weight below 1.5 times a uniform one's)

    Raises ValueError for maps that are not square.

    >>> maps = torch.stack([torch.eye(6), torch.eye(6)[:1].expand(6, 6), torch.full((6, 6), 1 / 6)])[None]
    >>> [CLASSES[i] for i in classify(maps, torch.ones(1, 6, dtype=torch.bool))[0]]
    ['diagonal', 'vertical', 'heterogeneous']
    """
    if maps.dim() != 4 or maps.shape[-1] != maps.shape[-2] or real.shape != (len(maps), maps.shape[-1]):
        raise ValueError(f"got maps {tuple(maps.shape)}, real {tuple(real.shape)}; expected (B, head, U, U) and (B, U)")
    f = features(maps, real)
    vertical = (f.one_column >= _VERTICAL_ONE) | (f.two_columns >= _VERTICAL_TWO)
    diagonal = f.band >= _DIAGONAL
    neither_but_mixed = (f.two_columns >= _MIXED_EACH) & (f.two_columns + f.band_remainder >= _MIXED_TOGETHER)
    mixed = (f.band_remainder >= _MIXED_EACH) & torch.where(vertical | diagonal, vertical, neither_but_mixed)
    block = (f.blocks >= _BLOCK) & (f.peak < _PEAKED)
    uniform = f.peak * real.sum(-1)[:, None] < _UNIFORM
    more_vertical = vertical & ~(diagonal & (f.band > f.two_columns))
    out = torch.full(f.one_column.shape, CLASSES.index("heterogeneous"), device=maps.device)
    for name, mask in (
        ("block", block),
        ("diagonal", diagonal),
        ("vertical", more_vertical),
        ("vertical+diagonal", mixed),
        ("heterogeneous", uniform),
    ):
        out.masked_fill_(mask, CLASSES.index(name))  # later ones take precedence
    return out


def _strongest_band(maps: Tensor) -> Tensor:
    """Greatest sum over three neighbouring offsets from -3 to 3: (B, head, U, U) to (B, head)."""
    offsets = range(-MAX_OFFSET, MAX_OFFSET + 1)
    return torch.stack([maps.diagonal(k, -2, -1).sum(-1) for k in offsets], -1).unfold(-1, 3, 1).sum(-1).amax(-1)


def _best_blocks(maps: Tensor, n: Tensor) -> Tensor:
    """Most weight within two parts, above that of uniform attention, over all cuts with three words or more a side.

    Maps (B, head, U, U) and words ``n`` (B, 1) to (B, head).
    """
    cuts = torch.arange(3, max(3, maps.shape[-1] - 2), device=maps.device)  # words on the left
    if not len(cuts):
        return maps.new_zeros(maps.shape[:2])
    # sums[..., i, j]: the weight from the first i + 1 words to the first j + 1; its last row and column are whole ones
    sums = maps.cumsum(-1).cumsum(-2)
    left = sums.diagonal(0, -2, -1)[..., cuts - 1]  # from left to left, (B, head, cut)
    right = sums[..., -1, -1:] - sums[..., cuts - 1, -1] - sums[..., -1, cuts - 1] + left
    n = n[..., None]  # (B, 1, 1)
    within = (left + right) / n - (cuts**2 + (n - cuts) ** 2) / n**2
    return torch.where(n - cuts >= 3, within, 0.0).amax(-1).clamp_min(0.0)


class Agreement(NamedTuple):
    """Fraction in which rule and labels agree, its 95 % interval (NaN for n < 5), kappa, n, counts (label, rule)."""

    share: float
    low: float
    high: float
    kappa: float
    n: int
    table: dict[tuple[str, str], int]


def labelled() -> list[tuple[Tensor, str]]:
    """The maps labelled by eye: pairs of a map (U, U), in steps of 1/255, and its class."""
    pairs = []
    for entry in read_json(LABELLED, "maps")["maps"]:
        values = torch.frombuffer(bytearray(base64.b64decode(entry["map"])), dtype=torch.uint8)
        pairs.append((values.view(entry["size"], entry["size"]).float() / 255, entry["label"]))
    return pairs


def agreement(maps: list[tuple[Tensor, str]] | None = None) -> Agreement:
    """Compare :func:`classify` with labels, by default those made by eye.

    Kappa (Cohen 1960) is the agreement above chance, (p − p_chance) / (1 − p_chance), where chance is that of two
    independent raters with the same frequencies.

    >>> found = agreement()
    >>> found.n >= 100 and found.low <= found.share <= found.high
    True
    """
    maps = labelled() if maps is None else maps
    predicted = [CLASSES[int(classify(m[None, None], torch.ones(1, len(m), dtype=torch.bool)))] for m, _ in maps]
    pairs = [(label, rule) for (_, label), rule in zip(maps, predicted, strict=True)]
    hits = torch.tensor([float(label == rule) for label, rule in pairs])
    low, high = bounds(hits, 0.0, 1.0)
    by_eye, by_rule = Counter(label for label, _ in pairs), Counter(predicted)
    chance = sum(by_eye[name] * by_rule[name] for name in CLASSES) / len(maps) ** 2
    share = float(hits.mean())
    kappa = (share - chance) / (1 - chance) if chance < 1 else 1.0
    return Agreement(share, float(low), float(high), kappa, len(maps), dict(Counter(pairs)))
