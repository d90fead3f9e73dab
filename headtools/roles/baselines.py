"""The best fixed offset of each role: what a head without grammar could know."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from headtools.heads.bootstrap import bounds
from headtools.roles._taxonomy.families import family
from headtools.roles._taxonomy.pairing import Partners
from headtools.roles._taxonomy.targets import Found, looked_at
from headtools.roles.conventions import VOITA
from headtools.roles.sentence import Sentence

Usual = dict[str, int]
Offsets = dict[str, Counter]


def best_offsets(partners: Iterable[Found]) -> Usual:
    """The offset from query to key that hits most often, by role; of equals the nearest, and of those the earlier.

    >>> best_offsets([{"det up": [(0, (1,)), (2, (4,)), (5, (6,))]}])
    {'det up': 1}
    """
    count: Offsets = defaultdict(Counter)
    for sentence in partners:
        for role, some in sentence.items():
            count[role].update(k - q for q, keys in some for k in set(keys))
    return commonest(count)


def count_offsets(found: Partners, roles: Sequence[str], into: Offsets) -> None:
    """Count how far every key is from its query, by role."""
    pairs = np.stack([found.role[found.owner], found.key - found.query[found.owner]])
    for (role, offset), n in zip(*(some.tolist() for some in _distinct(pairs)), strict=True):
        into.setdefault(roles[role], Counter())[offset] += n


def commonest(count: Mapping[str, Counter]) -> Usual:
    """The offset counted most often, by role, as :func:`best_offsets` chooses it."""
    return {role: min(c, key=lambda k: (-c[k], abs(k), k)) for role, c in count.items() if c}


def _distinct(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different columns of (2, P), as (C, 2), and how often each occurs."""
    width = 1 + 2 * np.abs(pairs[1]).max(initial=0)
    found, n = np.unique(pairs[0] * width + pairs[1] + width // 2, return_counts=True)
    return np.stack([found // width, found % width - width // 2], 1), n


def offset_baselines(sentences: Sequence[Sentence], fitted: Sequence[Sentence]) -> pd.DataFrame:
    """What the best fixed offset scores on each relation, without any model: one row a role, most pairs first.

    Columns: ``role`` (nsubj up, ...), ``offset`` (words from query to key, the most frequent in ``fitted``), ``score``
    (share of the pairs in ``sentences`` that lie there), ``low`` and ``high`` (95 % bootstrap interval over
    sentences that have such pairs, NaN for fewer than five), ``n`` pairs. Raises ValueError where either has no
    relations.

    >>> from headtools.roles.corpus import corpus
    >>> frame = offset_baselines(corpus("english", "test"), corpus("english", "train")).set_index("role")
    >>> frame.loc["det up", "offset"], bool(0.3 < frame.loc["det up", "score"] < 0.9)
    (np.int64(1), True)
    """
    scored, known = ([_relations(s) for s in some] for some in (sentences, fitted))
    usual = best_offsets(known)
    rows = []
    for role in dict.fromkeys(role for found in scored for role in found if role in usual):
        hits = torch.tensor([[sum(q + usual[role] in keys for q, keys in found.get(role, [])),
                              len(found.get(role, []))] for found in scored], dtype=torch.float64)  # fmt: skip
        hits = hits[hits[:, 1] > 0]  # only sentences with such pairs say how much they vary
        share = float(hits[:, 0].sum() / hits[:, 1].sum())
        # A share is a ratio of two sums; its interval is that of the linearised ratio.
        low, high = bounds((hits[:, 0] - share * hits[:, 1]) / hits[:, 1].mean() + share, 0.0, 1.0)
        rows.append((role, usual[role], share, float(low), float(high), int(hits[:, 1].sum())))
    if not rows:
        raise ValueError("no relation occurs in both; pass sentences with heads and relations, e.g. corpus('english')")
    frame = pd.DataFrame(rows, columns=["role", "offset", "score", "low", "high", "n"])
    return frame.sort_values("n", ascending=False, kind="stable", ignore_index=True)


def _relations(sentence: Sentence) -> Found:
    places = {i: [i] for i in range(len(sentence.words))}
    found = looked_at(sentence, places, len(sentence.words), VOITA, {})
    return {role: some for role, some in found.items() if family(role) == "syntactic"}
