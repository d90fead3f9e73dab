"""Two systems on the same examples: how far apart they are, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU


class Difference(NamedTuple):
    """What the second of two systems scores above the first, its 95 % interval, and how often the sign flips."""

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

    ``with_`` and ``without`` are translations, say of a model with a head and without it, and ``references`` the right
    ones: the score is then corpus BLEU, 0 to 100, as sacreBLEU computes it (Post 2018; ``metric`` is one of its BLEU
    objects, by default one for words as they are written, ``tokenize="none"``). Or they are tensors (B,) of one number
    per example, whose mean is the score.

    Examples are drawn with replacement ``n`` times, the same for both systems (Koehn 2004, aclanthology W04-3250).
    ``low`` and ``high`` hold the middle 95 % of the differences. ``p`` is the share of draws in which the difference
    has the other sign or is 0. Of BLEU only the counts of each sentence are kept, so that a draw costs a sum.

    Raises ``ValueError`` for fewer than two examples, lists of different lengths, missing or unused references and
    NaN, ``TypeError`` for other things.

    >>> right = ["der Hund schläft .", "die Katze sieht den Vogel .", "er liest das Buch ."] * 20
    >>> worse = [s.replace("den Vogel", "das Buch") for s in right]
    >>> found = paired_bootstrap(right, worse, right)
    >>> round(found.first), found.low <= found.difference <= found.high < 0, found.p
    (100, True, 0.0)
    """
    if n < 1:
        raise ValueError(f"n is how often examples are drawn, 1 or more, got {n}: 1000 is usual")
    if len(with_) != len(without) or len(with_) < 2:
        raise ValueError(f"two systems need the same two examples or more, got {len(with_)} and {len(without)}")
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(with_), (n, len(with_)), generator=generator)
    weights = torch.zeros(n, len(with_)).scatter_add_(1, draws, torch.ones(draws.shape)).double().numpy()
    weights = np.concatenate([np.ones((1, len(with_))), weights])  # first all examples once
    if isinstance(with_, Tensor) and isinstance(without, Tensor):
        if references is not None or metric is not None:
            raise ValueError("numbers are compared by their mean: leave references and metric out")
        scores = [_means(system, weights) for system in (with_, without)]
    else:
        for name, texts in (("with_", with_), ("without", without), ("references", references)):
            _check_texts(name, texts, len(with_))
        scores = [_bleu(list(system), list(references), metric, weights) for system in (with_, without)]
    apart = scores[1] - scores[0]
    observed, drawn = apart[0], apart[1:]
    flipped = float(np.mean(drawn * np.sign(observed) <= 0))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Difference(*map(float, (observed, low, high, flipped, scores[0][0], scores[1][0])))


def _means(values: Tensor, weights: np.ndarray) -> np.ndarray:
    if values.dim() != 1 or not values.isfinite().all():
        raise ValueError(f"a system is one finite number per example, (B,), got shape {tuple(values.shape)} or NaN")
    return weights @ values.detach().cpu().double().numpy() / len(values)


def _check_texts(name: str, texts: object, number: int) -> None:
    if texts is None:
        raise ValueError("BLEU needs the right translations: paired_bootstrap(with_, without, references)")
    wrong = isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(t, str) for t in texts)
    if wrong:
        raise TypeError(
            f'{name} must be a list of translations, e.g. ["der Hund schläft ."], got {type(texts).__name__}'
        )
    if len(texts) != number:
        raise ValueError(f"{name} has {len(texts)} sentences for {number} translations")


def _bleu(written: list[str], wanted: list[str], metric: BLEU | None, weights: np.ndarray) -> np.ndarray:
    """Return corpus BLEU for every row of weights, which say how often each sentence is taken: (rows,)."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(tokenize="none", force=True) if metric is None else metric
    if not isinstance(metric, BLEU):
        raise TypeError(f"metric must be sacrebleu.metrics.BLEU(...), got {type(metric).__name__}")
    counts = []
    for text, right in zip(written, wanted, strict=True):
        score = metric.corpus_score([text], [[right]])
        counts.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    sums = (weights @ np.array(counts, dtype=float)).round().astype(int)
    orders = (sums.shape[1] - 2) // 2
    options = {"smooth_method": metric.smooth_method, "smooth_value": metric.smooth_value,
               "effective_order": metric.effective_order, "max_ngram_order": orders}  # fmt: skip
    return np.array([
        BLEU.compute_bleu(row[2 : 2 + orders].tolist(), row[2 + orders :].tolist(), int(row[0]), int(row[1]), **options)
        .score for row in sums
    ])  # fmt: skip
