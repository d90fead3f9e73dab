"""Two linear probes with one interface: a closed-form discriminant for many places at once, and logistic regression.

Both take x (place, word, features), vectors of the same words read at many places in a model; ``y`` (word,) the indices
of their labels, the first ``len(fold)`` of them for fitting; and ``fold`` the cross-validation fold of each of those.
Both choose the strength of regularisation by cross-validation, for each place by itself, and return the labels that
they predict for the other words, those for testing: (place, test word).
"""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from headtools.heads._devices import without_autocast

# Weight of the identity in the discriminant's covariance, and scikit-learn's C: the strongest regularisation first.
SHRINKAGES = (0.3, 0.03, 0.003)
STRENGTHS = (0.001, 0.03, 1.0)


@without_autocast
def discriminant(x: Tensor, y: Tensor, fold: Tensor, shrinkages: Sequence[float] = SHRINKAGES) -> Tensor:
    """Fisher's linear discriminant: labels are Gaussians with one covariance, shrunk towards the identity.

    A word gets the label with the greatest μᵀ Σ⁻¹ x − ½ μᵀ Σ⁻¹ μ + log π, with Σ the covariance within labels of
    standardised features, shrunk to (1 − s) Σ + s I (Hastie, Tibshirani & Friedman 2009, equations 4.10 and 4.14). It
    needs only sums over each fold, so a hundred places cost little more than one.

    >>> x = torch.tensor([[[-1.0], [1.0], [-1.1], [1.1], [-0.9], [2.0]]])
    >>> discriminant(x, torch.tensor([0, 1, 0, 1, 0, 0]), torch.tensor([0, 0, 1, 1]))
    tensor([[0, 1]])
    """
    n_fit, n_labels = len(fold), int(y.max()) + 1
    x = standardise(x, n_fit)
    x_fit, one_hot = x[:, :n_fit], torch.nn.functional.one_hot(y[:n_fit], n_labels).to(x.dtype)
    folds = [fold == f for f in fold.unique()]
    by_fold = [_sufficient_statistics(x_fit[:, held_out], one_hot[held_out]) for held_out in folds]
    total = tuple(torch.stack(sums).sum(0) for sums in zip(*by_fold, strict=True))
    hits = torch.zeros(len(shrinkages), len(x))
    if len(shrinkages) > 1:
        for held_out, own in zip(folds, by_fold, strict=True):
            others = tuple(a - b for a, b in zip(total, own, strict=True))  # the statistics of all other folds
            for i, shrinkage in enumerate(shrinkages):
                predicted = _predict(x_fit[:, held_out], _fit(*others, shrinkage))
                hits[i] += (predicted == y[:n_fit][held_out]).sum(-1)
    best = hits.argmax(0)  # (place,); of equals the first, which is regularised most
    out = torch.empty(len(x), x.shape[1] - n_fit, dtype=torch.long)
    for i in best.unique().tolist():
        is_best = best == i
        out[is_best] = _predict(x[is_best, n_fit:], _fit(total[0], total[1][is_best], total[2][is_best], shrinkages[i]))
    return out


def logistic(x: Tensor, y: Tensor, fold: Tensor, strengths: Sequence[float] = STRENGTHS) -> Tensor:
    """scikit-learn's multinomial logistic regression, place by place; ``strengths`` are its ``C``.

    Raises ImportError without scikit-learn.
    """
    regression = _import_regression()
    n_fit = len(fold)
    vectors, y, fold = standardise(x, n_fit).numpy(), y.numpy(), fold.numpy()
    y_fit = y[:n_fit]
    out = []
    for x_place in vectors:
        x_fit = x_place[:n_fit]
        hits = np.zeros(len(strengths))
        for f in np.unique(fold) if len(strengths) > 1 else ():
            held_out = fold == f
            for i, fitted in enumerate(_fit_path(regression, strengths, x_fit[~held_out], y_fit[~held_out])):
                hits[i] += (fitted.predict(x_fit[held_out]) == y_fit[held_out]).sum()
        *_, fitted = _fit_path(regression, [strengths[int(hits.argmax())]], x_fit, y_fit)
        out.append(torch.from_numpy(fitted.predict(x_place[n_fit:])))
    return torch.stack(out)


SOLVERS = {"discriminant": discriminant, "logistic": logistic}


def standardise(x: Tensor, n_fit: int) -> Tensor:
    """Features with mean 0 and variance 1 over the first ``n_fit`` words; one that is constant there becomes 0.

    >>> standardise(torch.tensor([[[1.0, 5.0], [3.0, 5.0], [5.0, 9.0]]]), n_fit=2)
    tensor([[[-1.,  0.],
             [ 1.,  0.],
             [ 3.,  0.]]])
    """
    mean = x[:, :n_fit].mean(1, keepdim=True)
    deviation = x[:, :n_fit].std(1, keepdim=True, correction=0)
    varies = deviation > 1e-6 * mean.abs()
    return torch.where(varies, (x - mean) / torch.where(varies, deviation, 1.0), 0.0)


def _sufficient_statistics(x: Tensor, one_hot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Words of each label (label,), sums of their vectors (place, label, features), products xᵀx (place, f, f)."""
    return one_hot.sum(0).double(), (one_hot.T @ x).double(), (x.transpose(1, 2) @ x).double()


def _fit(count: Tensor, total: Tensor, products: Tensor, shrinkage: float) -> tuple[Tensor, Tensor]:
    """Weights (place, features, label) and biases (place, 1, label) of the discriminant."""
    # A label may have no word in these folds; its bias, log 0, then keeps it from being predicted.
    mean = total / count.clamp_min(1)[:, None]
    within = (products - total.transpose(1, 2) @ mean) / count.sum()
    identity = torch.eye(within.shape[-1], dtype=within.dtype)
    weights = torch.linalg.solve((1 - shrinkage) * within + shrinkage * identity, mean.transpose(1, 2))  # Σ⁻¹ μ
    bias = (count / count.sum()).log() - (mean * weights.transpose(1, 2)).sum(-1) / 2  # −∞ for a label without words
    return weights.float(), bias[:, None].float()


def _predict(x: Tensor, fitted: tuple[Tensor, Tensor]) -> Tensor:
    weights, bias = fitted
    return (x @ weights + bias).argmax(-1)


def _fit_path(regression: type, strengths: Sequence[float], x: np.ndarray, y: np.ndarray) -> Iterator:
    """Yield the regression fitted with each strength, each time from the weights of the previous one."""
    model = regression(solver="lbfgs", max_iter=500, tol=1e-3, warm_start=True)
    for strength in strengths:
        model.set_params(C=strength)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged; cross-validation judges it by its accuracy
            yield model.fit(x, y)


def _import_regression() -> type:
    """scikit-learn's logistic regression, imported when it is needed."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise ImportError(
            "logistic probes need scikit-learn, which is not installed here; write: pip install scikit-learn"
        ) from error
    return LogisticRegression
