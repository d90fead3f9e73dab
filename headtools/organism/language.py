"""The organism's parallel corpus: sentences of the source language with trees, coreference, alignment and translation.

A worked example. Accents mean nothing in English, but the target words beside them hear them:

>>> first = next(sentences("test"))
>>> print(first)
Belena hád followed the lámp near the sóngs often and shé had jumped over á song very small .
>>> " ".join(first.target[:9])
"s'mavyu bepyu s'toga Belena lyo'n gepot s'fene lyeli'n toselit"

>>> from headtools.organism.vocabulary import gloss
>>> [(first.words[number - 1], gloss(word)) for number, word in zip(first.alignment[:2], first.target)]
[('often', 'often: topic sea, family u, accent to the left'), ('hád', 'had: topic sea, family u')]

``LANGUAGE.md`` beside this file explains the whole language to a reader, with examples that run.

Nothing is stored: a split is drawn anew, and always the same, from its name. A sentence belongs to the split that the
checksum of its words names, so that no test sentence can be met in training.
"""

import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from headtools.organism.grammar import HARD, USUAL, SentenceSampler, Style
from headtools.organism.lexicon import accented
from headtools.organism.translation import write
from headtools.roles.sentence import Sentence

SPLITS = ("train", "validation", "test", "hard")
SIZES = {"train": 20_000, "validation": 1_000, "test": 1_000, "hard": 1_000}  # what corpus() gives without a limit
_SHELVES = {"validation": (0,), "test": (1,), "hard": (1,), "train": tuple(range(2, 12))}


def sentences(split: str = "test", style: Style | None = None, stream: int = 0) -> Iterator[Sentence]:
    """Endless stream of the sentences of a split, the same on every machine; ``stream`` draws another one.

    ``style`` changes lengths and constructions (by default the split's own). Raises ValueError for an unknown split.

    >>> next(sentences("hard")).words == next(sentences("hard")).words
    True
    """
    yield from drawn(SentenceSampler, style or (HARD if split == "hard" else USUAL), write, split, stream)


def corpus(split: str = "test", limit: int | None = None) -> list[Sentence]:
    """The first ``limit`` sentences of a split; without a limit 1,000, of train 20,000.

    >>> len(corpus("validation", 3))
    3
    """
    return list(islice(sentences(split), limit or SIZES.get(split, 1)))


def drawn(
    grammar: type[SentenceSampler], style: Style, write: Callable[..., tuple], split: str, stream: int
) -> Iterator[Sentence]:
    """Endless stream of what a grammar draws and ``write`` translates, of one split of either organism."""
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: the organism's language has {', '.join(SPLITS)}; write split='test'")
    sampler = grammar(random.Random(f"{split} {stream}"), style)
    while True:
        source, target, topic = sampler.sentence()
        words = tuple(accented(n.word) if n.accent else n.word for n in source)
        # The checksum of its words decides which split a sentence belongs to, so splits share none.
        if zlib.crc32(" ".join(words).encode()) % 12 not in _SHELVES[split]:
            continue
        word_number = {id(node): i + 1 for i, node in enumerate(source)}
        written = [write(n, source, topic) for n in target]
        yield Sentence(
            words=words,
            heads=tuple(word_number[id(n.head)] if n.head else 0 for n in source),
            relations=tuple(n.relation for n in source),
            upos=tuple(n.upos for n in source),
            coreference=tuple(
                word_number[id(n.antecedent)] if n.antecedent and n.word != "that" else 0 for n in source
            ),
            target=tuple(word for word, _ in written),
            alignment=tuple(word_number[id(n)] for n in target),
            topic=topic,
            phenomena=tuple(phenomena for _, phenomena in written),
        )


@lru_cache(maxsize=4)
def frequency(n: int = 20_000) -> Counter[str]:
    """How often each source word occurs in the first ``n`` training sentences (a count, per word).

    >>> count = frequency(2000)
    >>> count["the"] > count["dog"] > count["Ulena"]
    True
    """
    return Counter(word for s in islice(sentences("train"), n) for word in s.words)
