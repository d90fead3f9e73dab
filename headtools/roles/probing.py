"""Linear probes: what can be read off a head's output, a layer's, or the residual stream, and what that is worth.

A probe is a linear classifier from vectors to labels. Its accuracy alone says little: a word's part of speech can be
read off nearly any vector that tells words apart. So each accuracy stands beside

- the *control task*: random labels, one for each word type; accuracy less control is *selectivity* (Hewitt & Liang
  2019, arXiv:1909.03368),
- the *lookup*: the most frequent label of the same word in the fitting sentences, which needs no model,
- the *majority*: the most frequent label of all,
- the same probe on a twin of the model that was never trained.

A probe that succeeds shows that something is there for a linear reader. Whether the model reads it, only an
intervention shows: see ``ablate``, ``gates`` and ``headtools.roles.erasure``.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from headtools.heads._select import Heads
from headtools.heads.bootstrap import bounds
from headtools.roles._linear import SOLVERS
from headtools.roles._tasks import Task, control, labels, lookup, name_of
from headtools.roles.controls import untrained as untrained_twin
from headtools.roles.sentence import Sentence
from headtools.roles.word_states import Place, word_states

COLUMNS = (
    "model", "of", "kind", "layer", "head", "task", "accuracy", "low", "high", "control", "selectivity",
    "selectivity_low", "selectivity_high", "lookup", "majority", "n",
)  # fmt: skip


def probe(
    model: nn.Module,
    tokenizer: object,
    train: Sequence[Sentence],
    test: Sequence[Sentence],
    tasks: Task | Sequence[Task] = ("upos",),
    *,
    of: Sequence[str] = ("head",),
    heads: Heads | None = None,
    pieces: str = "last",
    untrained: bool = False,
    solver: str = "logistic",
    strengths: Sequence[float] | None = None,
    folds: int = 3,
    draws: int = 1,
    seed: int = 0,
    batch_size: int = 32,
) -> pd.DataFrame:
    """Fit a linear probe on every place of a model for every task, and test it on other sentences.

    ``tasks`` are names or functions (:func:`headtools.roles._tasks.labels`), ``of``, ``heads`` and ``pieces`` what is
    read of each word (``headtools.roles.word_states``, where the memory is told). With ``untrained`` the
    model's untrained twin is probed as well. ``solver`` is "logistic", scikit-learn's multinomial regression, or
    "discriminant", Fisher's linear discriminant in closed form, which takes all places at once and is the one for grids
    of heads (:mod:`headtools.roles._linear`). Features have mean 0 and variance 1 over the fitting words. How strongly
    a probe is held back (``strengths``, in the solver's own unit, the most held back first) is chosen for each place
    by cross-validation in ``folds`` parts of ``train``, each sentence in one part alone; ``test`` has no say in it.
    The control task is fitted the same way, ``draws`` times with other random labels, and its mean given.

    Returns a frame with a row for each model, place and task: ``model`` trained or untrained; ``of`` head, layer or
    residual; ``kind``, ``layer`` and ``head`` (none for layers and the stream); ``task``; ``accuracy`` on the ``n``
    words of ``test``, with a 95 % bootstrap interval over sentences, ``low`` to ``high`` (NaN for fewer than five);
    ``control`` accuracy and ``selectivity`` with its interval, which holds the drawn control labels fixed; ``lookup``
    and ``majority``, the two baselines without a model. All are shares from 0 to 1. The residual stream of layer l is
    what layer l reads.

    Raises ImportError for "logistic" without scikit-learn, and ValueError for an unknown solver, a sentence in both
    train and test, a task with fewer than two labels, or labels too rare to be in every part of the cross-validation.

    >>> import headtools as ht
    >>> few = [ht.corpus("organism", split, limit=40) for split in ("validation", "test")]
    >>> frame = probe(*ht.load(), *few, "number", of=["residual"], solver="discriminant")
    >>> frame[["of", "layer", "task"]].values.tolist()[-1], bool(frame.accuracy.max() > 0.9)
    (['residual', 6, 'number'], True)
    """
    tasks = [tasks] if isinstance(tasks, str) or callable(tasks) else list(tasks)
    _check(train, test, tasks, folds, solver, draws)
    sentences = [*train, *test]
    answers = {name_of(task): [labels(s, task) for s in sentences] for task in tasks}
    by_sentence = zip(*answers.values(), strict=True)
    only = [[any(x is not None for x in word) for word in zip(*rows, strict=True)] for rows in by_sentence]
    asked = {
        name: _Asked(name, sentences, rows, only, len(train), folds, [seed * 1000 + d for d in range(draws)])
        for name, rows in answers.items()
    }
    models = {"trained": model} | ({"untrained": untrained_twin(model, seed)} if untrained else {})
    rows = []
    for label, one in models.items():
        states = word_states(
            one, tokenizer, sentences, of, heads=heads, pieces=pieces, only=only, batch_size=batch_size
        )
        for task in asked.values():
            right, luck = (task.right(states, y, solver, strengths) for y in ([task.answers], task.controls))
            rows += _rows(label, states, task, right, luck)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"head": "Int64"})


class _Asked:
    """One task's words, in the order of the sentences: labels, control labels, sentences, parts of the validation."""

    def __init__(
        self,
        name: str,
        sentences: Sequence[Sentence],
        rows: list[Sequence[str | None]],
        only: list[list[bool]],
        n_train: int,
        folds: int,
        seeds: list[int],
    ) -> None:
        triples = [
            (i, word, None if label is None else str(label), read)
            for i, (s, row, kept) in enumerate(zip(sentences, rows, only, strict=True))
            for word, label, read in zip(s.words, row, kept, strict=True)
        ]
        kept = [t for t in triples if t[3]]
        self.words = torch.tensor([k for k, t in enumerate(kept) if t[2] is not None])  # among the words that are read
        asked = [t for t in triples if t[2] is not None]
        self.name, self.fitted = name, sum(t[0] < n_train for t in asked)
        if not 0 < self.fitted < len(asked):
            raise ValueError(
                f"task {name!r} asks about {self.fitted} words of train and {len(asked) - self.fitted} of test; "
                "needed: some of both"
            )
        words, self.answers = [t[1] for t in asked], [t[2] for t in asked]
        self.controls = [control(words, self.answers, self.fitted, seed) for seed in seeds]
        sentence = np.array([t[0] for t in asked])
        self.sentence = np.unique(sentence[self.fitted :], return_inverse=True)[1]  # of each word of test
        self.fold = torch.from_numpy(np.unique(sentence[: self.fitted], return_inverse=True)[1] % folds)
        known, truth = np.array(self.answers[: self.fitted]), np.array(self.answers[self.fitted :])
        values, counts = np.unique(known, return_counts=True)
        if len(values) < 2:
            raise ValueError(f"task {name!r} has only the label {str(values[0])!r} in train; needed: two or more")
        for part in range(folds):
            if len(set(known[(self.fold != part).numpy()])) < 2 or not (self.fold == part).any():
                found = dict(zip(values.tolist(), counts.tolist(), strict=True))
                raise ValueError(
                    f"task {name!r} has the labels {found} in train, too few to cut it in {folds} parts with two "
                    "labels in what is left of each; give more sentences"
                )
        self.majority = float((truth == values[counts.argmax()]).mean())
        self.lookup = float((truth == np.array(lookup(words[: self.fitted], known, words[self.fitted :]))).mean())

    def right(self, states: dict[Place, Tensor], answers: list[list[str]], solver: str, strengths: object) -> Tensor:
        """Share of the given answers that a probe fitted to each gets right, of every word of test: (word, place)."""
        out = torch.zeros(len(self.sentence), len(states))
        for width in {x.shape[1] for x in states.values()}:
            places = [i for i, x in enumerate(states.values()) if x.shape[1] == width]
            x = torch.stack([one for one in states.values() if one.shape[1] == width])[:, self.words]
            for given in answers:
                y = torch.from_numpy(np.unique(given, return_inverse=True)[1])
                told = SOLVERS[solver](x, y, self.fold, *([strengths] if strengths else []))
                out[:, places] += (told == y[self.fitted :]).float().T / len(answers)
        return out


def _rows(label: str, states: dict[Place, Tensor], task: _Asked, right: Tensor, luck: Tensor) -> list[tuple]:
    """Rows of the frame; ``right`` and ``luck`` (word, place) are what the probes and their controls got right."""
    accuracy, low, high = share(right, task.sentence)
    selectivity, less, more = share(right - luck, task.sentence)
    columns = zip(accuracy, low, high, luck.double().mean(0), selectivity, less, more, strict=True)
    return [
        (label, *place, task.name, *map(float, numbers), task.lookup, task.majority, len(right))
        for place, numbers in zip(states, columns, strict=True)
    ]


def share(right: Tensor, sentence: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Share of words that are right, with the ends of its 95 % bootstrap interval over sentences.

    ``right`` (word, ...) are numbers, 1 for right, and ``sentence`` tells for each word the number of its sentence,
    from 0. Sentences are drawn, not words, since words of one sentence are not independent. The share is a ratio of
    two sums; its interval is that of the linearised ratio, the mean over sentences of share + (right − share · words) /
    mean words. It stays between the least and the most that a word can be, 0 or -1 and 1; it is NaN for fewer than
    five sentences.

    >>> mean, low, high = share(torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]), [0, 0, 1, 2, 3, 4])
    >>> mean.item(), bool(low < mean < high)
    (0.5, True)
    """
    number = torch.as_tensor(np.asarray(sentence)).long()
    words = torch.bincount(number).double()
    sums = torch.zeros(len(words), *right.shape[1:], dtype=torch.double).index_add_(0, number, right.double())
    mean = sums.sum(0) / words.sum()
    count = words.view(-1, *[1] * (sums.dim() - 1))
    low, high = bounds(mean + (sums - mean * count) / words.mean(), -1.0 if (right < 0).any() else 0.0, 1.0)
    return mean, low, high


def _check(
    train: Sequence[Sentence], test: Sequence[Sentence], tasks: list[Task], folds: int, solver: str, draws: int
) -> None:
    """Refuse what would make the test easier than it is, or leave nothing to test."""
    for name, given in (("train", train), ("test", test)):
        if len(given) < 2:
            raise ValueError(f"{name} has {len(given)} sentences; needed: two or more, e.g. ht.corpus('organism')")
    both = {s.words for s in train} & {s.words for s in test}
    if both:
        raise ValueError(
            f"{len(both)} sentences are in train and in test, such as {' '.join(min(both))!r}: the probe would be "
            "tested on what it was fitted to; use two splits, e.g. corpus(name, 'train') and corpus(name, 'test')"
        )
    names = [name_of(task) for task in tasks]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"the tasks are {names}; needed: one or more, each with a name of its own")
    if not 2 <= folds <= len(train):
        raise ValueError(f"folds={folds} of {len(train)} sentences; needed: from 2 to the number of sentences")
    if solver not in SOLVERS:
        raise ValueError(f"solver={solver!r}; needed: {' or '.join(SOLVERS)}")
    if draws < 1:
        raise ValueError(f"draws={draws}; needed: 1 or more random control tasks")
