"""Linear probes: which labels can be decoded from a head's output, a layer's, or the residual stream.

An accuracy alone says little: a word's part of speech can be decoded from nearly any vector that distinguishes words.
So each is given beside the *control task*, random labels, one for each word type (accuracy less control is
*selectivity*; Hewitt & Liang 2019, arXiv:1909.03368); the *lookup*, the most frequent label of the same word; the
*majority*; and the untrained twin. Whether the model uses a label, only an intervention shows: see ``erasure``.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads.intervals import bounds, linearised_ratio
from headtools.heads.sites import Heads
from headtools.roles._linear import SOLVERS, fit_and_predict
from headtools.roles.controls import untrained as untrained_twin
from headtools.roles.sentence import Sentence
from headtools.roles.tasks import Task, control, labels, lookup, name_of
from headtools.roles.word_states import Place, word_states

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
    folds: int = 3,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Fit a linear probe at every place of a model for every task, and test it on other sentences.

    ``tasks`` are names or functions (:func:`headtools.roles.tasks.labels`), ``component`` and ``heads`` what is read of
    each word (``headtools.roles.word_states``). With ``untrained`` the model's untrained twin is probed as well.
    ``solver`` is "logistic", or "discriminant", in closed form and so for grids of heads
    (:mod:`headtools.roles._linear`). The strength of regularisation (``strengths``, in the solver's own unit, the
    strongest first) is chosen for each place by cross-validation in ``folds`` folds of the sentences of ``train``. The
    control task is fitted the same way, ``draws`` times with other random labels.

    Returns a row for each model, place and task: ``model`` trained or untrained; ``component``, ``kind``, ``layer`` and
    ``head`` (none for layers and the stream; layer l of the stream is what layer l reads); ``task``; ``accuracy`` on
    the ``n`` words of ``test``, ``low`` to ``high`` its 95 % bootstrap interval over sentences (NaN for fewer than
    five); ``control`` accuracy, ``selectivity`` with its interval; ``lookup`` and ``majority``. All are fractions.

    Raises ValueError for an unknown solver, a sentence in both train and test, a task with fewer than two labels, or
    labels too rare to be in every fold of the cross-validation.

    >>> import headtools as ht
    >>> few = [ht.corpus("organism", split, limit=40) for split in ("validation", "test")]
    >>> frame = probe(*ht.load(), *few, "number", component=["residual"], solver="discriminant")
    >>> bool(frame.accuracy.max() > 0.9)
    True
    """
    tasks = [tasks] if isinstance(tasks, str) or callable(tasks) else list(tasks)
    _check(train, test, tasks, folds, solver, draws)
    sentences = [*train, *test]
    labels_of = {name_of(task): [labels(s, task) for s in sentences] for task in tasks}
    control_seeds = [seed * 1000 + draw for draw in range(draws)]
    labelled = [
        _LabelledWords(name, sentences, of_sentences, len(train), folds, control_seeds)
        for name, of_sentences in labels_of.items()
    ]
    models = {"trained": model} | ({"untrained": untrained_twin(model, seed)} if untrained else {})
    rows = []
    for model_name, probed in models.items():
        states = word_states(probed, tokenizer, sentences, component, heads=heads, batch_size=batch_size)
        for task in labelled:
            correct = task.correct(states, [task.labels], solver, strengths)
            control_correct = task.correct(states, task.control_labels, solver, strengths)
            rows += _rows(model_name, states, task, correct, control_correct)
    return pd.DataFrame(rows, columns=COLUMNS).astype({"head": "Int64"})


