"""The roles there are: their names, their families, the range of their scores, and what it takes to hold one."""

import re
from collections.abc import Iterable
from math import inf

from headtools.roles._taxonomy.vocabulary import SPECIAL_TOKENS
from headtools.roles.conventions import Conventions
from headtools.roles.map_classes import CLASSES

STATISTICS = ("confidence", "entropy", "distance", "rarity", "content")
WEIGHTS = ("previous", "next", "self", "first", *SPECIAL_TOKENS, "punctuation", "duplicate", "induction")
NO_RELATION = ("root", "punct")
RARE = ("rarest", "two rarest", "rarest other")
OFFSET_BASED = ("syntactic", "rare", "alignment")  # families whose baseline is the best fixed offset
MAPS = tuple(f"map {name}" for name in CLASSES)


def role_names(
    kind: str, relations: Iterable[str], translated: bool, conventions: Conventions, requested: list[str] | None
) -> list[str]:
    """The roles that are scored in one kind of attention, in the order of the table.

    ``requested`` are roles and families (None: all). Raises ValueError for one that does not exist.
    """
    offsets = [f"offset {k:+d}" for k in range(-conventions.span, conventions.span + 1)]
    without_grammar = [*offsets, *WEIGHTS, "confidence", "entropy", "distance", "content", *MAPS]
    syntactic = [f"{name} {way}" for name in relations if name not in NO_RELATION for way in ("up", "down")]
    if kind == "cross":
        names = ["alignment", *SPECIAL_TOKENS, "punctuation", "confidence", "entropy"]
    elif kind == "decoder" and translated:  # target words have no annotation
        names = without_grammar
    else:
        names = [*without_grammar, "rarity", *syntactic, "coreference", *RARE]
    existing = {*without_grammar, *RARE, *STATISTICS, *syntactic, "coreference", "alignment"}
    families = {family(name) for name in existing}
    for name in requested or ():
        if name not in existing and name not in families:
            examples = [*without_grammar[:2], *syntactic[:2], "confidence"]
            raise ValueError(
                f"no role or family {name!r}; there is {', '.join(sorted(families))}, and roles such as "
                f"{', '.join(examples)}"
            )
    return [name for name in names if requested is None or name in requested or family(name) in requested]


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


def score_range(role: str) -> tuple[float, float]:
    """The least and the greatest score of a role: fractions and weights are in [0, 1], nats and distances from 0 on.

    >>> score_range("nsubj up"), score_range("content"), score_range("entropy")
    ((0.0, 1.0), (-1.0, 1.0), (0.0, inf))
    """
    if role in ("entropy", "distance", "rarity"):
        return 0.0, inf
    return (-1.0 if role == "content" else 0.0), 1.0


def threshold(role: str, conventions: Conventions) -> tuple[float, float]:
    """What a head needs to hold a role: (scale, minimum) for the lower end of ``score - scale * baseline``.

    Positional: nine queries in ten (Voita et al. 2019, 5.1). Relations, coreference, alignment: ``margin`` above the
    baseline (Voita, 5.2). Rarest word: half of the queries. Weights: half of the weight (Clark et al. 2019, 3.1). A
    map class: half of the maps. Confidence: 0.8 (Voita, 4). Entropy: nine tenths of the greatest. Distance: a quarter
    more than uniform attention has. Rarity: 1 nat above a uniform choice. Content: a correlation of 0.1. The
    thresholds of rarest words, map classes, entropy, distance, rarity and content are ours.
    """
    return {
        "positional": (0, 0.9),
        "weight": (0, 0.5),
        "rare": (0, 0.5),
        "map": (0, 0.5),
        "content": (1, 0.1),
        "syntactic": (1, conventions.margin),
        "coreference": (1, conventions.margin),
        "alignment": (1, conventions.margin),
        "confidence": (0, 0.8),
        "entropy": (0.9, 0),
        "distance": (1.25, 0),
        "rarity": (1, 1),
    }[role if family(role) == "statistic" else family(role)]
