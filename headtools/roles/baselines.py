"""The best fixed offset of each role: what a head could score that knows positions only."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import pandas as pd
import torch

from headtools.heads.intervals import bounds
from headtools.roles._taxonomy.roles import family
from headtools.roles._taxonomy.targets import Targets, argmax_targets
from headtools.roles._taxonomy.vocabulary import count_words
from headtools.roles.conventions import VOITA
from headtools.roles.sentence import Sentence

BestOffsets = dict[str, int]


def best_offsets(targets: Iterable[Targets]) -> BestOffsets:
    """The offset from query to key that hits most often, by role; of equals the nearest, and of those the earlier.

    >>> best_offsets([{"det up": [(0, (1,)), (2, (4,)), (5, (6,))]}])
    {'det up': 1}
    """
    counts: dict[str, Counter] = defaultdict(Counter)
    for sentence in targets:
        for role, queries in sentence.items():
            counts[role].update(key - query for query, keys in queries for key in keys)
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
    scored, reference = ([_relations(s) for s in corpus] for corpus in (sentences, fitted))
    offsets = best_offsets(reference)
    rows = []
    for role in dict.fromkeys(role for targets in scored for role in targets if role in offsets):
        offset = offsets[role]
        by_sentence = [targets.get(role, []) for targets in scored]
        hits = torch.tensor(
            [[sum(query + offset in keys for query, keys in queries), len(queries)] for queries in by_sentence],
            dtype=torch.float64,
        )
        hits = hits[hits[:, 1] > 0]  # (sentence, 2): only sentences with such pairs say how much they vary
        fraction = float(hits[:, 0].sum() / hits[:, 1].sum())
        # The fraction is a ratio of two sums; its interval is that of the linearised ratio.
        low, high = bounds((hits[:, 0] - fraction * hits[:, 1]) / hits[:, 1].mean() + fraction, 0.0, 1.0)
        rows.append((role, offset, fraction, float(low), float(high), int(hits[:, 1].sum())))
    if not rows:
        raise ValueError("no relation occurs in both; pass sentences with heads and relations, e.g. corpus('english')")
    frame = pd.DataFrame(rows, columns=["role", "offset", "score", "low", "high", "n"])
    return frame.sort_values("n", ascending=False, kind="stable", ignore_index=True)


def _relations(sentence: Sentence) -> Targets:
    words = range(len(sentence.words))
    targets = argmax_targets("encoder", sentence, words, words, count_words(None, [], None), VOITA)
    return {role: queries for role, queries in targets.items() if family(role) == "syntactic"}
