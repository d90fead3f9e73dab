"""What a probe is asked to find: a label for each word, and the control task that has no answer in the sentence.

A task is a name of ``TASKS``, or any function from a :class:`~headtools.roles.corpus.Sentence` to one label a word,
None where a word has none.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence

from headtools.roles.sentence import Sentence

Labels = tuple[str | None, ...]
Task = str | Callable[[Sentence], Sequence[str | None]]

_ANNOTATED = ("upos", "relation")
_OWN = ("number", "gender")
_SAID = "target "
_FEATURES = ("gender", "number", "case", "family", "object", "topic", "left", "right")
TASKS = (*_ANNOTATED, *_OWN, *(_SAID + name for name in _FEATURES))


def labels(sentence: Sentence, task: Task) -> Labels:
    """One label for each word of a sentence; None for a word that the task does not ask about.

    ``"upos"``              part of speech of every word
    ``"relation"``          relation of every word to its head
    ``"number"``            of every noun of the organism's language: singular, plural
    ``"gender"``            of every noun of the organism's language: a, o, e, the vowel its translation takes
    ``"target topic"`` ...  what a word's translation must say about a feature of ``headtools.organism.features``:
                            gender, number, case, family, object, topic, left, right

    Number and gender are read off the noun alone. What the translation must say depends, for most features, on another
    word of the sentence. A function is called with the sentence, for tasks of your own.

    Raises ValueError for an unknown task, a sentence the task knows nothing of, or a function that gives another number
    of labels than there are words.

    >>> from headtools.roles.corpus import corpus
    >>> first = corpus("organism", limit=1)[0]
    >>> [pair for pair in zip(first.words, labels(first, "number")) if pair[1]]
    [('lámp', 'singular'), ('sóngs', 'plural'), ('song', 'singular')]
    >>> labels(first, lambda sentence: [word[0] for word in sentence.words])[:3]
    ('B', 'h', 'f')
    """
    if callable(task):
        out = tuple(task(sentence))
        if len(out) != len(sentence.words):
            raise ValueError(
                f"{name_of(task)} gave {len(out)} labels for the {len(sentence.words)} words of {str(sentence)!r}; "
                "needed: one a word, None where there is none"
            )
        return out
    if task in _ANNOTATED:
        return getattr(sentence, task)
    if task not in TASKS:
        raise ValueError(f"no task {task!r}; there is {', '.join(TASKS)}, or a function from a Sentence to labels")
    from headtools.organism import features

    if task in _OWN:
        nouns = [upos == "NOUN" for upos in sentence.upos]
        return tuple(x if noun else None for x, noun in zip(features.labels(sentence, task), nouns, strict=True))
    return features.labels(sentence, task.removeprefix(_SAID))


def name_of(task: Task) -> str:
    """The task's name: its own, or that of the function."""
    return task if isinstance(task, str) else getattr(task, "__name__", "task")


def control(words: Sequence[str], answers: Sequence[str], fitted: int, seed: int = 0) -> list[str]:
    """Labels of the control task: one random label for each word type, the same wherever the word occurs.

    ``words`` and ``answers`` are all words the task asks about and their labels, the first ``fitted`` of them for
    fitting the probe. The random labels are drawn as often as the task's own occur among those. A probe can learn them
    only by learning words by heart, so what it reaches here is what it could reach without any structure (Hewitt &
    Liang 2019, arXiv:1909.03368, section 2).

    Raises ValueError where words and answers do not match, or nothing is left to draw from.

    >>> drawn = control(["dog", "cat", "dog"], ["a", "b", "a"], fitted=3)
    >>> drawn[0] == drawn[2], set(drawn) <= {"a", "b"}
    (True, True)
    """
    if len(words) != len(answers) or not 0 < fitted <= len(words):
        raise ValueError(
            f"{len(words)} words with {len(answers)} answers came, {fitted} of them for fitting; needed: one answer a "
            "word, and fitted between 1 and their number"
        )
    count = Counter(answers[:fitted])
    values = sorted(count)
    dice = random.Random(f"control {seed}")
    types = sorted(set(words))
    drawn = dict(zip(types, dice.choices(values, [count[v] for v in values], k=len(types)), strict=True))
    return [drawn[word] for word in words]


def lookup(words: Sequence[str], answers: Sequence[str], asked: Sequence[str]) -> list[str]:
    """What one would answer knowing the word alone: its most frequent label, or the most frequent of all.

    ``words`` and ``answers`` are those for fitting; ``asked`` are the words to answer for. Equal counts go to the label
    first in the alphabet.

    >>> lookup(["dog", "dog", "cat"], ["x", "y", "y"], ["dog", "cat", "fox"])
    ['x', 'y', 'y']
    """
    counts: dict[str, Counter[str]] = {}
    for word, answer in zip(words, answers, strict=True):
        counts.setdefault(word, Counter())[answer] += 1

    def most(count: Counter[str]) -> str:
        return min(count, key=lambda label: (-count[label], label))

    usual = most(Counter(answers))
    best = {word: most(count) for word, count in counts.items()}
    return [best.get(word, usual) for word in asked]
