"""Two linear probes with one interface, and cross-validation of the strength of their regularisation.

A probe is a function ``fit(x, y, strength)`` of vectors x (place, word, features) and indices of labels y (word,); it
returns a function from vectors (place, word, features) to the labels that it predicts, (place, word).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from headtools.heads._devices import without_autocast

Predict = Callable[[Tensor], Tensor]


def discriminant(x: Tensor, y: Tensor, shrinkage: float) -> Predict:
    """Fisher's linear discriminant: labels are Gaussians with one covariance, shrunk towards the identity.

    A word gets the label with the greatest μᵀ Σ⁻¹ x − ½ μᵀ Σ⁻¹ μ + log π, with Σ the covariance within labels of
    standardised features, shrunk to (1 − s) Σ + s I (Hastie, Tibshirani & Friedman 2009, equations 4.10 and 4.14). In
    closed form for all places at once; scikit-learn's shrinks each label's covariance to its own mean variance.

    >>> x = torch.tensor([[[-1.0], [1.0], [-1.1], [1.1]]])
    >>> discriminant(x, torch.tensor([0, 1, 0, 1]), 0.03)(torch.tensor([[[-0.9], [2.0]]]))
    tensor([[0, 1]])
    """
    x, one_hot = x.double(), torch.nn.functional.one_hot(y).double()  # (word, label)
    count = one_hot.sum(0)
    # A label may have no word in these folds; its bias, log 0, then keeps it from being predicted.
    mean = one_hot.T @ x / count.clamp_min(1)[:, None]  # (place, label, features)
    within = (x.transpose(1, 2) @ x - mean.transpose(1, 2) @ (mean * count[:, None])) / len(y)
    covariance = (1 - shrinkage) * within + shrinkage * torch.eye(x.shape[-1]).double()
    weights = torch.linalg.solve(covariance, mean.transpose(1, 2))  # Σ⁻¹ μ, (place, features, label)
    bias = (count / len(y)).log() - (mean * weights.transpose(1, 2)).sum(-1) / 2
    return lambda x: (x.double() @ weights + bias[:, None]).argmax(-1)


def logistic(x: Tensor, y: Tensor, strength: float) -> Predict:
    """scikit-learn's multinomial logistic regression, place by place; ``strength`` is its ``C``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged; cross-validation judges it by its accuracy
        fitted = [LogisticRegression(C=strength, max_iter=500, tol=1e-3).fit(place.numpy(), y.numpy()) for place in x]
    return lambda x: torch.stack(
        [torch.from_numpy(probe.predict(place.numpy())) for probe, place in zip(fitted, x, strict=True)]
    )


# Each with the strengths that it tries, those of the strongest regularisation first: weight of the identity, and C.
SOLVERS = {"discriminant": (discriminant, (0.3, 0.03, 0.003)), "logistic": (logistic, (0.001, 0.03, 1.0))}


@without_autocast
def fit_and_predict(solver: str, x: Tensor, y: Tensor, fold: Tensor, strengths: Sequence[float] | None) -> Tensor:
    """Fit a probe at each place and return the labels that it predicts for the words for testing, (place, word).

    The first ``len(fold)`` words are for fitting, ``fold`` their cross-validation folds. Each place has the strength of
    ``strengths`` (None: the solver's) with the most hits in the held-out folds, of equals the first. Features are
    standardised.
    """
    fit, default = SOLVERS[solver]
    strengths, n_fit = strengths or default, len(fold)
    x = standardise(x, n_fit)
    x_fit, y_fit, x_test = x[:, :n_fit], y[:n_fit], x[:, n_fit:]
    hits = torch.zeros(len(x), len(strengths))
    for held_out in [fold == f for f in fold.unique()] if len(strengths) > 1 else ():
        for i, strength in enumerate(strengths):
            predict = fit(x_fit[:, ~held_out], y_fit[~held_out], strength)
            hits[:, i] += (predict(x_fit[:, held_out]) == y_fit[held_out]).sum(-1)
    best = hits.argmax(1)
    out = torch.empty(len(x), x_test.shape[1], dtype=torch.long)
    for i in best.unique().tolist():
        places = best == i
        out[places] = fit(x_fit[places], y_fit, strengths[i])(x_test[places])
    return out


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