class _LabelledWords:
    """The words that a task labels, in the order of the sentences, with their labels, control labels and folds.

    index            (N,) where their vectors are among those of all words
    n_fit            how many are for fitting; the others are for testing
    fold             (n_fit,) cross-validation fold of each
    sentence         (N - n_fit,) sentence of each word for testing
    lookup, majority accuracy of the two baselines without a model
    """

    def __init__(
        self,
        name: str,
        sentences: Sequence[Sentence],
        labels_of_sentences: list[Sequence[str | None]],
        n_train: int,
        folds: int,
        control_seeds: list[int],
    ) -> None:
        words_read = [
            (i, word, label)
            for i, (s, of_sentence) in enumerate(zip(sentences, labels_of_sentences, strict=True))
            for word, label in zip(s.words, of_sentence, strict=True)
        ]
        self.index = torch.tensor([k for k, (_, _, label) in enumerate(words_read) if label is not None])
        labelled = [(i, word, str(label)) for i, word, label in words_read if label is not None]
        self.name, self.n_fit = name, sum(i < n_train for i, _, _ in labelled)
        if not 0 < self.n_fit < len(labelled):
            raise ValueError(
                f"task {name!r} labels {self.n_fit} words of train and {len(labelled) - self.n_fit} of test; "
                "expected words of both"
            )
        words, self.labels = [word for _, word, _ in labelled], [label for _, _, label in labelled]
        self.control_labels = [control(words, self.labels, self.n_fit, seed) for seed in control_seeds]
        sentence = np.array([i for i, _, _ in labelled])
        self.sentence = np.unique(sentence[self.n_fit :], return_inverse=True)[1]
        self.fold = torch.from_numpy(np.unique(sentence[: self.n_fit], return_inverse=True)[1] % folds)
        y_fit, y_test = np.array(self.labels[: self.n_fit]), np.array(self.labels[self.n_fit :])
        values, counts = np.unique(y_fit, return_counts=True)
        if len(values) < 2:
            raise ValueError(f"task {name!r} has only the label {str(values[0])!r} in train; expected two or more")
        for fold in range(folds):
            held_out = (self.fold == fold).numpy()
            if len(set(y_fit[~held_out])) < 2 or not held_out.any():
                frequencies = dict(zip(values.tolist(), counts.tolist(), strict=True))
                raise ValueError(
                    f"task {name!r} has the labels {frequencies} in train; without each of {folds} folds two labels "
                    "must remain: give more sentences"
                )
        self.majority = float((y_test == values[counts.argmax()]).mean())
        self.lookup = float((y_test == np.array(lookup(words[: self.n_fit], y_fit, words[self.n_fit :]))).mean())

    def correct(
        self, states: dict[Place, Tensor], labellings: list[list[str]], solver: str, strengths: Sequence[float] | None
    ) -> Tensor:
        """Fit a probe to each labelling; how many of them are right on every word for testing, as a fraction.

        Returns (word, place).
        """
        out = torch.zeros(len(self.sentence), len(states))
        for width in {x.shape[1] for x in states.values()}:  # places of equal width are solved together
            columns = [i for i, x in enumerate(states.values()) if x.shape[1] == width]
            x = torch.stack([vectors for vectors in states.values() if vectors.shape[1] == width])[:, self.index]
            for labelling in labellings:
                y = torch.from_numpy(np.unique(labelling, return_inverse=True)[1])
                predicted = fit_and_predict(solver, x, y, self.fold, strengths)
                out[:, columns] += (predicted == y[self.n_fit :]).float().T / len(labellings)
        return out


def _rows(
    model_name: str, states: dict[Place, Tensor], task: _LabelledWords, correct: Tensor, control_correct: Tensor
) -> list[tuple]:
    """Rows of the frame; ``correct`` and ``control_correct`` (word, place) are 1 where a probe was right."""
    accuracy, low, high = share(correct, task.sentence)
    selectivity, selectivity_low, selectivity_high = share(correct - control_correct, task.sentence)
    control_accuracy = control_correct.double().mean(0)
    columns = zip(accuracy, low, high, control_accuracy, selectivity, selectivity_low, selectivity_high, strict=True)
    return [
        (model_name, *place, task.name, *map(float, numbers), task.lookup, task.majority, len(correct))
        for place, numbers in zip(states, columns, strict=True)
    ]


def share(right: Tensor, sentence: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Fraction of words that are right, with the ends of its 95 % bootstrap interval over sentences.

    ``right`` (word, ...) are numbers, 1 for right, and ``sentence`` the sentence of each word, from 0. Sentences are
    resampled, not words, since words of one sentence are not independent. The interval is clamped to the range of a
    word's numbers, 0 or -1 to 1; it is NaN for fewer than five sentences.

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


def _check(
    train: Sequence[Sentence], test: Sequence[Sentence], tasks: list[Task], folds: int, solver: str, draws: int
) -> None:
    """Raise ValueError for what would make the test easier than it is, or leave nothing to test."""
    for name, sentences in (("train", train), ("test", test)):
        if len(sentences) < 2:
            raise ValueError(f"{name} has {len(sentences)} sentences; expected two or more, e.g. ht.corpus('organism')")
    both = {s.words for s in train} & {s.words for s in test}
    if both:
        raise ValueError(
            f"{len(both)} sentences are in train and in test, such as {' '.join(min(both))!r}: the probe would be "
            "tested on what it was fitted to; use two splits, e.g. corpus(name, 'train') and corpus(name, 'test')"
        )
    names = [name_of(task) for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"got tasks={names}; expected one or more, each with a name of its own")
    if not 2 <= folds <= len(train):
        raise ValueError(f"got folds={folds} of {len(train)} sentences; expected 2 up to the number of sentences")
    if solver not in SOLVERS:
        raise ValueError(f"got solver={solver!r}; expected {' or '.join(SOLVERS)}")
    if draws < 1:
        raise ValueError(f"got draws={draws}; expected 1 or more random control tasks")
