"""Two linear probes behind one form: a closed-form discriminant for many places at once, and logistic regression.

Both get x (place, word, features), the same words read at many places; ``y`` (word,) the numbers of their labels, the
first ``len(fold)`` of them for fitting; and ``fold`` the part of the cross-validation that each of those is in. Both
choose how strongly to hold the probe back by cross-validation, place by place, and give predictions for the words that
are left: (place, tested).
"""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headtools.heads._precision import without_autocast

# Share of the identity in the discriminant's covariance, and scikit-learn's C, the most held back first.
SHRINKAGES = (0.3, 0.03, 0.003)
STRENGTHS = (0.001, 0.03, 1.0)


@without_autocast
def discriminant(x: Tensor, y: Tensor, fold: Tensor, shrinkages: Sequence[float] = SHRINKAGES) -> Tensor:
    """Fisher's linear discriminant: labels are Gaussians with one covariance, shrunk towards the identity.

    A word gets the label with the greatest μᵀ Σ⁻¹ x − ½ μᵀ Σ⁻¹ μ + log π, with Σ the covariance within labels of
    standardised features, shrunk to (1 − s) Σ + s I (Hastie, Tibshirani & Friedman 2009, equations 4.10 and 4.14). All
    it needs are sums of each part of the cross-validation, so a hundred places cost little more than one.

    >>> x = torch.tensor([[[-1.0], [1.0], [-1.1], [1.1], [-0.9], [2.0]]])
    >>> discriminant(x, torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    tensor([[0, 1]])
    """
    fitted, n_labels = len(fold), int(y.max()) + 1
    x = standard(x, fitted)
    known, hot = x[:, :fitted], torch.nn.functional.one_hot(y[:fitted], n_labels).to(x.dtype)
    parts = [fold == f for f in fold.unique()]
    sums = [_sums(known[:, part], hot[part]) for part in parts]
    whole = tuple(torch.stack(each).sum(0) for each in zip(*sums, strict=True))
    hits = torch.zeros(len(shrinkages), len(x))
    if len(shrinkages) > 1:
        for part, inside in zip(parts, sums, strict=True):
            rest = tuple(a - b for a, b in zip(whole, inside, strict=True))
            for i, shrinkage in enumerate(shrinkages):
                told = _answer(known[:, part], _rule(*rest, shrinkage))
                hits[i] += (told == y[:fitted][part]).sum(-1)
    best = hits.argmax(0)  # the first of equals holds the probe back most
    out = torch.empty(len(x), x.shape[1] - fitted, dtype=torch.long)
    for i in best.unique().tolist():
        some = best == i
        out[some] = _answer(x[some, fitted:], _rule(whole[0], whole[1][some], whole[2][some], shrinkages[i]))
    return out


def logistic(x: Tensor, y: Tensor, fold: Tensor, strengths: Sequence[float] = STRENGTHS) -> Tensor:
    """scikit-learn's multinomial logistic regression, place by place; ``strengths`` are its ``C``.

    Raises ImportError without scikit-learn.
    """
    regression = _regression()
    fitted = len(fold)
    table, y, fold = standard(x, fitted).numpy(), y.numpy(), fold.numpy()
    out = []
    for one in table:
        known, told = one[:fitted], y[:fitted]
        hits = np.zeros(len(strengths))
        for f in np.unique(fold) if len(strengths) > 1 else ():
            inside = fold != f
            for i, fit in enumerate(_path(regression, strengths, known[inside], told[inside])):
                hits[i] += (fit.predict(known[~inside]) == told[~inside]).sum()
        *_, fit = _path(regression, [strengths[int(hits.argmax())]], known, told)
        out.append(torch.from_numpy(fit.predict(one[fitted:])))
    return torch.stack(out)


SOLVERS = {"discriminant": discriminant, "logistic": logistic}


def standard(x: Tensor, fitted: int) -> Tensor:
    """Features with mean 0 and variance 1 over the words for fitting; one that never changes becomes 0.

    >>> standard(torch.tensor([[[1.0, 5.0], [3.0, 5.0], [5.0, 9.0]]]), fitted=2)
    tensor([[[-1.,  0.],
             [ 1.,  0.],
             [ 3.,  0.]]])
    """
    mean = x[:, :fitted].mean(1, keepdim=True)
    spread = x[:, :fitted].std(1, keepdim=True, correction=0)
    moves = spread > 1e-6 * mean.abs()
    return torch.where(moves, (x - mean) / torch.where(moves, spread, 1.0), 0.0)


def _sums(x: Tensor, hot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Words of each label (label,), sums of their vectors (place, label, features), products (place, f, f)."""
    return hot.sum(0).double(), (hot.T @ x).double(), (x.transpose(1, 2) @ x).double()


def _rule(count: Tensor, total: Tensor, products: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weights (place, features, label) and biases (place, 1, label) of the discriminant."""
    mean = total / count.clamp_min(1)[:, None]
    within = (products - total.transpose(1, 2) @ mean) / count.sum()
    eye = torch.eye(within.shape[-1], dtype=within.dtype)
    weights = torch.linalg.solve((1 - shrinkage) * within + shrinkage * eye, mean.transpose(1, 2))
    bias = (count / count.sum()).log() - (mean * weights.transpose(1, 2)).sum(-1) / 2  # −∞ for a label without words
    return weights.float(), bias[:, None].float()


def _answer(x: Tensor, rule: tuple[Tensor, Tensor]) -> Tensor:
    return (x @ rule[0] + rule[1]).argmax(-1)


def _path(regression: type, strengths: Sequence[float], x: np.ndarray, y: np.ndarray) -> Iterator:
    """Probes from the most held back to the freest, each starting where the one before it ended."""
    one = regression(solver="lbfgs", max_iter=500, tol=1e-3, warm_start=True)
    for strength in strengths:
        one.set_params(C=strength)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a path that has not quite converged; its accuracy tells
            yield one.fit(x, y)


def _regression() -> type:
    """scikit-learn's logistic regression, imported when it is needed."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError(
            "logistic probes need scikit-learn, which is not installed here; write: pip install scikit-learn"
        ) from error
    return LogisticRegression
