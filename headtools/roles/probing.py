"""Linear probes: which labels can be decoded from a head's output, a layer's, or the residual stream.

An accuracy alone says little: a word's part of speech can be decoded from nearly any vector that distinguishes words.
So each is given beside the *control task*, random labels, one for each word type (accuracy less control is
*selectivity*; Hewitt & Liang 2019, arXiv:1909.03368); the *lookup*, the most frequent label of the same word; the
*majority*; and the untrained twin. Whether the model uses a label, only an intervention shows: see ``erasure``.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from headtools.heads._devices import without_autocast
from headtools.heads.intervals import bounds, linearised_ratio
from headtools.heads.sites import Heads
from headtools.heads.verify import verify_once
from headtools.roles.controls import untrained as untrained_twin
from headtools.roles.sentence import Sentence
from headtools.roles.tasks import Task, control, labels, lookup, name_of
from headtools.roles.word_states import Place, word_states

FOLDS = 3  # of the cross-validation that chooses the strength of regularisation, by sentence
COLUMNS = [
    *("model", "component", "kind", "layer", "head", "task", "accuracy", "low", "high"),
    *("control", "selectivity", "selectivity_low", "selectivity_high", "lookup", "majority", "n"),
]


def probe(
    model: nn.Module,
    tokenizer: object,
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    tasks: Task | Sequence[Task] = ("upos",),
    *,
    component: Sequence[str] = ("head",),
    heads: Heads | None = None,
    untrained: bool = False,
    solver: str = "logistic",
    strengths: Sequence[float] | None = None,
) -> pd.DataFrame:
    """Fit a linear probe at every place of a model (``word_states``) for every task, and test it on other sentences.

    ``solver`` is "logistic" or, in closed form and so for grids of heads, "discriminant". Of ``strengths`` of its
    regularisation (C or shrinkage, strongest first) cross-validation in ``train`` chooses one a place. Returns a row
    for each model (trained; with ``untrained`` also its twin), place (layer l of the stream is what layer l reads)
    and task: ``accuracy`` on ``n`` words with its 95 % bootstrap interval over sentences (NaN for fewer than five),
    ``selectivity`` with its own, ``control``, ``lookup`` and ``majority``. Raises ValueError for labels too rare to
    cross-validate.

    >>> import headtools as ht
    >>> few = [ht.corpus("organism", split, limit=40) for split in ("validation", "test")]
    >>> bool(probe(*ht.load(), *few, "number", component=["residual"], solver="discriminant").accuracy.max() > 0.9)
    True
    """
    tasks = [tasks] if isinstance(tasks, str) or callable(tasks) else list(tasks)
    check_splits(train, test)
    names = [name_of(task) for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"got tasks={names}; expected one or more, each with a name of its own")
    if solver not in SOLVERS:
        raise ValueError(f"got solver={solver!r}; expected {' or '.join(SOLVERS)}")
    verify_once(model)
    sentences = [*train, *test]
    labelled = [_LabelledWords(task, sentences, len(train)) for task in tasks]
    models = {"trained": model} | ({"untrained": untrained_twin(model)} if untrained else {})
    rows = []
    for model_name, probed in models.items():
        states = word_states(probed, tokenizer, sentences, component, heads=heads)
        for task in labelled:
            correct = task.correct(states, task.labels, solver, strengths)  # (word, place)
            control_correct = task.correct(states, task.control_labels, solver, strengths)
            selectivity = share(correct - control_correct, task.sentence)
            by_place = zip(
                states, *share(correct, task.sentence), control_correct.double().mean(0), *selectivity, strict=True
            )
            for place, *numbers in by_place:
                baselines = task.lookup, task.majority
                rows.append((model_name, *place, task.name, *map(float, numbers), *baselines, len(correct)))
    return pd.DataFrame(rows, columns=COLUMNS).astype({"head": "Int64"})


class _LabelledWords:
    """The words that a task labels, in the order of the sentences, with their labels, control labels and folds.

    index            (N,) where their vectors are among those of all words
    n_fit            how many are for fitting; the others are for testing
    fold             (n_fit,) cross-validation fold of each
    sentence         (N - n_fit,) sentence of each word for testing
    lookup, majority accuracy of the two baselines without a model
    """

    def __init__(self, task: Task, sentences: Sequence[Sentence], n_train: int) -> None:
        every_word = [
            (i, word, label)
            for i, s in enumerate(sentences)
            for word, label in zip(s.words, labels(s, task), strict=True)
        ]
        self.index = torch.tensor([k for k, (_, _, label) in enumerate(every_word) if label is not None])
        labelled = [(i, word, str(label)) for i, word, label in every_word if label is not None]
        self.name, self.n_fit = name_of(task), sum(i < n_train for i, _, _ in labelled)
        if not 0 < self.n_fit < len(labelled):
            raise ValueError(
                f"task {self.name!r} labels {self.n_fit} words of train and {len(labelled) - self.n_fit} of test; "
                "expected words of both"
            )
        words, self.labels = [word for _, word, _ in labelled], [label for _, _, label in labelled]
        self.control_labels = control(words, self.labels, self.n_fit)
        sentence = np.array([i for i, _, _ in labelled])
        self.sentence = np.unique(sentence[self.n_fit :], return_inverse=True)[1]
        fold = np.unique(sentence[: self.n_fit], return_inverse=True)[1] % FOLDS
        y_fit, y_test = np.array(self.labels[: self.n_fit]), np.array(self.labels[self.n_fit :])
        values, counts = np.unique(y_fit, return_counts=True)
        if len(values) < 2:
            raise ValueError(f"task {self.name!r} has only the label {str(values[0])!r} in train; expected two or more")
        # Each fold is held out once, and a probe needs two labels in what remains.
        if len(set(fold)) < FOLDS or any(len(set(y_fit[fold != f])) < 2 for f in range(FOLDS)):
            raise ValueError(
                f"task {self.name!r} has the labels {dict(zip(values.tolist(), counts.tolist(), strict=True))} in "
                f"train; without each of {FOLDS} folds two labels must remain: give more sentences"
            )
        self.fold = torch.from_numpy(fold)
        self.majority = float((y_test == values[counts.argmax()]).mean())
        self.lookup = float((y_test == np.array(lookup(words[: self.n_fit], y_fit, words[self.n_fit :]))).mean())

    def correct(
        self, states: dict[Place, Tensor], labelling: list[str], solver: str, strengths: Sequence[float] | None
    ) -> Tensor:
        """Fit a probe at each place to a labelling; 1 where it is right on a word for testing, (word, place)."""
        y = torch.from_numpy(np.unique(labelling, return_inverse=True)[1])
        out = torch.zeros(len(self.sentence), len(states))
        for width in {x.shape[1] for x in states.values()}:  # places of equal width are solved together
            columns = [i for i, x in enumerate(states.values()) if x.shape[1] == width]
            x = torch.stack([vectors for vectors in states.values() if vectors.shape[1] == width])[:, self.index]
            predicted = fit_and_predict(solver, x, y, self.fold, strengths)
            out[:, columns] = (predicted == y[self.n_fit :]).float().T
        return out


def share(right: Tensor, sentence: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Fraction of words that are right, with its 95 % bootstrap interval over sentences (NaN for fewer than five).

    ``right`` (word, ...) are numbers, 1 for right, and ``sentence`` the sentence of each word, from 0. Sentences are
    resampled, not words, since words of one sentence are not independent.

    >>> mean, low, high = share(torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]), [0, 0, 1, 2, 3, 4])
    >>> mean.item(), bool(low < mean < high)
    (0.5, True)
    """
    index = torch.as_tensor(np.asarray(sentence)).long()
    n_words = torch.bincount(index).double()
    sums = torch.zeros(len(n_words), *right.shape[1:], dtype=torch.double).index_add_(0, index, right.double())
    # The fraction is a ratio of two sums, which varies as the mean of these rows does.
    rows = linearised_ratio(sums.view(len(sums), -1), n_words).view_as(sums)
    low, high = bounds(rows, -1.0 if (right < 0).any() else 0.0, 1.0)
    return sums.sum(0) / n_words.sum(), low, high


