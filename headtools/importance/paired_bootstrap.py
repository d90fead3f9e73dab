"""Two systems on the same examples: their difference, its interval, and p."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headtools.heads.intervals import (
    MANY_EXAMPLES,
    MIN_EXAMPLES,
    bootstrap,
    interval_around,
    percentiles,
    resample_counts,
)

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU

_CONFIDENCE_LEVEL = 0.95


class Difference(NamedTuple):
    """The score of the second system minus that of the first, its 95 % interval, and how often the sign flips."""

    difference: float
    low: float
    high: float
    p: float
    first: float
    second: float


def paired_bootstrap(
    with_: Sequence[str] | Tensor,
    without: Sequence[str] | Tensor,
    references: Sequence[str] | None = None,
    metric: BLEU | None = None,
    n: int = 1000,
    seed: int = 0,
) -> Difference:
    """Return how much two systems differ on the same examples: second minus first, interval, and p.

    ``with_`` and ``without`` are translations, say of a model with a head and without it, and ``references`` the
    reference translations: the score is then corpus BLEU, 0 to 100, as sacreBLEU computes it (Post 2018; ``metric`` is
    one of its BLEU objects, by default one for tokenized words, ``tokenize="none"``). Or they are tensors (B,) of one
    number per example, whose mean is the score.

    Examples are drawn with replacement ``n`` times, the same for both systems (Koehn 2004, aclanthology W04-3250).
    ``low`` and ``high`` hold the middle 95 % of the differences. With fewer than 100 examples that is too narrow: the
    interval is then widened as ``bootstrap`` says, and ``p``, the fraction of resamples in which the difference has the
    other sign or is 0, is too small. For BLEU only the counts of each sentence are stored, so that a resample is a sum.

    Raises ``ValueError`` for fewer than five examples, lists of different lengths, missing or unused references and
    NaN, ``TypeError`` for other types.

    >>> references = ["der Hund schläft .", "die Katze sieht den Vogel .", "er liest das Buch ."] * 20
    >>> worse = [s.replace("den Vogel", "das Buch") for s in references]
    >>> result = paired_bootstrap(references, worse, references)
    >>> round(result.first), result.low <= result.difference <= result.high < 0, result.p
    (100, True, 0.0)
    """
    if n < 1:
        raise ValueError(f"n is how often examples are drawn, 1 or more, got {n}: 1000 is usual")
    n_examples = len(with_)
    if len(without) != n_examples:
        raise ValueError(f"two systems need the same examples, got {n_examples} and {len(without)}")
    if isinstance(with_, Tensor) and isinstance(without, Tensor):
        if references is not None or metric is not None:
            raise ValueError("numbers are compared by their mean: leave references and metric out")
        tables, score = [_as_table(system) for system in (with_, without)], _mean
    else:
        for name, texts in (("with_", with_), ("without", without), ("references", references)):
            _check_texts(name, texts, n_examples)
        metric = _bleu(metric)
        tables = [_bleu_counts(list(system), list(references), metric) for system in (with_, without)]
        score = partial(_corpus_bleu, metric)
    if n_examples < MIN_EXAMPLES:
        raise ValueError(
            f"two systems need {MIN_EXAMPLES} examples or more, got {n_examples}: fewer do not show how they vary"
        )
    first, second = (score(table.sum(0, keepdims=True), n_examples).item() for table in tables)
    # A resample of examples is a row of counts; counts @ table sums each column over the resample.
    resampled = [
        score(np.concatenate([counts.numpy() @ table for counts in resample_counts(n_examples, n, seed)]), n_examples)
        for table in tables
    ]
    difference, differences = second - first, resampled[1] - resampled[0]
    p = float(np.mean(differences * np.sign(difference) <= 0))
    # ``bootstrap`` knows intervals of means; those of BLEU come from its own resamples.
    if score is _mean:
        low, high = bootstrap(torch.from_numpy(tables[1] - tables[0])[:, 0], times=n, seed=seed)
    elif n_examples < MANY_EXAMPLES:
        low, high = interval_around(
            torch.tensor(difference).double(), torch.from_numpy(differences), n_examples, _CONFIDENCE_LEVEL
        )
    else:
        low, high = percentiles(torch.from_numpy(differences), _CONFIDENCE_LEVEL)
    return Difference(difference, float(low), float(high), p, first, second)


def _as_table(values: Tensor) -> np.ndarray:
    """Return one number per example as a table (examples, 1)."""
    if values.dim() != 1 or not values.isfinite().all():
        raise ValueError(f"a system is one finite number per example, (B,), got shape {tuple(values.shape)} or NaN")
    return values.detach().cpu().double().numpy()[:, None]


def _mean(sums: np.ndarray, size: int) -> np.ndarray:
    return sums[:, 0] / size


def _check_texts(name: str, texts: object, expected: int) -> None:
    if texts is None:
        raise ValueError("BLEU needs reference translations: paired_bootstrap(with_, without, references)")
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts):
        raise TypeError(
            f'{name} must be a list of translations, e.g. ["der Hund schläft ."], got {type(texts).__name__}'
        )
    if len(texts) != expected:
        raise ValueError(f"{name} has {len(texts)} sentences for {expected} translations")


def _bleu(metric: BLEU | None) -> BLEU:
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", force=True) if metric is None else metric
    if not isinstance(metric, BLEU):
        raise TypeError(f"metric must be sacrebleu.metrics.BLEU(...), got {type(metric).__name__}")
    return metric


def _bleu_counts(hypotheses: list[str], references: list[str], metric: BLEU) -> np.ndarray:
    """Return what BLEU counts in each sentence: (sentences, 2 lengths, then matching and all n-grams by order)."""
    rows = []
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        score = metric.corpus_score([hypothesis], [[reference]])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=float)


def _corpus_bleu(metric: BLEU, sums: np.ndarray, _size: int) -> np.ndarray:
    """Return corpus BLEU for every row of summed counts: (rows,)."""
    # Whole numbers again, after sums in floating point.
    sums = sums.round().astype(int)
    orders = (sums.shape[1] - 2) // 2
    options = {
        "smooth_method": metric.smooth_method,
        "smooth_value": metric.smooth_value,
        "effective_order": metric.effective_order,
        "max_ngram_order": orders,
    }
    return np.array(
        [
            metric.compute_bleu(
                row[2 : 2 + orders].tolist(), row[2 + orders :].tolist(), int(row[0]), int(row[1]), **options
            ).score
            for row in sums
        ]
    )
