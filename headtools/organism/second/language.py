"""The second organism's parallel corpus: sentences with trees, coreference, alignment and translation.

``LANGUAGE.md`` beside this file explains the language with examples that run. The words are those of the first organism
(``headtools.organism.lexicon``); grammar, target words and vocabulary are its own.

>>> first = next(sentences("test"))
>>> print(first)
over this véry qúick market á létter of Zanena with these apples painted my bóx .
>>> " ".join(first.target)
"paza nva'n s'rumak s'kosva Zanena jorvo tvoli tevoliga mve'n mazet gono tvo'n s'fevot'n s'povo fudvo'n ."
"""

import random
import zlib
from collections.abc import Iterator
from itertools import islice

from headtools.organism.lexicon import accented
from headtools.organism.second.grammar import HARD, USUAL, Speaker, Style
from headtools.organism.second.translation import write
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
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: the organism's language has {', '.join(SPLITS)}; write split='test'")
    speaker = Speaker(random.Random(f"{split} {stream}"), style or (HARD if split == "hard" else USUAL))
    while True:
        source, target, topic = speaker.sentence()
        words = tuple(accented(n.word) if n.accent else n.word for n in source)
        # The checksum of its words decides which split a sentence belongs to, so splits share none.
        if zlib.crc32(" ".join(words).encode()) % 12 not in _SHELVES[split]:
            continue
        number = {id(node): i + 1 for i, node in enumerate(source)}
        written = [write(n, source, topic) for n in target]
        yield Sentence(
            words=words,
            heads=tuple(number[id(n.head)] if n.head else 0 for n in source),
            relations=tuple(n.relation for n in source),
            upos=tuple(n.upos for n in source),
            coreference=tuple(
                number[id(n.antecedent)] if n.antecedent and n.word != "that" else 0 for n in source
            ),
            target=tuple(word for word, _ in written),
            alignment=tuple(number[id(n)] for n in target),
            topic=topic,
            phenomena=tuple(phenomena for _, phenomena in written),
        )


def corpus(split: str = "test", limit: int | None = None) -> list[Sentence]:
    """Return the first ``limit`` sentences of a split; without a limit 1,000, of train 20,000.

    >>> len(corpus("validation", 3))
    3
    """
    return list(islice(sentences(split), limit or SIZES.get(split, 1)))
