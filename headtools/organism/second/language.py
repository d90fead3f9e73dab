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
from collections.abc import Iterator
from itertools import islice

from headtools.organism.language import SIZES, SPLITS, of_split
from headtools.organism.second.grammar import HARD, USUAL, SentenceSampler, Style
from headtools.organism.second.translation import write
from headtools.roles.sentence import Sentence


def sentences(split: str = "test", style: Style | None = None, stream: int = 0) -> Iterator[Sentence]:
    """Endless stream of the sentences of a split, the same on every machine; ``stream`` draws another one.

    ``style`` changes lengths and constructions (by default the split's own). Raises ValueError for an unknown split.

    >>> next(sentences("hard")).words == next(sentences("hard")).words
    True
    """
    if split not in SPLITS:
        raise ValueError(f"no split {split!r}: the organism's language has {', '.join(SPLITS)}; write split='test'")
    style = style or (HARD if split == "hard" else USUAL)
    yield from of_split(SentenceSampler(random.Random(f"{split} {stream}"), style), write, split)


def corpus(split: str = "test", limit: int | None = None) -> list[Sentence]:
    """Return the first ``limit`` sentences of a split; without a limit 1,000, of train 20,000.

    >>> len(corpus("validation", 3))
    3
    """
    return list(islice(sentences(split), limit or SIZES.get(split, 1)))
