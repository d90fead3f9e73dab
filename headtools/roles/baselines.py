"""The best fixed offset of each role: what a head could score that knows positions only."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import torch

from headtools.heads.intervals import bounds, linearised_ratio
from headtools.roles.role import Frequencies, Pairs, builtin_roles
from headtools.roles.sentence import Sentence


def best_offsets(targets: Iterable[Mapping[str, Pairs]]) -> dict[str, int]:
    """The offset from query to key that hits most often, by role; of equals the nearest, and of those the earlier.

    >>> best_offsets([{"det up": [(0, (1,)), (2, (4,)), (5, (6,))]}])
    {'det up': 1}
    """
    counts: dict[str, Counter] = defaultdict(Counter)
    for sentence in targets:
        for role, queries in sentence.items():
            counts[role].update(key - query for query, keys in queries for key in keys if not isinstance(key, str))
    return {role: min(c, key=lambda offset: (-c[offset], abs(offset), offset)) for role, c in counts.items() if c}


def offset_baselines(sentences: Sequence[Sentence], fitted: Sequence[Sentence]) -> pd.DataFrame:
    """What the best fixed offset scores on each relation, without any model: one row a role, most pairs first.

    Columns: ``role`` (nsubj up, ...), ``offset`` (words from query to key, the most frequent in ``fitted``), ``score``
    (fraction of the pairs in ``sentences`` at that offset), ``low`` and ``high`` (95 % bootstrap interval over
    sentences that have such pairs, NaN for fewer than five), ``n`` pairs. Raises ValueError where no relation occurs
    in both.

    >>> from headtools.roles.corpus import corpus
    >>> frame = offset_baselines(corpus("english", "test"), corpus("english", "train")).set_index("role")
    >>> frame.loc["det up", "offset"], bool(0.3 < frame.loc["det up", "score"] < 0.9)
    (np.int64(1), True)
    """
    relations = dict.fromkeys(relation for sentence in sentences for relation in sentence.relations)
    roles = [r for r in builtin_roles("encoder", relations, Frequencies({})) if r.family == "syntactic"]
    offsets = best_offsets({role.name: role.targets(sentence) for role in roles} for sentence in fitted)
    rows = []
    for role in [role for role in roles if role.name in offsets]:
        offset = offsets[role.name]
        by_sentence = [role.targets(sentence) for sentence in sentences]
        by_sentence = [queries for queries in by_sentence if queries]  # only these say how much sentences vary
        hits = torch.tensor([[sum(q + offset in keys for q, keys in queries)] for queries in by_sentence]).double()
        n = torch.tensor([len(queries) for queries in by_sentence]).double()
        if len(n):
            low, high = bounds(linearised_ratio(hits, n), 0.0, 1.0)
            rows.append((role.name, offset, float(hits.sum() / n.sum()), float(low[0]), float(high[0]), int(n.sum())))
    if not rows:
        raise ValueError("no relation occurs in both; pass sentences with heads and relations, e.g. corpus('english')")
    frame = pd.DataFrame(rows, columns=["role", "offset", "score", "low", "high", "n"])
    return frame.sort_values("n", ascending=False, kind="stable", ignore_index=True)