def check_splits(train: Sequence[Sentence], test: Sequence[Sentence]) -> None:
    """Raise ValueError for splits with fewer than two sentences, or with a sentence in both."""
    for name, sentences in (("train", train), ("test", test)):
        if len(sentences) < 2:
            raise ValueError(f"{name} has {len(sentences)} sentences; expected two or more, e.g. ht.corpus('organism')")
    both = {s.words for s in train} & {s.words for s in test}
    if both:
        raise ValueError(
            f"{len(both)} sentences are in train and in test, such as {' '.join(min(both))!r}: the probe would be "
            "tested on what it was fitted to; use two splits, e.g. corpus(name, 'train') and corpus(name, 'test')"
        )


# A solver fits one probe at each place, to vectors x (place, word, features) and indices of labels y (word,); what it
# returns takes vectors (place, word, features) to the labels that the probes predict, (place, word).
Predict = Callable[[Tensor], Tensor]


def discriminant(x: Tensor, y: Tensor, shrinkage: float) -> Predict:
    """Fisher's linear discriminant: labels are Gaussians with one covariance, shrunk towards the identity.

    A word gets the label with the greatest μᵀ Σ⁻¹ x − ½ μᵀ Σ⁻¹ μ + log π, with Σ the covariance within labels of
    standardised features, shrunk to (1 − s) Σ + s I (Hastie, Tibshirani & Friedman 2009, equations 4.10 and 4.14). In
    closed form for all places at once; scikit-learn's shrinks each label's covariance to its own mean variance.
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
    x = _standardise(x, n_fit)
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


def _standardise(x: Tensor, n_fit: int) -> Tensor:
    """Features with mean 0 and variance 1 over the first ``n_fit`` words; one that is constant there becomes 0."""
    mean = x[:, :n_fit].mean(1, keepdim=True)
    deviation = x[:, :n_fit].std(1, keepdim=True, correction=0)
    varies = deviation > 1e-6 * mean.abs()
    return torch.where(varies, (x - mean) / torch.where(varies, deviation, 1.0), 0.0)
