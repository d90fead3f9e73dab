"""Kovaleva's five classes of attention maps (2019, arXiv:1908.08593, section 4.1), by a rule instead of a network.

    vertical             most rows look at the same one or two units
    diagonal             most rows look at the same one to three neighbouring offsets
    vertical+diagonal    both, together
    block                rows spread their weight within their own part of the sentence
    heterogeneous        anything else, an even spread included

The rule was written, with its thresholds, before it was compared with the maps that were labelled by eye
(``assets/map_classes.json``), and changed twice after that: a map that is vertical and also diagonal became
vertical+diagonal instead of the stronger of the two, and a nearly even map of a short sentence became heterogeneous.
:func:`agreement` compares.
"""

import base64
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headtools._engine.store import read_json

CLASSES = ("vertical", "diagonal", "vertical+diagonal", "block", "heterogeneous")
LABELLED = Path(__file__).parent / "assets" / "map_classes.json"
ONE, TWO, BAND, EACH, BOTH, PART, FLAT, EVEN = 0.4, 0.7, 0.5, 0.25, 0.6, 0.25, 0.5, 1.5
REACH = 3  # offsets from -3 to 3 are tried for the band of three


class Features(NamedTuple):
    """What the rule reads off a map, each (B, head), shares of the map's whole weight.

    one, two   in the strongest column, in the two strongest
    band       in the strongest three neighbouring offsets
    rest       the same, without the two strongest columns
    part       within the own one of two parts of the sentence, above what an even spread gives, at the best cut
    peak       mean of the largest weight of a row
    """

    one: Tensor
    two: Tensor
    band: Tensor
    rest: Tensor
    part: Tensor
    peak: Tensor


def features(maps: Tensor, real: Tensor) -> Features:
    """Read the features off maps (B, head, U, U), ``real`` (B, U) telling which units there are (first ones).

    Inside, heads come last: sums and maxima of many small maps then run along memory.
    """
    n = real.sum(-1).to(maps)[:, None]
    last = maps.permute(0, 2, 3, 1) * (real[:, :, None] & real[:, None])[..., None]
    columns = last.sum(1)
    top = (columns.transpose(1, 2) / n[..., None]).topk(2, dim=-1)
    near = _near(last)
    band = near.sum(1)
    strongest = top.indices.transpose(1, 2)[:, :, None].expand(-1, -1, near.shape[2], -1)
    rest = band - near.gather(1, strongest).sum(1)
    return Features(top.values[..., 0], top.values.sum(-1), _widest(band) / n, _widest(rest) / n,
                    _part(last, columns.sum(1), n), last.amax(2).sum(1) / n)  # fmt: skip


def classify(maps: Tensor, real: Tensor) -> Tensor:
    """Class of each map, as a number in ``CLASSES``: maps (B, head, U, U) and real (B, U) to (B, head).

    The strongest column holds 0.4 of the weight or the two strongest 0.7: vertical. Three neighbouring offsets between
    -3 and 3 hold half: diagonal; where both are so, the larger share decides. But where a map is vertical, and the
    offsets still hold 0.25 without the two columns, or where it is neither, and columns and offsets hold 0.25 each and
    0.6 together: vertical+diagonal. Else, where a cut of the sentence in two leaves 0.25 more weight within the parts
    than an even spread would, and rows are not peaked (mean largest weight below 0.5): block. A map whose rows are
    nearly even (mean largest weight below 1.5 times an even one) is heterogeneous, whatever else: in a short sentence
    two columns and three offsets are most of the map. Raises ValueError for maps that are not square.

    >>> maps = torch.stack([torch.eye(6), torch.eye(6)[:1].expand(6, 6), torch.full((6, 6), 1 / 6)])[None]
    >>> [CLASSES[i] for i in classify(maps, torch.ones(1, 6, dtype=torch.bool))[0]]
    ['diagonal', 'vertical', 'heterogeneous']
    """
    if maps.dim() != 4 or maps.shape[-1] != maps.shape[-2] or real.shape != (len(maps), maps.shape[-1]):
        raise ValueError(f"maps {tuple(maps.shape)}, real {tuple(real.shape)}; needed: (B, head, U, U) and (B, U)")
    f = features(maps, real)
    vertical, diagonal = (f.one >= ONE) | (f.two >= TWO), f.band >= BAND
    mixed = (f.rest >= EACH) & torch.where(vertical | diagonal, vertical, (f.two >= EACH) & (f.two + f.rest >= BOTH))
    block = (f.part >= PART) & (f.peak < FLAT)
    even = f.peak * real.sum(-1)[:, None] < EVEN
    out = torch.full(f.one.shape, 4, device=maps.device)
    column = vertical & ~(diagonal & (f.band > f.two))
    for test, number in ((block, 3), (diagonal, 1), (column, 0), (mixed, 2), (even, 4)):
        out.masked_fill_(test, number)
    return out


