"""Probing tasks: a label for each word, and the control task, whose labels do not depend on the sentence.

A task is a name of ``TASKS``, or any function from a :class:`~headtools.roles.corpus.Sentence` to one label a word,
None where a word has none.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from headtools.roles.sentence import Sentence

Labels = tuple[str | None, ...]
Task = str | Callable[[Sentence], Sequence[str | None]]

# By name; a guest adds those that its sentences alone can answer (``headtools.organism.features``).
TASKS: dict[str, Callable[[Sentence], Sequence[str | None]]] = {
    "upos": lambda sentence: sentence.upos,
    "relation": lambda sentence: sentence.relations,
}


def labels(sentence: Sentence, task: Task) -> Labels:
    """One label for each word of a sentence; None for a word that the task does not label.

    "upos" and "relation" label every word. The organism's tasks (``headtools.organism.features``) are there as soon as
    ``corpus("organism")`` was read: "number" and "gender" of every noun, and "target topic", "target gender" ..., what
    a word's translation must express. Raises ValueError for an unknown task, a sentence without the annotation that it
    needs, or a function that returns more or fewer labels than there are words.

    >>> from headtools.roles.corpus import corpus
    >>> first = corpus("organism", limit=1)[0]
    >>> [pair for pair in zip(first.words, labels(first, "number")) if pair[1]]
    [('lámp', 'singular'), ('sóngs', 'plural'), ('song', 'singular')]
    """
    if not callable(task) and task not in TASKS:
        raise ValueError(f"no task {task!r}; there is {', '.join(TASKS)}, or a function from a Sentence to labels")
    out = tuple(task(sentence) if callable(task) else TASKS[task](sentence))
    if len(out) != len(sentence.words):
        got = f"{name_of(task)} gave {len(out)} labels for the {len(sentence.words)} words of {str(sentence)!r}"
        raise ValueError(f"{got}; expected one a word, None for no label")
    return out


def name_of(task: Task) -> str:
    """The task's name: its own, or that of the function."""
    return task if isinstance(task, str) else getattr(task, "__name__", "task")


def control(words: Sequence[str], answers: Sequence[str], fitted: int, seed: int = 0) -> list[str]:
    """Labels of the control task: one random label for each word type, the same wherever the word occurs.

    The first ``fitted`` of ``words`` are for fitting the probe; the random labels have the frequencies of their
    ``answers``. A probe can learn them only by memorising words (Hewitt & Liang 2019, section 2). Raises ValueError
    where words and answers do not match.

    >>> random_labels = control(["dog", "cat", "dog"], ["a", "b", "a"], fitted=3)
    >>> random_labels[0] == random_labels[2], set(random_labels) <= {"a", "b"}
    (True, True)
    """
    if len(words) != len(answers) or not 0 < fitted <= len(words):
        got = f"{len(words)} words with {len(answers)} answers, {fitted} of them for fitting"
        raise ValueError(f"got {got}; expected one answer a word, and fitted between 1 and their number")
    counts = Counter(answers[:fitted])
    values = sorted(counts)
    # Sorted, since the order of a set differs from one Python process to the next.
    word_types = sorted(set(words))
    random_labels = random.Random(f"control {seed}").choices(
        values, [counts[value] for value in values], k=len(word_types)
    )
    label_of = dict(zip(word_types, random_labels, strict=True))
    return [label_of[word] for word in words]


def lookup(words: Sequence[str], answers: Sequence[str], queried: Sequence[str]) -> list[str]:
    """Labels of ``queried`` words from the word alone: its most frequent label, or of a new word that of all words.

    Of labels with equal counts the first in the alphabet counts as the most frequent.

    >>> lookup(["dog", "dog", "cat"], ["x", "y", "y"], ["dog", "cat", "fox"])
    ['x', 'y', 'y']
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for word, answer in zip(words, answers, strict=True):
        counts[word][answer] += 1

    def most_frequent(count: Counter[str]) -> str:
        return min(count, key=lambda label: (-count[label], label))

    majority = most_frequent(Counter(answers))
    label_of = {word: most_frequent(count) for word, count in counts.items()}
    return [label_of.get(word, majority) for word in queried]
