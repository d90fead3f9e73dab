"""Two systems on the same sentences: the difference of their BLEU, its interval (sacreBLEU has none), and p."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from scipy.special import stdtr

from headtools.heads.intervals import MIN_EXAMPLES, interval_around, resample_counts

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU


class Difference(NamedTuple):
    """The score of the second system minus that of the first, its 95 % interval, and its two-sided p."""

    difference: float
    low: float
    high: float
    p: float
    first: float
    second: float


def paired_bootstrap(with_: Sequence[str], without: Sequence[str], references: Sequence[str]) -> Difference:
    """Return how much the corpus BLEU of two systems differs, 0 to 100: second minus first, interval, and p.

    ``with_`` and ``without`` are translations of the same sentences, say of a model with a head and without it.
    BLEU is sacreBLEU's of tokenized words (Post 2018, ``tokenize="none"``). Sentences are drawn with replacement 1,000
    times, the same for both systems (Koehn 2004, aclanthology W04-3250); the interval is that of
    ``interval_around``. ``p`` is two-sided: the larger one of twice the fraction of resamples beyond 0 and of Student's
    t with their deviation. It is for one comparison: of many heads, correct all p by
    ``scipy.stats.false_discovery_control`` (Benjamini and Hochberg 1995).

    Raises ``ValueError`` for fewer than five sentences and lists of different lengths, ``TypeError`` for other types.

    >>> right = ["der Hund schläft .", "die Katze sieht den Vogel .", "er liest das Buch ."] * 20
    >>> result = paired_bootstrap(right, [s.replace("den Vogel", "das Buch") for s in right], right)
    >>> round(result.first), result.low <= result.difference <= result.high < 0, result.p < 0.001
    (100, True, True)
    """
    from sacrebleu.metrics import BLEU

    n = len(references)
    for name, texts in {"with_": with_, "without": without, "references": references}.items():
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts):
            raise TypeError(
                f'{name} must be a list of translations, e.g. ["der Hund schläft ."], got {type(texts).__name__}; '
                "numbers, one per example, are compared by ht.bootstrap(without - with_)"
            )
        if len(texts) != n or n < MIN_EXAMPLES:
            raise ValueError(
                f"two systems need {MIN_EXAMPLES} or more sentences, the same: got {len(texts)} {name}, {n} references"
            )
    metric = BLEU(tokenize="none", force=True)
    counts = [_ngram_counts(list(system), list(references), metric) for system in (with_, without)]
    # The first row stands for the sentences as they are; in each other row some came several times, and some never.
    draws = np.concatenate([np.ones((1, n)), *(some.numpy() for some in resample_counts(n, times=1000))])
    first, second = ([_corpus_bleu(metric, row) for row in draws @ table] for table in counts)
    differences = torch.tensor(second, dtype=torch.double) - torch.tensor(first, dtype=torch.double)
    difference, replicas = differences[0], differences[1:]
    low, high = interval_around(difference, replicas, n, 0.95)
    # Twice the smaller tail, and t, which also says how small p is where no resample lies beyond 0.
    beyond = 2 * min((replicas <= 0).double().mean(), (replicas >= 0).double().mean())
    student = 2 * stdtr(n - 1, -float(difference.abs() / replicas.std().clamp_min(1e-12)))
    p = float(min(1.0, max(beyond, student)))
    return Difference(float(difference), float(low), float(high), p, first[0], second[0])


def _ngram_counts(hypotheses: list[str], references: list[str], metric: BLEU) -> np.ndarray:
    """Return what BLEU counts in each sentence: (sentences, 2 lengths, then matching and all n-grams by order)."""
    scores = [
        metric.corpus_score([text], [[reference]]) for text, reference in zip(hypotheses, references, strict=True)
    ]
    return np.array([[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores], dtype=float)


def _corpus_bleu(metric: BLEU, sums: np.ndarray) -> float:
    """Return corpus BLEU for summed counts."""
    lengths, (matching, total) = sums[:2], np.split(sums[2:].round().astype(int), 2)  # whole again after the product
    counts = (matching.tolist(), total.tolist(), *lengths.round().astype(int).tolist())
    settings = {name: getattr(metric, name) for name in ("smooth_method", "smooth_value", "effective_order")}
    return metric.compute_bleu(*counts, **settings, max_ngram_order=len(total)).score