def _near(maps: Tensor) -> Tensor:
    """Each key's weights at the offsets REACH to -REACH, 0 where no query is: (B, U, U, head) to (B, U, 7, head)."""
    padded = F.pad(maps, (0, 0, 0, 0, REACH, REACH)).contiguous()
    batch, query, key, head = padded.stride()  # one key further is one row further on the same diagonal
    shape = len(maps), maps.shape[2], 2 * REACH + 1, maps.shape[3]
    return padded.as_strided(shape, (batch, query + key, query, head))


def _widest(diagonals: Tensor) -> Tensor:
    """Greatest sum over three neighbouring offsets: (B, offsets, head) to (B, head)."""
    return F.avg_pool1d(diagonals.transpose(1, 2), 3, 1).amax(-1) * 3


def _part(maps: Tensor, whole: Tensor, n: Tensor) -> Tensor:
    """Most weight within two parts, above an even spread's, over all cuts with three units or more on each side.

    Maps (B, U, U, head), the sum of each ``whole`` (B, head), units ``n`` (B, 1).
    """
    place, n = torch.arange(maps.shape[2], device=maps.device), n[..., None]
    cuts = place[3:-2, None]
    if not len(cuts):
        return torch.zeros_like(whole)
    # What crosses a cut is counted up from the left: a unit that comes over to the left part brings in what it has to
    # do with the units still right of it, and takes away what it had to do with those left of it.
    ahead = maps * (place - place[:, None]).sign()[..., None]
    across = (ahead.sum(2) - ahead.sum(1)).cumsum(1)[:, 2:-3]
    even = (cuts**2 + (n - cuts) ** 2) / n**2
    within = (whole[:, None] - across) / n - even
    return torch.where(n - cuts >= 3, within, 0.0).amax(1).clamp_min(0.0)


class Agreement(NamedTuple):
    """How far the rule and the labels agree: share, its 95 % interval, Cohen's kappa, n, and counts (label, rule).

    The interval is NaN for fewer than five maps.
    """

    share: float
    low: float
    high: float
    kappa: float
    n: int
    table: dict[tuple[str, str], int]


def labelled(path: Path = LABELLED) -> list[tuple[Tensor, str]]:
    """The maps labelled by eye: pairs of a map (U, U), in steps of 1/255, and its class."""
    rows = read_json(path, "maps")["maps"]
    read = [torch.frombuffer(bytearray(base64.b64decode(row["map"])), dtype=torch.uint8) for row in rows]
    return [(m.view(r["size"], r["size"]).float() / 255, r["label"]) for m, r in zip(read, rows, strict=True)]


def agreement(maps: list[tuple[Tensor, str]] | None = None) -> Agreement:
    """Compare :func:`classify` with labels, by default those made by eye.

    Kappa (Cohen 1960) is the share of agreement above what two raters with the same habits would reach by chance.

    >>> found = agreement()
    >>> found.n >= 100 and found.low <= found.share <= found.high
    True
    """
    from headtools.heads.bootstrap import bounds

    maps = labelled() if maps is None else maps
    said = [CLASSES[int(classify(m[None, None], torch.ones(1, len(m), dtype=torch.bool)))] for m, _ in maps]
    pairs = Counter((label, rule) for (_, label), rule in zip(maps, said, strict=True))
    hits = torch.tensor([float(label == rule) for (_, label), rule in zip(maps, said, strict=True)])
    low, high = bounds(hits, 0.0, 1.0)
    by_eye, by_rule = Counter(label for _, label in maps), Counter(said)
    chance = sum(by_eye[name] * by_rule[name] for name in CLASSES) / len(maps) ** 2
    share = float(hits.mean())
    kappa = (share - chance) / (1 - chance) if chance < 1 else 1.0
    return Agreement(share, float(low), float(high), kappa, len(maps), dict(pairs))
