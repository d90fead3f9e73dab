"""What kinds of roles there are, how each is measured, and what it takes for a head to hold one."""

import re
from dataclasses import dataclass
from math import inf

from headtools.roles.conventions import Conventions
from headtools.roles.map_classes import CLASSES

STATISTICS = ("confidence", "entropy", "distance", "rarity", "content")
WEIGHTS = ("previous", "next", "self", "first", "bos", "eos", "cls", "sep", "punctuation", "duplicate", "induction")
RARE = ("rarest", "two rarest", "rarest other")
OFFSET_BASED = ("syntactic", "rare", "alignment")  # families whose baseline is the best fixed offset
MAPS = tuple(f"map {name}" for name in CLASSES)


@dataclass(frozen=True)
class Bar:
    """A role holds if the lower end of the interval of ``score - scale * baseline`` is at least ``above``."""

    scale: float
    above: float


def family(role: str) -> str:
    """The family of a role: positional, weight, syntactic, coreference, rare, statistic, content, map or alignment.

    >>> family("offset -1"), family("nsubj up"), family("entropy")
    ('positional', 'syntactic', 'statistic')
    """
    if role.startswith("offset "):
        return "positional"
    if role in WEIGHTS:
        return "weight"
    if role in RARE:
        return "rare"
    if role in MAPS:
        return "map"
    if role in ("coreference", "alignment", "content"):
        return role
    if role in STATISTICS:
        return "statistic"
    if re.search(r" (up|down)$", role):
        return "syntactic"
    raise ValueError(f"no role {role!r}; there are offset -1, nsubj up, coreference, rarest, {', '.join(STATISTICS)}")


def span(role: str) -> tuple[float, float]:
    """Between what a role's score can lie: shares and weights between 0 and 1, nats and units from 0 on.

    >>> span("nsubj up"), span("content"), span("entropy")
    ((0.0, 1.0), (-1.0, 1.0), (0.0, inf))
    """
    if role in ("entropy", "distance", "rarity"):
        return 0.0, inf
    return (-1.0 if role == "content" else 0.0), 1.0


def bar(role: str, conventions: Conventions) -> Bar:
    """What a role asks of a head.

    Positional: nine looks in ten (Voita et al. 2019, 5.1). Relations, coreference, alignment: ``margin`` above the
    baseline (Voita, 5.2). Rarest word: half of the looks. Weights: half of the weight (Clark et al. 2019, 3.1). A map
    class: half of the maps. Confidence: 0.8 (Voita, 4). Entropy: nine tenths of the greatest. Distance: a quarter
    further than an even spread. Rarity: 1 nat above an even choice. Content: a correlation of 0.1. The bars for rarest
    words, classes, entropy, distance, rarity and content are ours.
    """
    return {
        "positional": Bar(0, 0.9), "weight": Bar(0, 0.5), "rare": Bar(0, 0.5), "map": Bar(0, 0.5),
        "syntactic": Bar(1, conventions.margin), "coreference": Bar(1, conventions.margin),
        "alignment": Bar(1, conventions.margin), "content": Bar(1, 0.1),
    }.get(family(role)) or {
        "confidence": Bar(0, 0.8), "entropy": Bar(0.9, 0), "distance": Bar(1.25, 0), "rarity": Bar(1, 1),
    }[role]  # fmt: skip
